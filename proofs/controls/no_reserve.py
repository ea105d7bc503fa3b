"""nsqd with its guard switched off: no space is kept back. A control of full.py.

On a full disk what is finished can then not be written down, and a kill brings it back.
"""

import sys

from sparq.log.reserve import Purpose, Reserve
from sparq.nsqd.main import main


def nothing_to_release(_reserve: Reserve, _size: int, _purpose: Purpose = Purpose.APPEND) -> bool:
    """There is no spare file to be cut."""
    return False


def nothing_to_restore(reserve: Reserve) -> int:
    """Nor is there one to be filled up again; what is free is told as it is."""
    return reserve._disk.free_bytes(reserve._directory)


def nothing_to_ask(_reserve: Reserve, _size_bytes: int) -> None:
    """Logs take the disk to its last block."""


if __name__ == "__main__":
    setattr(Reserve, "release", nothing_to_release)  # noqa: B010 - a replacement
    setattr(Reserve, "restore", nothing_to_restore)  # noqa: B010 - a replacement as well
    setattr(Reserve, "admit", nothing_to_ask)  # noqa: B010 - a replacement, too
    sys.exit(main())
