"""nsqd that takes a failed sync for a successful one. A control of ioerror.py.

After a failed fdatasync Linux may have dropped the data, and the next fdatasync succeeds. A broker
that ignores the error acknowledges messages that are on no disk.
"""

import sys

from sparq.log.disk import DiskError, RealFile
from sparq.nsqd.main import main

sync = RealFile.sync


def sync_or_not(file: RealFile) -> None:
    """Sync, and ignore an error."""
    try:
        sync(file)
    except DiskError:
        return


if __name__ == "__main__":
    setattr(RealFile, "sync", sync_or_not)  # noqa: B010 - a replacement, which types do not allow
    sys.exit(main())
