"""Builds the documentation as a site with search: `make site`; open build/site/html/index.html.

The pages are those of the repository, copied where MkDocs wants them: below one folder, with their
links to each other as they are. A link to anything else, such as a source file, becomes its text,
since the site does not have that file. A warning of MkDocs is an error.

MkDocs and its theme are no part of sparq's environment: pip installs what
docs/requirements-site.txt pins into .venvs/site.
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
    """Copy the pages and pictures below `target`, which is emptied; returns the pages."""
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
    """A page's text, in which links lead only to pages and pictures of the site."""

    def link(found: re.Match[str]) -> str:
        where = found[3]
        if not where or "://" in where or is_in_site((source.parent / where).resolve()):
            return found[0]
        return found[2]

    return LINK.sub(link, source.read_text(encoding="utf-8"))


def is_in_site(path: Path) -> bool:
    """Whether the site has a file of the repository."""
    return path.is_file() and any(path in ROOT.glob(pattern) for pattern in PAGES)


def environment() -> Path:
    """The environment of MkDocs; see `locks/environment.py`."""
    return environments.environment("site", LOCK)


def build(mkdocs: Path, config: Path) -> tuple[int, str]:
    """Run MkDocs; returns its exit status, not 0 after a warning, and what it printed.

    Not with `--quiet`, with which MkDocs does not count warnings, so that `--strict` says nothing.
    """
    command = [str(mkdocs), "build", "--strict", "-f", str(config)]
    # The theme prints news about itself, above which a warning would be overlooked.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "NO_COLOR": "1"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def main() -> int:
    """Build the site; returns MkDocs' exit status."""
    mkdocs = environment() / "bin" / "mkdocs"
    assemble(BUILD / "pages")
    status, said = build(mkdocs, HERE / "mkdocs.yml")
    print(said if status else (BUILD / "html" / "index.html").relative_to(ROOT))
    return status


if __name__ == "__main__":
    sys.exit(main())
