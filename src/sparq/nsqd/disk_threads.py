"""Run the broker's disk work in threads, and bring the results back into the event loop.

The broker syncs nothing itself: it returns tasks. (It does write ledgers, without a sync, in the
event loop.) This module owns the threads that run them (one for commits, two for reads, one for
inspection, one for housekeeping) and decides when a commit may run in the event loop itself.

1. Tasks of one kind and thread run in the order in which they were submitted. Commits may run in
   any order: they wait only for the disk, and each log has one commit at a time.
2. Finished tasks wait in a queue until the loop's next turn takes them; one wake-up serves all.
3. `barrier()` returns when all tasks submitted before it are done.
4. An exception in a thread ends the process: its task would never be done.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from queue import SimpleQueue

from sparq.broker.turn import TopicTask
from sparq.log.task import Task, TaskKind
from sparq.nsqd.open_files import COMMITS
from sparq.options.units import SECOND
from sparq.program.lifecycle import crash
from sparq.protocol.instant import Instant

SWITCH_INTERVAL_SECONDS = 0.0005
"""A thread that returns from the disk waits at most this long for the interpreter (the GIL).

Python's default, 5 ms, is longer than a sync on a quick disk.
"""

# 10 ms was tried, with 2 ms added to each sync: 60 us less CPU, but 378 publishes per second either
# way, and the loop would be blocked.
INLINE_SYNC_SECONDS = 0.002
"""A commit with a sync runs in the loop only while recent commits took less than this."""

INLINE_BYTES_MAX = 32 << 10
"""Larger commits run in a thread, so that the loop can read publishers meanwhile."""

INLINE_WRITE_BYTES_MAX = 256 << 10
INLINE_WRITES_MAX = 8
"""Up to this many writes without a sync cost less in the loop than the round trip to a thread.

With --sync-every=2500 a lone PUB once cost two hand-overs for 10 us of work.
"""

RunTogether = Callable[[list[Task]], Iterator[Sequence[Task]]]
"""Runs waiting tasks together, in any order; yields each group that has finished."""

TO_DISK = (TaskKind.WRITE, TaskKind.COMMIT)

READER_COUNT = 2
PROBE_EVERY = 256
"""After this many commits in the thread, one is tried in the loop again.

Commits in the thread are not measured: without this, one slow sync would keep all later commits in
the thread.
"""


def instant() -> Instant:
    """Read both clocks: wall time for stored timestamps, monotonic time for timeouts."""
    return Instant(time.time_ns(), time.monotonic_ns())


def run_each(tasks: list[Task]) -> Iterator[Sequence[Task]]:
    """Run tasks one by one."""
    for task in tasks:
        task.run()
        yield [task]


def measured(run: RunTogether) -> RunTogether:
    """Return `run` with a note of how long each group of commits took."""

    def run_and_note(tasks: list[Task]) -> Iterator[Sequence[Task]]:
        began = time.perf_counter()
        for ran in run(tasks):
            ended = time.perf_counter()
            COMMITS.observe(ended - began)
            began = ended
            yield ran

    return run_and_note


class Worker:
    """A thread that runs numbered tasks, and reports each one when it is done.

    It takes all that wait at a time, so that `run` may run them together. Not more: a task that
    comes later would delay those that are here.
    """

    def __init__(
        self, name: str, report: Callable[[int, TopicTask], None], run: RunTogether = run_each
    ) -> None:
        # Not `run_in_executor`: it would wake the loop once per task (rule 2), and one task at a
        # time could not share a sync with others.
        self._queue: SimpleQueue[tuple[int, TopicTask] | None] = SimpleQueue()
        self._report = report
        self._run = run
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, number: int, topic_task: TopicTask) -> None:
        """Append a task to the queue."""
        self._queue.put((number, topic_task))

    def stop(self) -> None:
        """Run the queued tasks, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        try:
            ends = False
            while not ends:
                entries: dict[int, tuple[int, TopicTask]] = {}
                while not ends and (not entries or not self._queue.empty()):
                    entry = self._queue.get()
                    if entry is None:
                        ends = True
                    else:
                        entries[id(entry[1].task)] = entry
                for ran in self._run([topic_task.task for _, topic_task in entries.values()]):
                    for task in ran:
                        self._report(*entries[id(task)])
        except Exception:
            # Whoever waits for the task, the stop included, would wait for ever.
            crash("an internal error in a disk thread ends nsqd")


class DiskThreads:
    """The disk threads of one nsqd, and the queue of finished tasks for its event loop.

    Attributes:
        finished: (number, task) of finished tasks that no turn has taken over yet.
        barriers: futures that wait for all tasks up to a number, each with that number.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None], run_together: RunTogether
    ) -> None:
        """`wake` is called in the loop when tasks are done; `run_together` is `Journal.run`."""
        self._loop = loop
        self._wake = wake
        self._is_waking = False
        self.finished: deque[tuple[int, TopicTask]] = deque()
        self._submitted = 0
        # The numbers of tasks that no turn has taken over, in their order.
        self._outstanding: dict[int, None] = {}
        self._commits_outstanding = 0
        self.barriers: list[tuple[int, asyncio.Future[None]]] = []
        self._recent_commit_seconds = 0.0
        self._commits_since_probe = 0
        sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
        self._committer = Worker("nsqd-commit", self._from_thread, measured(run_together))
        self._readers = [Worker(f"nsqd-read-{n}", self._from_thread) for n in range(READER_COUNT)]
        self._inspector = Worker("nsqd-inspect", self._from_thread)
        self._housekeeper = Worker("nsqd-housekeeping", self._from_thread)
        self._next_reader = 0

    def now(self) -> Instant:
        """Return the current time for the broker."""
        return instant()

    def submit(self, tasks: Iterable[TopicTask]) -> None:
        """Queue each task for the thread of its kind."""
        # The loop does not poll until a commit is done: that takes the interpreter from the thread
        # (481 us to the answer instead of 441).
        for topic_task in tasks:
            self._submitted += 1
            self._outstanding[self._submitted] = None
            kind = topic_task.task.kind
            if kind in TO_DISK:
                self._commits_outstanding += 1
                self._commits_since_probe += 1
                self._committer.put(self._submitted, topic_task)
            elif kind is TaskKind.READ:
                self._readers[self._next_reader].put(self._submitted, topic_task)
                self._next_reader = (self._next_reader + 1) % READER_COUNT
            elif kind is TaskKind.INSPECT:
                self._inspector.put(self._submitted, topic_task)
            else:
                self._housekeeper.put(self._submitted, topic_task)

    def may_run_inline(self, tasks: list[TopicTask], backlog_bytes: int) -> bool:
        """Whether this turn's tasks are quick enough to run in the loop.

        A few writes without a sync always are. One commit with a sync is, as long as the disk is
        fast.

        Args:
            tasks: the tasks of this turn.
            backlog_bytes: size of all publishes not yet on disk.
        """
        # All commits in the loop would cost less CPU on a quick disk, but a slow one would block
        # the loop. A rule that considered only the time of recent commits
        # was not enough: on a busy disk, commits never came back from the thread, so the size
        # counts, too.
        if self._commits_outstanding or len(tasks) > INLINE_WRITES_MAX:
            return False
        if all(topic_task.task.kind is TaskKind.WRITE for topic_task in tasks):
            return backlog_bytes <= INLINE_WRITE_BYTES_MAX
        return (
            len(tasks) == 1
            and tasks[0].task.kind is TaskKind.COMMIT
            and backlog_bytes <= INLINE_BYTES_MAX
            and (
                self._recent_commit_seconds < INLINE_SYNC_SECONDS
                or self._commits_since_probe >= PROBE_EVERY
            )
        )

    def run_inline(self, tasks: list[TopicTask]) -> Instant:
        """Run a turn's commits in the loop (a thread's round trip costs more than a fast sync).

        Returns:
            The time after the last one.
        """
        now = instant()
        for topic_task in tasks:
            task = topic_task.task
            kind = task.kind
            task.run()
            began, now = now, instant()
            seconds = (now.mono_ns - began.mono_ns) / SECOND
            COMMITS.observe(seconds)
            if kind is TaskKind.COMMIT:
                # Commits in the thread are not measured; PROBE_EVERY brings one back to the loop.
                self._recent_commit_seconds = 0.8 * self._recent_commit_seconds + 0.2 * seconds
                self._commits_since_probe = 0
        return now

    def take_finished(self) -> list[TopicTask]:
        """Return the tasks that threads have finished since the last call."""
        finished = self.finished
        tasks: list[TopicTask] = []
        while finished:
            # Threads append meanwhile; a deque's `append` and `popleft` are atomic, so there is no
            # lock.
            number, topic_task = finished.popleft()
            del self._outstanding[number]
            if topic_task.task.kind in TO_DISK:
                self._commits_outstanding -= 1
            tasks.append(topic_task)
        return tasks

    def open_barriers(self) -> None:
        """Resolve the barriers whose tasks have all been taken over."""
        oldest = next(iter(self._outstanding), self._submitted + 1)
        for last, future in self.barriers:
            if last < oldest and not future.done():
                future.set_result(None)
        self.barriers = [barrier for barrier in self.barriers if barrier[0] >= oldest]

    async def barrier(self) -> bool:
        """Wait until all tasks submitted so far are done; return whether there were any."""
        if not self._outstanding:
            return False
        future = self._loop.create_future()
        self.barriers.append((self._submitted, future))
        await future
        return True

    def stop(self) -> None:
        """Finish all queued tasks and end the threads. It blocks: do not call it in the loop."""
        for worker in (self._committer, *self._readers, self._inspector, self._housekeeper):
            worker.stop()

    def _from_thread(self, number: int, topic_task: TopicTask) -> None:
        # The task first, then the flag: if the flag is set, the pending call will find this task.
        # Two threads may both see the flag unset; that costs a second call and no lock.
        self.finished.append((number, topic_task))
        # One call wakes the loop for all tasks done by then. A closed loop needs no wake-up.
        if not self._is_waking and not self._loop.is_closed():
            self._is_waking = True
            self._loop.call_soon_threadsafe(self._woken)

    def _woken(self) -> None:
        # Reset the flag only here: while it is set, this call is still pending. It used to be reset
        # where tasks are taken over, too. If a turn did that after a thread had added its task but
        # before the thread set the flag, the flag stayed set: no thread woke the loop any more, and
        # results waited until the next tick.
        self._is_waking = False
        self._wake()
