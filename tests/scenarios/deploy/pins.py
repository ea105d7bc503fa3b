"""The packages that a wheel needs with one of its extras, as pinned in `locks/all.txt`.

Their names come from the metadata of the wheel and of the installed packages. Packages that only
development needs are not included.
"""

from __future__ import annotations

import re
import zipfile
from collections import Counter
from collections.abc import Iterable
from email.message import Message
from email.parser import Parser
from importlib.metadata import distribution
from pathlib import Path, PurePath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.scenarios.interop.environments import ROOT

LOCK = ROOT / "locks" / "all.txt"
ROW = re.compile(r"^([\w.-]+)==(?:.*\\\n)*.*\n", re.M)


def metadata(wheel: Path) -> Message:
    """The metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def needed(wheel: Path, extra: str) -> set[str]:
    """The packages that a wheel with an extra depends on."""
    lines = [str(line) for line in metadata(wheel).get_all("Requires-Dist", [])]
    return with_dependencies(applicable(lines, {"", extra}))


def with_dependencies(requirements: Iterable[Requirement]) -> set[str]:
    """These packages and all their dependencies."""
    extras: dict[str, set[str]] = {}
    left = list(requirements)
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        if name in extras and requirement.extras <= extras[name]:
            continue
        extras.setdefault(name, {""}).update(requirement.extras)
        left += applicable(distribution(name).requires or (), extras[name])
    return set(extras)


def applicable(lines: Iterable[str], extras: set[str]) -> list[Requirement]:
    """The requirements that apply to this Python and one of the extras."""
    requirements = [Requirement(line) for line in lines]
    return [
        each
        for each in requirements
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras)
    ]


def rows(names: set[str]) -> str:
    """The lock's lines for these packages, with the hashes."""
    return "".join(
        row[0] for row in ROW.finditer(LOCK.read_text()) if canonicalize_name(row[1]) in names
    )


def link_packages(names: set[str], folder: Path) -> None:
    """Link installed packages into a folder: nothing is downloaded or copied."""
    files = {
        name: [file for file in distribution(name).files or () if is_imported(file)]
        for name in names
    }
    owners = Counter(top for paths in files.values() for top in {file.parts[0] for file in paths})
    for name, paths in files.items():
        # In a folder that several packages share, such as `opentelemetry`, link single files.
        whole = {Path(file.parts[0]) for file in paths if owners[file.parts[0]] == 1}
        single = {Path(file) for file in paths if owners[file.parts[0]] > 1}
        for path in whole | single:
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(Path(str(distribution(name).locate_file(path))))


def is_imported(file: PurePath) -> bool:
    """Whether a file is imported: programs are elsewhere, and compiled files are made as needed."""
    return ".." not in file.parts and "__pycache__" not in file.parts
