"""nsqd with its guard switched off: told to stop it ends at once, with writes behind their OKs.

A control of term.py. A stop must wait for what its threads have been given. Where an OK leaves only
after its write there is nothing that a hasty end could lose; so this has late_commit.py's commits,
too, which an orderly stop would still bring to the disk.
"""

import os
import sys

from proofs.controls.late_commit import LateCommitter, never_inline
from sparq.nsqd import disk_threads
from sparq.nsqd.main import main
from sparq.nsqd.server import Nsqd


async def end_at_once(_nsqd: Nsqd) -> None:
    """Wait for nothing."""
    os._exit(0)


if __name__ == "__main__":
    setattr(disk_threads, "Committer", LateCommitter)  # noqa: B010 - for mypy
    setattr(disk_threads.DiskThreads, "may_run_inline", never_inline)  # noqa: B010 - the same
    setattr(Nsqd, "stop", end_at_once)  # noqa: B010 - the same
    sys.exit(main())
