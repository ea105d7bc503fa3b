"""nsqd that sends every OK before its write. The control of kill.py.

A proof that no message is lost has value only if it fails where messages are lost. In this nsqd a
disk thread reports a commit as done first, and runs it a moment later.
"""

import sys
import time

from sparq.broker.turn import TopicTask
from sparq.log.task import TaskKind
from sparq.nsqd import disk_threads
from sparq.nsqd.main import main

LATE_SECONDS = 0.05


class LateCommitter(disk_threads.Committer):
    """Reports commits before they have run."""

    def _work(self) -> None:
        while (entry := self._queue.get()) is not None:
            number, topic_task = entry
            if topic_task.task.kind is TaskKind.COMMIT:
                self._report(number, topic_task)
                time.sleep(LATE_SECONDS)
                topic_task.task.run()
            else:
                topic_task.task.run()
                self._report(number, topic_task)


def never_inline(
    _runner: disk_threads.DiskThreads, _tasks: list[TopicTask], _backlog_bytes: int
) -> bool:
    """Never run a commit in the event loop: it would be done before its OK."""
    return False


if __name__ == "__main__":
    setattr(disk_threads, "Committer", LateCommitter)  # noqa: B010 - for mypy
    setattr(disk_threads.DiskThreads, "may_run_inline", never_inline)  # noqa: B010 - the same
    sys.exit(main())
