"""Every page, and every section of it, that code, tests and proofs refer to exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.scenarios.security.rows import ROWS

ROOT = Path(__file__).parents[3]
FOLDERS = ("src", "tests", "proofs", "bench", "deploy", "docs")
PAGE = re.compile(r'(?<![/\w])(docs/[a-z_]+\.md|[A-Z]+\.md)\b(?:, "([^"]+)")?')
ROW = re.compile(r"\bSECURITY\.md, ((?:[A-Z]-\d+(?:, | and )?)+)")


def headings(page: Path) -> list[str]:
    """The texts of a page's headings, without markup."""
    found = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"[`*]", "", heading) for heading in found]


def texts() -> Iterator[tuple[str, str]]:
    """The path and the text of every module, without line breaks that may split a reference."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path != Path(__file__):
                text = path.read_text(encoding="utf-8")
                yield str(path.relative_to(ROOT)), re.sub(r"\n\s*(?:# )?", " ", text)


def test_every_reference_names_a_page_and_its_section() -> None:
    """`docs/http.md, "Replay"` needs that page and a heading that starts with these words."""
    lost: list[str] = []
    count = 0
    for name, text in texts():
        for page, section in PAGE.findall(text):
            count += 1
            path = ROOT / page
            if not path.is_file():
                lost.append(f"{name}: {page}")
            elif section and not any(found.startswith(section) for found in headings(path)):
                lost.append(f'{name}: {page}, "{section}"')
    assert count > 60
    assert lost == []


def test_no_reference_to_documents_outside_the_repository() -> None:
    """No module refers to documents that are not in this repository."""
    assert [] == [name for name, text in texts() if "(reference:" in text]


def test_the_security_table_has_the_rows_of_the_tests() -> None:
    """SECURITY.md has the rows of `scenarios/security/rows.py`; code refers only to these."""
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert dict(re.findall(r"^\| ([A-Z]-\d+) \| (.+) \|$", page, re.MULTILINE)) == ROWS
    referred = {
        row
        for _, text in texts()
        for rows in ROW.findall(text)
        for row in re.findall(r"\w-\d+", rows)
    }
    assert referred
    assert referred <= set(ROWS)
