"""The turns of the event loop around one broker, and the threads that do its disk work.

A turn (ARCHITECTURE.md, "The turn") runs once after each group of events: all input received so
far is applied, each topic gets one disk write, and only then replies and messages are sent.

The broker syncs nothing itself: it returns tasks. (It does write ledgers, without a sync, in the
event loop.) A turn runs a quick commit itself; other tasks run in threads: one for commits, two for
reads, one for inspection, one for housekeeping.

1. Tasks of one kind and thread run in the order in which they were submitted. Commits may run in
   any order: they wait only for the disk, and each log has one commit at a time.
2. Finished tasks wait in a queue until the loop's next turn takes them; one wake-up serves all.
3. `barrier()` returns when all tasks submitted before it are done.
4. An exception in a turn or a thread ends the process: what it left undone would never be done,
   while `/ping` and clients saw a working nsqd.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol

from sparq.broker.health import ErrorNote
from sparq.broker.turn import TopicTask
from sparq.log.task import Task, TaskKind
from sparq.nsqd.open_files import COMMITS
from sparq.options.units import SECOND
from sparq.program.lifecycle import crash
from sparq.protocol.instant import Instant

if TYPE_CHECKING:
    from sparq.broker.broker import Broker
    from sparq.broker.session import V2Session

BACKLOG_BYTES_MAX = 64 << 20
"""Limit on publishes not yet on disk, all connections; above it reading pauses."""

INLINE_ROUNDS_MAX = 4
"""A commit in the loop may make another one necessary; after this many rounds the loop goes on."""

TURN_WAITS_NS = 20_000_000
"""How long one client may delay a due turn: the loop may read a socket many times in a row."""

NOT_LATE = sys.maxsize

AWAKE_NS = 100_000
"""How long the loop polls before it sleeps, if requests arrive at shorter gaps than this: a
sleeping core takes as long to wake up as a request takes."""

SHORT_GAPS_MIN = 8
SHORT_GAPS_MAX = 4096
"""Number of short gaps in a row that starts polling; each poll without a request doubles it."""

COMPLETE_POLL_SECONDS = 0.02
"""How often a change that the disk refuses is looked at again."""

TICK_SECONDS_MIN = 0.001
TICK_SECONDS_MAX = 0.1
TICK_SLACK_NS = 1_000_000
"""How late a tick may come; resetting its timer would cost more than this delay."""

STALL_NS = SECOND
"""A timer this late means that the process did not run: it was stopped or had no CPU."""

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

READER_COUNT = 2
PROBE_EVERY = 256
"""After this many commits in the thread, one is tried in the loop again.

Commits in the thread are not measured: without this, one slow sync would keep all later commits in
the thread.
"""

RunTogether = Callable[[list[Task]], Iterator[Sequence[Task]]]
"""Runs waiting tasks together, in any order; yields each group that has finished."""

TO_DISK = (TaskKind.WRITE, TaskKind.COMMIT)

logger = logging.getLogger(__name__)


def instant() -> Instant:
    """Read both clocks: wall time for stored timestamps, monotonic time for timeouts."""
    return Instant(time.time_ns(), time.monotonic_ns())


class V2Connection(Protocol):
    """A V2 client's connection, as `Turns` and `Nsqd` use it; the class is in ``tcp``."""

    def flush(self) -> None:
        """Send the session's pending output from the broker."""

    def resume_reading(self) -> None:
        """Resume reading, unless a limit still forbids it."""

    def close(self) -> None:
        """Close after sending pending output: the client sees a plain disconnect."""

    def abort(self) -> None:
        """Close at once; pending output is dropped."""


class Turns:
    """Run the turns of one broker in its event loop.

    Attributes:
        runner: the threads for the broker's disk work.
        by_session: the connections by session.
        waiting: connections that have paused reading until a turn resumes it.
        on_changes: called when topics or channels were created or deleted, before a turn's replies.
        late_ns: after this time (mono ns) the due turn has waited too long while input was read.
    """

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        self.broker = broker
        self.loop = loop
        self.runner = DiskThreads(loop, self.run_turn, broker.journal.run)
        self.by_session: dict[V2Session, V2Connection] = {}
        self.waiting: set[V2Connection] = set()
        self.on_changes: Callable[[], None] = broker.changes.clear
        self.late_ns = NOT_LATE
        self._is_due = self._stood_still = False
        self._due_ns = self._ended_ns = 0
        self._is_awake = False
        self._short_gaps, self._gaps_wanted = 0, SHORT_GAPS_MIN
        self._tick_due_ns = instant().mono_ns
        self._tick_timer: asyncio.TimerHandle | None = None

    def schedule(self) -> None:
        """Schedule a turn after the events that are ready now."""
        if not self._is_due:
            self._is_due = True
            self._due_ns = time.monotonic_ns()
            self.late_ns = self._due_ns + TURN_WAITS_NS
            # Not here and now, in `data_received`: commands of ten connections that are ready
            # together would need ten commits instead of one. Tried twice, for at most 19 % more
            # rate with one client.
            self.loop.call_soon(self.run_turn)

    def run_turn(self) -> None:
        """Run the due turn, unless one has run meanwhile."""
        if not self._is_due and not self.runner.finished:
            return
        self._is_due, self.late_ns = False, NOT_LATE
        try:
            self._run_tasks()
            self._send_output()
            self._follow_up()
        except Exception:
            # The rest of the turn is lost: replies, commits, and with them an orderly stop.
            crash("an internal error in a turn ends nsqd")

    async def wait_until_durable(self) -> None:
        """Return when every change made so far is on disk."""
        for _ in range(2):
            self._is_due = True
            self.run_turn()
            # A sync already in progress may have started before the change, so wait for the next
            # one, too. Without any, the turn has done all work itself.
            if not await self.runner.barrier() and not self._is_due:
                return

    async def wait_until_complete(self, topic: str) -> None:
        """Return when no change of a topic waits for the disk."""
        await self.wait_until_durable()
        # A seek by time first reads, and then writes.
        while self.broker.not_durable_reason(topic) is not None:
            await self.wait_until_durable()
            await asyncio.sleep(COMPLETE_POLL_SECONDS)

    # Steps of a turn

    def _run_tasks(self) -> None:
        """Take over finished tasks; run the next ones here, or submit them to threads."""
        broker, runner = self.broker, self.runner
        now = instant()
        if runner.finished:
            for task in runner.take_finished():
                task.finish(now)
        for _ in range(INLINE_ROUNDS_MAX):
            tasks = broker.end_turn(now)
            if not tasks:
                break
            if not runner.may_run_inline(tasks, broker.turn.backlog_bytes):
                runner.submit(tasks)
                break
            now = runner.run_inline(tasks)
            for task in tasks:
                task.finish(now)
        else:
            self.schedule()

    def _send_output(self) -> None:
        """Report changes to nsqlookupd, send replies and messages, and resume paused readers."""
        broker, turn = self.broker, self.broker.turn
        if turn.changes:
            for what, topic, channel in turn.changes:
                text = what if channel is None else f"channel {channel} {what}"
                facts = {"topic": topic, "channel": channel}
                logger.info("TOPIC(%s): %s", topic, text, extra=facts)
            # Before the replies: then nsqlookupd has a new topic before its first OK is read.
            self.on_changes()
        by_session = self.by_session
        for session in broker.take_sessions():
            connection = by_session.get(session)
            if connection is not None:
                connection.flush()
        if turn.published:
            for ticket, error in broker.take_published():
                ticket.answered(error)
        if self.waiting:
            # A copy: connections that resume leave the set.
            for connection in tuple(self.waiting):
                connection.resume_reading()

    def _follow_up(self) -> None:
        """Schedule another turn if one is needed, log notes, set the next tick, stay awake."""
        turn = self.broker.turn
        if (turn.topics or turn.tasks) and turn.is_busy:
            self.schedule()
        if turn.health.notes:
            for note in turn.health.notes:
                is_error = isinstance(note, ErrorNote)
                logger.log(logging.ERROR if is_error else logging.WARNING, "%s", note)
            turn.health.notes.clear()
        # Something due earlier moves the tick: a deferral of 20 ms once waited for the regular tick
        # and was 40 ms late in the median, now 2.
        if turn.due_ns < self._tick_due_ns - TICK_SLACK_NS:
            self._tick_sooner(turn.due_ns)
        if self.runner.barriers:
            self.runner.open_barriers()
        # Polling pays only between requests in quick succession: it gave 1.47 of the rate of PUBs
        # one at a time where cores wake up slowly. A first version polled whenever the last event
        # was less than 400 us ago; at 1,000 messages per second that cost 605 us of CPU per message
        # instead of 370.
        gap_ns = self._due_ns - self._ended_ns
        self._ended_ns = time.monotonic_ns()
        if gap_ns > AWAKE_NS:
            self._short_gaps = 0
        elif self._is_awake:
            self._gaps_wanted = SHORT_GAPS_MIN
        elif self._short_gaps < self._gaps_wanted:
            self._short_gaps += 1
        else:
            self._is_awake = True
            self.loop.call_soon(self._poll)

    def _poll(self) -> None:
        """Keep the loop polling until `AWAKE_NS` after the last turn."""
        if time.monotonic_ns() - self._ended_ns < AWAKE_NS:
            self.loop.call_soon(self._poll)
            return
        self._is_awake = False
        self._short_gaps = 0
        self._gaps_wanted = min(2 * self._gaps_wanted, SHORT_GAPS_MAX)

    # Time

    def stop(self) -> None:
        """Stop the tick timer."""
        if self._tick_timer is not None:
            self._tick_timer.cancel()

    def tick(self) -> None:
        """Apply what is due, and set the timer for the next tick."""
        now = instant()
        delay = TICK_SECONDS_MAX
        # Never twice in a row: an nsqd that is late for every tick must still apply timeouts.
        self._stood_still = not self._stood_still and now.mono_ns - self._tick_due_ns > STALL_NS
        # After a standstill, read what clients sent meanwhile before any timeout is applied.
        if not self._stood_still:
            try:
                next_ns = self.broker.tick(now)
            except Exception:
                crash("an internal error in a timer ends nsqd")
            if next_ns is not None:
                delay = min(delay, max(TICK_SECONDS_MIN, (next_ns - now.mono_ns) / SECOND))
        self._set_tick(now.mono_ns, delay)
        self.schedule()

    def _tick_sooner(self, due_ns: int) -> None:
        """Move the next tick forward for something due earlier, such as a short deferral."""
        # After a standstill the next tick is not moved: clients are read before it.
        if self._tick_timer is None or self._stood_still:
            return
        now_ns = instant().mono_ns
        delay = max(TICK_SECONDS_MIN, (due_ns - now_ns) / SECOND)
        # Overdue work must not postpone the tick from turn to turn.
        if now_ns + int(delay * SECOND) < self._tick_due_ns - TICK_SLACK_NS:
            self._tick_timer.cancel()
            self._set_tick(now_ns, delay)

    def _set_tick(self, now_ns: int, delay: float) -> None:
        self._tick_due_ns = now_ns + int(delay * SECOND)
        self._tick_timer = self.loop.call_later(delay, self.tick)


class Worker:
    """A thread that runs numbered tasks, and reports each one when it is done.

    It takes all that wait at a time, so that `run` may run them together. Not more: a task that
    comes later would delay those that are here.
    """

    def __init__(
        self, name: str, report: Callable[[int, TopicTask], None], run: RunTogether
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


def run_each(tasks: list[Task]) -> Iterator[Sequence[Task]]:
    """Run tasks one by one."""
    for task in tasks:
        task.run()
        yield [task]


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
        self._run_together = run_together
        sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
        self._committer = Worker("nsqd-commit", self._from_thread, self._run_commits)
        self._readers = deque(
            Worker(f"nsqd-read-{number}", self._from_thread, run_each)
            for number in range(READER_COUNT)
        )
        self._inspector = Worker("nsqd-inspect", self._from_thread, run_each)
        self._housekeeper = Worker("nsqd-housekeeping", self._from_thread, run_each)

    def submit(self, tasks: Iterable[TopicTask]) -> None:
        """Queue each task for the thread of its kind."""
        # The loop does not poll until a commit is done: that takes the interpreter from the thread
        # (481 us to the answer instead of 441).
        for topic_task in tasks:
            self._submitted += 1
            self._outstanding[self._submitted] = None
            kind, worker = topic_task.task.kind, self._housekeeper
            if kind in TO_DISK:
                self._commits_outstanding += 1
                self._commits_since_probe += 1
                worker = self._committer
            elif kind is TaskKind.READ:
                worker = self._readers[0]
                self._readers.rotate()
            elif kind is TaskKind.INSPECT:
                worker = self._inspector
            worker.put(self._submitted, topic_task)

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
        if len(tasks) == 1 and tasks[0].task.kind is TaskKind.COMMIT:
            return backlog_bytes <= INLINE_BYTES_MAX and (
                self._recent_commit_seconds < INLINE_SYNC_SECONDS
                or self._commits_since_probe >= PROBE_EVERY
            )
        return backlog_bytes <= INLINE_WRITE_BYTES_MAX and all(
            topic_task.task.kind is TaskKind.WRITE for topic_task in tasks
        )

    def run_inline(self, tasks: list[TopicTask]) -> Instant:
        """Run a turn's commits in the loop (a thread's round trip costs more than a fast sync).

        Returns:
            The time after the last one.
        """
        ended_ns = 0
        for topic_task in tasks:
            task = topic_task.task
            began_ns = time.monotonic_ns()
            task.run()
            ended_ns = time.monotonic_ns()
            seconds = (ended_ns - began_ns) / SECOND
            COMMITS.observe(seconds)
            if task.kind is TaskKind.COMMIT:
                # Commits in the thread are not measured; PROBE_EVERY brings one back to the loop.
                self._recent_commit_seconds = 0.8 * self._recent_commit_seconds + 0.2 * seconds
                self._commits_since_probe = 0
        return Instant(time.time_ns(), ended_ns)

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

    def _run_commits(self, tasks: list[Task]) -> Iterator[Sequence[Task]]:
        """Run commits together, and count how long each group of them takes."""
        began = time.perf_counter()
        for ran in self._run_together(tasks):
            ended = time.perf_counter()
            COMMITS.observe(ended - began)
            began = ended
            yield ran

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
