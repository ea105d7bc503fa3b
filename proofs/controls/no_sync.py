"""nsqd that syncs nothing and leaves all writes to the kernel. The control of power.py.

A kill does no harm to it; a power cut loses the messages acknowledged in the seconds before.
"""

import sys

from sparq.log.disk import RealDisk, RealFile
from sparq.nsqd.main import main


def no_sync(_file: RealFile) -> None:
    """Report a file as synced."""


def no_directory_sync(_disk: RealDisk, _path: str) -> None:
    """Report a folder as synced."""


if __name__ == "__main__":
    setattr(RealFile, "sync", no_sync)  # noqa: B010 - a replacement, which types do not allow
    setattr(RealDisk, "sync_directory", no_directory_sync)  # noqa: B010 - a replacement as well
    sys.exit(main())
