"""The files that this process has open: a user is usually limited to 1,024."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DESCRIPTORS = Path("/proc/self/fd")


def open_files() -> dict[int, str]:
    """Return each descriptor of this process with the file or socket that it refers to."""
    found = {}
    for name in os.listdir(DESCRIPTORS):
        with suppress(OSError):  # the listing's own descriptor
            found[int(name)] = os.readlink(DESCRIPTORS / name)
    return found


@contextmanager
def files_closed_below(folder: Path) -> Iterator[None]:
    """Close files that are still open below a folder afterwards, as if the process were killed."""
    try:
        yield
    finally:
        for descriptor, path in open_files().items():
            if path.startswith(f"{folder}{os.sep}"):
                os.close(descriptor)
