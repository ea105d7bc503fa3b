"""nsqd with its guard switched off: nothing is synced, all is left to the kernel. A control.

What a broker does that trusts `write`: a kill does no harm, and a power cut takes what was
acknowledged in the seconds before it.
"""

import sys

from sparq.log.disk import RealDisk, RealFile
from sparq.nsqd.main import main


def no_sync(_file: RealFile) -> None:
    """Say that it is on the disk."""


def no_directory_sync(_disk: RealDisk, _path: str) -> None:
    """Say that the folder's entries are on the disk."""


if __name__ == "__main__":
    setattr(RealFile, "sync", no_sync)  # noqa: B010 - a replacement, which types do not allow
    setattr(RealDisk, "sync_directory", no_directory_sync)  # noqa: B010 - a replacement as well
    sys.exit(main())
