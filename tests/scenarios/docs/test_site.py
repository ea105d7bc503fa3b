"""The documentation site has each page; a warning of the generator is an error."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from docs import site

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def mkdocs() -> Path:
    """The generator, from a separate environment."""
    try:
        return site.environment() / "bin" / "mkdocs"
    except subprocess.CalledProcessError:
        shutil.rmtree(site.HOME, ignore_errors=True)
        pytest.skip("needs an index of Python packages")


def built(mkdocs: Path, folder: Path) -> tuple[int, str]:
    """Build the site of the pages in `folder`, below it."""
    config = (ROOT / "docs" / "mkdocs.yml").read_text(encoding="utf-8")
    (folder / "mkdocs.yml").write_text(config.replace("../build/site/", ""), encoding="utf-8")
    return site.build(mkdocs, folder / "mkdocs.yml")


def test_the_site_builds_without_a_warning(mkdocs: Path, tmp_path: Path) -> None:
    """Each page of the repository is in the site; pages can be searched."""
    pages = site.assemble(tmp_path / "pages")
    status, said = built(mkdocs, tmp_path)

    assert status == 0, said
    for page in pages:
        name = page.relative_to(tmp_path / "pages").with_suffix(".html")
        where = "index.html" if name.name == "README.html" else name
        assert (tmp_path / "html" / where).is_file()
    index = json.loads((tmp_path / "html" / "search" / "search_index.json").read_text())
    assert {entry["location"].partition("#")[0] for entry in index["docs"]} >= {
        "docs/protocol.html",
        "GUARANTEES.html",
    }


def test_broken_links_and_missing_pages_are_reported(mkdocs: Path, tmp_path: Path) -> None:
    """A broken anchor, a broken link, and a page missing in the navigation are each reported."""
    site.assemble(tmp_path / "pages")
    lost = {
        "README.md": "[lost](docs/tools.md#no-such-part)",
        "docs/guide.md": "[lost](no_such_page.md)",
        "new_page.md": "# A page that the navigation does not name",
    }
    for name, text in lost.items():
        with (tmp_path / "pages" / name).open("a", encoding="utf-8") as page:
            page.write(f"\n\n{text}\n")

    status, said = built(mkdocs, tmp_path)

    assert status != 0
    assert all(word in said for word in ("no-such-part", "no_such_page.md", "new_page.md"))


def test_a_link_to_a_source_file_becomes_text() -> None:
    """Links to pages and pictures stay; a link to a source file becomes text."""
    page = site.page_of(ROOT / "ARCHITECTURE.md")

    assert "](docs/tour.md)" in page
    assert "](src/" not in page
    assert "![" in site.page_of(ROOT / "README.md")
