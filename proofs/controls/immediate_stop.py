"""nsqd that ends at once when it is told to stop. A control of term.py.

A stop must wait for the writes that its threads have been given. But if an OK leaves only after its
write, an immediate end loses nothing. So this nsqd also has the commits of late_commit.py, which an
orderly stop would still write.
"""

import os
import sys

from proofs.controls.late_commit import LateCommitter, never_inline
from sparq.nsqd import disk_threads
from sparq.nsqd.main import main
from sparq.nsqd.server import Nsqd


async def end_at_once(_nsqd: Nsqd) -> None:
    """End without waiting for anything."""
    os._exit(0)


if __name__ == "__main__":
    setattr(disk_threads, "Committer", LateCommitter)  # noqa: B010 - for mypy
    setattr(disk_threads.DiskThreads, "may_run_inline", never_inline)  # noqa: B010 - the same
    setattr(Nsqd, "stop", end_at_once)  # noqa: B010 - the same
    sys.exit(main())
