"""Runs the broker's disk work and brings its results back into the loop.

The broker never waits for a disk: it hands out tasks. This module owns the threads that run them
(one for commits, two that read, one for those who only look, one for housekeeping) and
the rule of when a commit may run in the loop itself.

1. Tasks of one kind and thread run in the order in which they were handed out, but for commits:
   those wait for nobody but the disk, and of one log there is one at a time.
2. Finished tasks wait in a queue until the loop's next turn takes them; one wake-up serves all.
3. `barrier()` returns when everything that was handed out before it is done.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue

from sparq.broker.turn import Task
from sparq.log.task import TaskKind, Work
from sparq.nsqd.timings import COMMITS
from sparq.protocol.instant import Instant

NANOSECONDS = 1_000_000_000

SWITCH_INTERVAL_SECONDS = 0.0005
"""A helper that comes back from the disk waits at most this long for the interpreter."""

INLINE_SYNC_SECONDS = 0.002
"""A commit runs in the loop only while commits have lately taken no longer than this."""

INLINE_BYTES_MAX = 32 << 10
"""Beyond this much to write there are publishers to be read meanwhile: then a thread is better."""

INLINE_WRITE_BYTES_MAX = 256 << 10
INLINE_WRITES_MAX = 8
"""So many writes of one turn, that wait for no disk, are less than what a helper's answer costs."""

RunTogether = Callable[[list[Work]], Iterator[list[Work]]]
"""Runs works that wait together, in any order; yields those that have run."""

TO_DISK = (TaskKind.WRITE, TaskKind.COMMIT)

READER_COUNT = 2
PROBE_EVERY = 256
"""After this many commits through the thread one is tried inline again."""


def instant() -> Instant:
    """The two clocks, read together: wall time for what is stored, monotonic for timeouts."""
    return Instant(time.time_ns(), time.monotonic_ns())


class Worker:
    """One thread that runs numbered tasks in order and reports each when it has run."""

    def __init__(self, name: str, report: Callable[[int, Task], None]) -> None:
        self._queue: SimpleQueue[tuple[int, Task] | None] = SimpleQueue()
        self._report = report
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, number: int, task: Task) -> None:
        """Queue a task behind those that are already there."""
        self._queue.put((number, task))

    def stop(self) -> None:
        """Finish what is queued, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (entry := self._queue.get()) is not None:
            entry[1].work.run()
            self._report(*entry)


class Committer(Worker):
    """The thread that commits: what waits together may share a sync."""

    def __init__(self, name: str, report: Callable[[int, Task], None], run: RunTogether) -> None:
        self._run = run
        super().__init__(name, report)

    def _work(self) -> None:
        while entries := self._waiting():
            by_work = {id(entry[1].work): entry for entry in entries}
            began = time.perf_counter()
            for ran in self._run([task.work for _, task in entries]):
                ended = time.perf_counter()
                COMMITS.observe(ended - began)
                began = ended
                for work in ran:
                    self._report(*by_work[id(work)])

    def _waiting(self) -> list[tuple[int, Task]]:
        """All that waits, at least one task; none: it is time to end."""
        entries: list[tuple[int, Task]] = []
        entry = self._queue.get()
        while entry is not None:
            entries.append(entry)
            if self._queue.empty():
                return entries
            entry = self._queue.get()
        if entries:
            self._queue.put(None)
        return entries


class Barrier:
    """Waits for the tasks that were handed out before it, and for no later one."""

    def __init__(self, last_number: int, waiting_for: int, future: asyncio.Future[None]) -> None:
        self._last_number = last_number
        self._waiting_for = waiting_for
        self._future = future

    def finished(self, number: int) -> None:
        """Note that a task is done."""
        if number <= self._last_number:
            self._waiting_for -= 1

    def open(self) -> bool:
        """Let who waits go on, if all those tasks are done; whether they are."""
        if self._waiting_for == 0 and not self._future.done():
            self._future.set_result(None)
        return self._waiting_for == 0


class Runner:
    """The threads of one nsqd, and the way back into its loop.

    Attributes:
        finished: (number, task) of what has run and has not been taken over.
        barriers: those who wait for what was handed out before them.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None], run_together: RunTogether
    ) -> None:
        """`wake` is called in the loop when tasks are done; `run_together` is `Journal.run`."""
        self._loop = loop
        self._wake = wake
        self._is_waking = False
        self.finished: deque[tuple[int, Task]] = deque()
        self._submitted = 0
        self._outstanding = 0
        self._commits_outstanding = 0
        self.barriers: list[Barrier] = []
        self._recent_commit_seconds = 0.0
        self._commits_since_probe = 0
        sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
        self._committer = Committer("nsqd-commit", self._from_thread, run_together)
        self._readers = [Worker(f"nsqd-read-{n}", self._from_thread) for n in range(READER_COUNT)]
        self._inspector = Worker("nsqd-inspect", self._from_thread)
        self._housekeeper = Worker("nsqd-housekeeping", self._from_thread)
        self._next_reader = 0

    def now(self) -> Instant:
        """The time that the broker is told."""
        return instant()

    def submit(self, tasks: Iterable[Task]) -> None:
        """Hand tasks to the thread of their kind."""
        for task in tasks:
            self._submitted += 1
            self._outstanding += 1
            kind = task.work.kind
            if kind in TO_DISK:
                self._commits_outstanding += 1
                self._commits_since_probe += 1
                self._committer.put(self._submitted, task)
            elif kind is TaskKind.READ:
                self._readers[self._next_reader].put(self._submitted, task)
                self._next_reader = (self._next_reader + 1) % READER_COUNT
            elif kind is TaskKind.INSPECT:
                self._inspector.put(self._submitted, task)
            else:
                self._housekeeper.put(self._submitted, task)

    def may_run_inline(self, tasks: list[Task], backlog_bytes: int) -> bool:
        """Whether this turn's work is a quick commit that nobody else would wait behind.

        A few writes without a sync always are; one commit with it as long as the disk is quick.

        Args:
            tasks: what the turn has come to.
            backlog_bytes: all publishes that are not on disk yet.
        """
        if self._commits_outstanding or len(tasks) > INLINE_WRITES_MAX:
            return False
        for task in tasks:
            if task.work.kind is not TaskKind.WRITE:
                break
        else:
            return backlog_bytes <= INLINE_WRITE_BYTES_MAX
        return (
            len(tasks) == 1
            and tasks[0].work.kind is TaskKind.COMMIT
            and backlog_bytes <= INLINE_BYTES_MAX
            and (
                self._recent_commit_seconds < INLINE_SYNC_SECONDS
                or self._commits_since_probe >= PROBE_EVERY
            )
        )

    def run_inline(self, tasks: list[Task]) -> Instant:
        """Run a turn's commits here and now (a helper's answer costs more than a fast sync).

        Returns:
            The time when they have run.
        """
        now = instant()
        for task in tasks:
            work = task.work
            kind = work.kind
            work.run()
            began, now = now, instant()
            seconds = (now.mono_ns - began.mono_ns) / NANOSECONDS
            COMMITS.observe(seconds)
            if kind is TaskKind.COMMIT:
                self._recent_commit_seconds = 0.8 * self._recent_commit_seconds + 0.2 * seconds
                self._commits_since_probe = 0
        return now

    def take_finished(self) -> list[Task]:
        """The tasks that threads have run since last asked."""
        finished = self.finished
        tasks: list[Task] = []
        while finished:
            number, task = finished.popleft()
            self._outstanding -= 1
            if task.work.kind in TO_DISK:
                self._commits_outstanding -= 1
            for barrier in self.barriers:
                barrier.finished(number)
            tasks.append(task)
        return tasks

    def open_barriers(self) -> None:
        """Let those go on who have waited for tasks that are taken over now."""
        self.barriers = [barrier for barrier in self.barriers if not barrier.open()]

    async def barrier(self) -> None:
        """Return when all that was handed out so far is done."""
        if self._outstanding:
            future = self._loop.create_future()
            self.barriers.append(Barrier(self._submitted, self._outstanding, future))
            await future

    def stop(self) -> None:
        """Let the threads finish what they have and end them. The loop must not wait on them."""
        for worker in (self._committer, *self._readers, self._inspector, self._housekeeper):
            worker.stop()

    def _from_thread(self, number: int, task: Task) -> None:
        self.finished.append((number, task))
        # One call wakes the loop for all that is done by then. A loop that is already closed has
        # nobody left to tell.
        if not self._is_waking and not self._loop.is_closed():
            self._is_waking = True
            self._loop.call_soon_threadsafe(self._woken)

    def _woken(self) -> None:
        # Here alone: while it is set, this call is still to come. It was taken back where tasks are
        # taken over, too. A turn that did so after a thread had added its task, and before that had
        # set it, left it set for good: then no thread woke the loop any more, until the next tick.
        self._is_waking = False
        self._wake()
