"""nsqd without reserved disk space. A control of full.py.

On a full disk FINs cannot be recorded then, and a kill undoes them.
"""

import sys

from sparq.log.reserve import Purpose, Reserve
from sparq.nsqd.main import main


def nothing_to_release(_reserve: Reserve, _size: int, _purpose: Purpose = Purpose.APPEND) -> bool:
    """Do nothing: there is no reserve to shrink."""
    return False


def nothing_to_restore(reserve: Reserve) -> int:
    """Do nothing: there is no reserve to fill; report the free space as it is."""
    return reserve._disk.free_bytes(reserve._directory)


def nothing_to_ask(_reserve: Reserve, _size_bytes: int) -> None:
    """Let logs fill the disk to its last block."""


if __name__ == "__main__":
    setattr(Reserve, "release", nothing_to_release)  # noqa: B010 - a replacement
    setattr(Reserve, "restore", nothing_to_restore)  # noqa: B010 - a replacement as well
    setattr(Reserve, "admit", nothing_to_ask)  # noqa: B010 - a replacement, too
    sys.exit(main())
