"""The generated pages are current, the public API is documented, and the site builds."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from docs import reference, site

from tests.scenarios.docs.pages import ROOT, text_of


@pytest.mark.parametrize("name", reference.PAGES)
def test_the_reference_pages_are_current(name: str) -> None:
    """`make docs` would write the same page."""
    assert reference.PAGES[name]() == text_of(f"docs/{name}"), f"{name}: run 'make docs'"


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Each page of the repository is in the site, without a broken link or anchor."""
    try:
        mkdocs = site.environment() / "bin" / "mkdocs"
    except subprocess.CalledProcessError:
        shutil.rmtree(site.HOME, ignore_errors=True)
        pytest.skip("needs an index of Python packages")
    pages = site.assemble(tmp_path / "pages")
    config = (ROOT / "docs" / "mkdocs.yml").read_text(encoding="utf-8")
    (tmp_path / "mkdocs.yml").write_text(config.replace("../build/site/", ""), encoding="utf-8")

    status, said = site.build(mkdocs, tmp_path / "mkdocs.yml")

    assert status == 0, said
    for page in pages:
        name = page.relative_to(tmp_path / "pages").with_suffix(".html")
        where = "index.html" if name.name == "README.html" else name
        assert (tmp_path / "html" / where).is_file()
    assert (tmp_path / "html" / "search" / "search_index.json").is_file()
