"""What a wheel needs with one of its extras, as `locks/all.txt` pins it.

The names come from the metadata of the wheel, and from that of what is installed here for the
rest: nothing that only the workshop uses is among them.
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
    """What a wheel says of itself."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def needed(wheel: Path, extra: str) -> set[str]:
    """The packages that a wheel with an extra brings along."""
    lines = [str(line) for line in metadata(wheel).get_all("Requires-Dist", [])]
    return brought(asked(lines, {"", extra}))


def brought(requirements: Iterable[Requirement]) -> set[str]:
    """These packages, and what they need in turn."""
    extras: dict[str, set[str]] = {}
    left = list(requirements)
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        if name in extras and requirement.extras <= extras[name]:
            continue
        extras.setdefault(name, {""}).update(requirement.extras)
        left += asked(distribution(name).requires or (), extras[name])
    return set(extras)


def asked(lines: Iterable[str], extras: set[str]) -> list[Requirement]:
    """Those that hold for this Python and one of the extras."""
    requirements = [Requirement(line) for line in lines]
    return [
        each
        for each in requirements
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras)
    ]


def rows(names: set[str]) -> str:
    """What the lock says of these packages, with the hashes."""
    return "".join(
        row[0] for row in ROW.finditer(LOCK.read_text()) if canonicalize_name(row[1]) in names
    )


def lay(names: set[str], folder: Path) -> None:
    """Put installed packages into a folder, as links: nothing is fetched and nothing copied."""
    files = {
        name: [file for file in distribution(name).files or () if is_its(file)] for name in names
    }
    owners = Counter(top for paths in files.values() for top in {file.parts[0] for file in paths})
    for name, paths in files.items():
        # Of a folder that is shared, such as `opentelemetry`, each has its own files.
        whole = {Path(file.parts[0]) for file in paths if owners[file.parts[0]] == 1}
        single = {Path(file) for file in paths if owners[file.parts[0]] > 1}
        for path in whole | single:
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(Path(str(distribution(name).locate_file(path))))


def is_its(file: PurePath) -> bool:
    """Whether it is imported: programs lie elsewhere, and what is compiled is made as needed."""
    return ".." not in file.parts and "__pycache__" not in file.parts
