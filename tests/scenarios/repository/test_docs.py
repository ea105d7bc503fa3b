"""Links, paths and make targets that documents name exist.

A sentence about them may still be wrong, but what it refers to exists.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
ANCHOR = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")
PATH = re.compile(r"`((?:src|tests|proofs|bench|docs|locks|examples)/[\w./-]+)`")
VERB = re.compile(r"\bmake ([a-z][a-z-]+)(?=[`\n]| [A-Z]+=|  )")


def named(pattern: re.Pattern[str]) -> list[tuple[Path, str]]:
    return [
        (document, found)
        for document in DOCUMENTS
        for found in pattern.findall(document.read_text(encoding="utf-8"))
    ]


def test_every_relative_link_leads_somewhere() -> None:
    """Every relative link in a document leads to an existing file."""
    links = [(document, link) for document, link in named(LINK) if "://" not in link]
    dead = [
        f"{document.relative_to(ROOT)}: {link}"
        for document, link in links
        if not (document.parent / link).exists()
    ]

    assert [] == dead


def anchor(heading: str) -> str:
    """The anchor that GitHub and site generators make from a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def test_every_anchor_leads_to_a_heading() -> None:
    """Every link `page.md#part` or `#part` is the anchor of a heading in that page."""
    lost = []
    for document in DOCUMENTS:
        for link, part in ANCHOR.findall(document.read_text(encoding="utf-8")):
            page = document.parent / link if link else document
            if "://" in link or page.suffix != ".md" or not page.is_file():
                continue
            headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
            if part not in map(anchor, headings):
                lost.append(f"{document.relative_to(ROOT)}: {link}#{part}")

    assert [] == lost


def test_every_named_path_exists() -> None:
    """Every path in code quotes exists."""
    gone = [
        f"{document.relative_to(ROOT)}: {path}"
        for document, path in named(PATH)
        if not (ROOT / path).exists()
    ]

    assert [] == gone


def test_every_named_target_is_in_the_makefile() -> None:
    """Every `make ...` in a document is a target of the Makefile."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", "")
    proofs = re.search(r"^PROOFS := (.*)", text, re.M)
    verbs = re.findall(r"^([a-z-]+):", text, re.M) + (proofs[1].split() if proofs else [])

    assert [] == [f"{document.name}: {verb}" for document, verb in named(VERB) if verb not in verbs]


@pytest.mark.parametrize(
    "name", ["README", "ARCHITECTURE", "CONTRIBUTING", "CHANGELOG", "GUARANTEES"]
)
def test_each_expected_document_exists(name: str) -> None:
    """The documents that newcomers look for exist and are not empty."""
    assert (ROOT / f"{name}.md").read_text(encoding="utf-8").strip()
