"""What documents and code refer to exists: pages, sections, paths, make targets, tests, rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.scenarios.docs.pages import PAGES, ROOT, text_of
from tests.scenarios.security.rows import ROWS

LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
PATH = re.compile(r"`((?:src|tests|proofs|bench|docs|locks|examples)/[\w./-]+)`")
VERB = re.compile(r"\bmake ([a-z][a-z-]+)(?=[`\n]| [A-Z]+=|  )")
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")
FOLDERS = ("src", "tests", "proofs", "bench", "deploy", "docs")
PAGE = re.compile(r'(?<![/\w])(docs/[a-z_]+\.md|[A-Z]+\.md)\b(?:, "([^"]+)")?')
ROW = re.compile(r"\bSECURITY\.md, ((?:[A-Z]-\d+(?:, | and )?)+)")


def headings(page: Path) -> list[str]:
    """The texts of a page's headings, without markup."""
    found = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return [re.sub(r"[`*]|\[|\]\([^)]*\)", "", heading) for heading in found]


def anchor(heading: str) -> str:
    """The anchor that GitHub and site generators make from a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def named(pattern: re.Pattern[str]) -> list[tuple[Path, str]]:
    return [(page, one) for page in PAGES for one in pattern.findall(page.read_text("utf-8"))]


def sources() -> Iterator[tuple[str, str]]:
    """The path and the text of every module, without line breaks that may split a reference."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path != Path(__file__):
                text = path.read_text(encoding="utf-8")
                yield str(path.relative_to(ROOT)), re.sub(r"\n\s*(?:# )?", " ", text)


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    """Every relative link leads to a file, and its part after # to a heading of that page."""
    dead = []
    for page, (link, part) in named(LINK):
        path = page.parent / link if link else page
        if "://" in link or (path.exists() and not part):
            continue
        if not path.exists() or part not in map(anchor, headings(path)):
            dead.append(f"{page.name}: {link}#{part}")

    assert [] == dead


def test_named_paths_targets_and_tests_exist() -> None:
    """A path in code quotes, a `make` target and a test named as `file::function` exist."""
    makefile = text_of("Makefile").replace("\\\n", "")
    proofs = re.findall(r"^PROOFS := (.*)", makefile, re.M)
    verbs = re.findall(r"^([a-z-]+):", makefile, re.M) + proofs[0].split()

    assert [] == [path for _, path in named(PATH) if not (ROOT / path).exists()]
    assert [] == [f"{page.name}: {verb}" for page, verb in named(VERB) if verb not in verbs]
    assert [] == [
        f"{page.name}: {file}::{function}"
        for page, (file, function) in named(TEST)
        if not (ROOT / "tests" / file).exists()
        or f"def {function}(" not in text_of(f"tests/{file}")
    ]


def test_code_refers_to_existing_pages_and_sections() -> None:
    """`docs/http.md, "Replay"` needs that page and a heading that starts with these words."""
    lost: list[str] = []
    for name, text in sources():
        for page, part in PAGE.findall(text):
            path = ROOT / page
            if not path.is_file() or not any(one.startswith(part) for one in headings(path)):
                lost.append(f'{name}: {page}, "{part}"')

    assert [] == lost


def test_the_security_table_has_the_rows_of_the_tests() -> None:
    """SECURITY.md has the rules of `scenarios/security/rows.py`; code refers only to its rows."""
    table = re.findall(r"^\| ([A-Z]-\d+) \| (.+) \|$", text_of("SECURITY.md"), re.M)
    referred = {row for _, text in sources() for rows in ROW.findall(text) for row in rows.split()}

    assert {row: rule for row, (rule, _) in ROWS.items()} == dict(table)
    assert [] == [
        n for _, names in ROWS.values() for n in names if not (ROOT / "tests" / n).is_file()
    ]
    assert {row.strip(",") for row in referred} - {"and"} <= set(ROWS)
