"""Builds the documentation as a site with search: `make site`; open build/site/html/index.html.

The pages of the repository are copied to one folder, as MkDocs requires. Links between pages stay;
a link to another file, such as a source file, is replaced by its text, since the site does not have
that file. A warning of MkDocs is an error.

MkDocs and its theme are not in sparq's environment: pip installs the versions pinned in
docs/requirements-site.txt into .venvs/site.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from locks import environment as environments

HERE = Path(__file__).parent
ROOT = HERE.parent
BUILD = ROOT / "build" / "site"
HOME = environments.ENVIRONMENTS / "site"
LOCK = HERE / "requirements-site.txt"
PAGES = ("*.md", "docs/*.md", "docs/*.png")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#\s]*)(#[^)\s]*)?\)")


def assemble(target: Path) -> list[Path]:
    """Empty `target`, copy the pages and pictures to it, and return the pages."""
    shutil.rmtree(target, ignore_errors=True)
    pages: list[Path] = []
    for pattern in PAGES:
        for source in sorted(ROOT.glob(pattern)):
            copy = target / source.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if source.suffix == ".md":
                copy.write_text(page_of(source), encoding="utf-8")
                pages.append(copy)
            else:
                shutil.copy(source, copy)
    return pages


def page_of(source: Path) -> str:
    """A page's text, with links only to pages and pictures of the site and to other sites."""

    def link(found: re.Match[str]) -> str:
        where = found[3]
        if not where or "://" in where or is_in_site((source.parent / where).resolve()):
            return found[0]
        return found[2]

    return LINK.sub(link, source.read_text(encoding="utf-8"))


def is_in_site(path: Path) -> bool:
    """Whether the site contains a file of the repository."""
    return path.is_file() and any(path in ROOT.glob(pattern) for pattern in PAGES)


def environment() -> Path:
    """The path of MkDocs' virtual environment; see `locks/environment.py`."""
    return environments.environment("site", LOCK)


def build(mkdocs: Path, config: Path) -> tuple[int, str]:
    """Run MkDocs; return its exit status, which is not 0 after a warning, and its output.

    With `--quiet` MkDocs does not count warnings, and `--strict` has no effect.
    """
    command = [str(mkdocs), "build", "--strict", "-f", str(config)]
    # Otherwise the theme prints news about itself, and a warning would be easy to miss.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "NO_COLOR": "1"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def main() -> int:
    """Build the site; return MkDocs' exit status."""
    mkdocs = environment() / "bin" / "mkdocs"
    assemble(BUILD / "pages")
    status, said = build(mkdocs, HERE / "mkdocs.yml")
    print(said if status else (BUILD / "html" / "index.html").relative_to(ROOT))
    return status


if __name__ == "__main__":
    sys.exit(main())
