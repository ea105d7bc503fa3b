"""Files that this process has open: an ordinary user may have 1,024 of them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DESCRIPTORS = Path("/proc/self/fd")


def open_files() -> dict[int, str]:
    """What each descriptor of this process stands for."""
    found = {}
    for name in os.listdir(DESCRIPTORS):
        with suppress(OSError):  # the listing's own descriptor
            found[int(name)] = os.readlink(DESCRIPTORS / name)
    return found


@contextmanager
def files_closed_below(folder: Path) -> Iterator[None]:
    """Close what is open below a folder afterwards, as the end of a killed process would."""
    try:
        yield
    finally:
        for descriptor, path in open_files().items():
            if path.startswith(f"{folder}{os.sep}"):
                os.close(descriptor)
