"""nsqd in which every commit goes to the journal, and journals are small.

What needs more than four topics with publishes at one moment happens here all the time, also where
a proof has two topics. Nothing is switched off.
"""

import sys

from sparq.broker.turn import Task
from sparq.log import journal
from sparq.nsqd import disk_threads
from sparq.nsqd.main import main

JOURNAL_BYTES = 150_000


def never_inline(
    _runner: disk_threads.DiskThreads, _tasks: list[Task], _backlog_bytes: int
) -> bool:
    """A commit in the loop is one that shares its sync with nobody."""
    return False


if __name__ == "__main__":
    setattr(journal, "SHARE_MIN", 1)  # noqa: B010 - a replacement, which types do not allow
    setattr(journal, "FILE_BYTES", JOURNAL_BYTES)  # noqa: B010 - the same
    setattr(disk_threads.DiskThreads, "may_run_inline", never_inline)  # noqa: B010 - the same
    sys.exit(main())
