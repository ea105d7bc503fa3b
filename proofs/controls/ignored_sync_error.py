"""nsqd with its guard switched off: a sync that failed is taken for good. A control of ioerror.py.

After a failed fdatasync Linux may have dropped what was to be written, and the next one succeeds:
who goes on as if nothing had happened acknowledges what is on no disk.
"""

import sys

from sparq.log.disk import DiskError, RealFile
from sparq.nsqd.main import main

sync = RealFile.sync


def sync_or_not(file: RealFile) -> None:
    """Sync, and hope for the best."""
    try:
        sync(file)
    except DiskError:
        return


if __name__ == "__main__":
    setattr(RealFile, "sync", sync_or_not)  # noqa: B010 - a replacement, which types do not allow
    sys.exit(main())
