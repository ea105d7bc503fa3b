"""The documents, checked: what they point to is there.

A link, a path in the tree or a verb of the Makefile that a document names must exist; a sentence
about it may still be wrong, but its subject is not gone.
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
    """A link to a file of the project leads to a file that is there."""
    links = [(document, link) for document, link in named(LINK) if "://" not in link]
    dead = [
        f"{document.relative_to(ROOT)}: {link}"
        for document, link in links
        if not (document.parent / link).exists()
    ]

    assert [] == dead


def anchor(heading: str) -> str:
    """The anchor that GitHub and the generators of sites make of a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def test_every_anchor_leads_to_a_heading() -> None:
    """`page.md#part`, or `#part` in the page itself, is the anchor of a heading there."""
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
    """A path in code quotes is a path of the tree."""
    gone = [
        f"{document.relative_to(ROOT)}: {path}"
        for document, path in named(PATH)
        if not (ROOT / path).exists()
    ]

    assert [] == gone


def test_every_named_verb_is_in_the_makefile() -> None:
    """`make something` in a document is a verb that the Makefile has."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", "")
    proofs = re.search(r"^PROOFS := (.*)", text, re.M)
    verbs = re.findall(r"^([a-z-]+):", text, re.M) + (proofs[1].split() if proofs else [])

    assert [] == [f"{document.name}: {verb}" for document, verb in named(VERB) if verb not in verbs]


@pytest.mark.parametrize(
    "name", ["README", "ARCHITECTURE", "CONTRIBUTING", "CHANGELOG", "GUARANTEES"]
)
def test_the_document_is_there(name: str) -> None:
    """The documents that a newcomer looks for exist and are not empty."""
    assert (ROOT / f"{name}.md").read_text(encoding="utf-8").strip()
