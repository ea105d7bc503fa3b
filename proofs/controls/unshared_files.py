"""nsqd that does not divide its open files among logs and clients. The control of fds.py.

Connections may take all open files of the process. A log that needs another one finds none, and
closes none of its own.
"""

import sys

from sparq.daemon import files
from sparq.nsqd.main import main
from sparq.nsqd.open_files import OpenFiles


def unlimited_shares(_limit: int) -> files.FileShares:
    """Give all open files to whoever needs them first."""
    return files.FileShares(files.UNLIMITED, files.UNLIMITED, files.UNLIMITED)


def close_none(_files: OpenFiles) -> bool:
    """Close nothing."""
    return False


if __name__ == "__main__":
    setattr(files, "shares", unlimited_shares)  # noqa: B010 - a replacement, as types forbid it
    setattr(OpenFiles, "_shut_one", close_none)  # noqa: B010 - a replacement as well
    sys.exit(main())
