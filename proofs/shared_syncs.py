"""nsqd in which every commit goes to the journal, and journals are small.

Normally the journal is used only if more than four topics are published to at the same time. Here
that path runs all the time, even in a proof with two topics. No safeguard is switched off.
"""

import sys

from sparq.broker.turn import TopicTask
from sparq.log import journal
from sparq.nsqd import turns
from sparq.nsqd.main import main

JOURNAL_BYTES = 150_000


def never_inline(_runner: turns.DiskThreads, _tasks: list[TopicTask], _backlog_bytes: int) -> bool:
    """Never run a commit in the event loop: such a commit shares its sync with no other."""
    return False


if __name__ == "__main__":
    setattr(journal, "SHARE_MIN", 1)  # noqa: B010 - a replacement, which types do not allow
    setattr(journal, "FILE_BYTES", JOURNAL_BYTES)  # noqa: B010 - the same
    setattr(turns.DiskThreads, "may_run_inline", never_inline)  # noqa: B010 - the same
    sys.exit(main())
