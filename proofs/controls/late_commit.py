"""nsqd with its guard switched off: every OK leaves before its write. The control of kill.py.

A proof that nothing is lost is worth something only when it is seen to fail where messages are
lost. This runs the same nsqd, with the commit helper replaced by one that reports a commit as done
first and runs it a moment later, which is what a broker without the guarantee does.
"""

import sys
import time

from sparq.broker.turn import Task
from sparq.log.task import TaskKind
from sparq.nsqd import disk_threads
from sparq.nsqd.main import main

LATE_SECONDS = 0.05


class LateCommitter(disk_threads.Committer):
    """Reports commits before they are run."""

    def _work(self) -> None:
        while (entry := self._queue.get()) is not None:
            number, task = entry
            if task.work.kind is TaskKind.COMMIT:
                self._report(number, task)
                time.sleep(LATE_SECONDS)
                task.work.run()
            else:
                task.work.run()
                self._report(number, task)


def never_inline(
    _runner: disk_threads.DiskThreads, _tasks: list[Task], _backlog_bytes: int
) -> bool:
    """A commit in the loop is a commit in time: none is allowed here."""
    return False


if __name__ == "__main__":
    setattr(disk_threads, "Committer", LateCommitter)  # noqa: B010 - for mypy
    setattr(disk_threads.DiskThreads, "may_run_inline", never_inline)  # noqa: B010 - the same
    sys.exit(main())
