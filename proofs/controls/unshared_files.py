"""nsqd that shares its open files out to nobody. The control of fds.py.

Connections may take all of the process's files, and a log that needs one more finds none and closes
none of its own: what a broker does that has not thought of it.
"""

import sys

from sparq.daemon import files
from sparq.nsqd.main import main
from sparq.nsqd.open_files import OpenFiles


def nobody_is_bounded(_limit: int) -> files.FileShares:
    """Whoever comes first has them all."""
    return files.FileShares(files.UNLIMITED, files.UNLIMITED, files.UNLIMITED)


def close_none(_files: OpenFiles) -> bool:
    """What is open stays open."""
    return False


if __name__ == "__main__":
    setattr(files, "shares", nobody_is_bounded)  # noqa: B010 - a replacement, as types forbid it
    setattr(OpenFiles, "_shut_one", close_none)  # noqa: B010 - a replacement as well
    sys.exit(main())
