"""The turns of the event loop around one broker.

A turn (ARCHITECTURE.md, "The turn") runs once after each group of events: all input received so
far is applied, each topic gets one disk write, and only then replies and messages are sent.

An exception in a turn ends the process: what it left undone would never be done, while `/ping` and
clients saw a working nsqd.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from sparq.broker.health import ErrorNote
from sparq.nsqd.disk_threads import DiskThreads, instant
from sparq.options.units import SECOND
from sparq.program.lifecycle import crash

if TYPE_CHECKING:
    from sparq.broker.broker import Broker
    from sparq.broker.session import V2Session


BACKLOG_BYTES_MAX = 64 << 20
"""Limit on publishes not yet on disk, all connections; above it reading pauses."""

INLINE_ROUNDS_MAX = 4
"""A commit in the loop may make another one necessary; after this many rounds the loop goes on."""

TURN_WAITS_NS = 20_000_000
"""How long one client may delay a due turn: the loop may read a socket many times in a row."""

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

logger = logging.getLogger(__name__)


class V2Connection(Protocol):
    """A V2 client's connection, as `Turns` and `Clients` use it; the class is in ``tcp``."""

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
        runner: runs the broker's disk work.
        by_session: the connections by session.
        waiting: connections that have paused reading until a turn resumes it.
        on_changes: called when topics or channels were created or deleted, before a turn's replies.
    """

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        self.broker = broker
        self.loop = loop
        self.runner = DiskThreads(loop, self.take, broker.journal.run)
        self.by_session: dict[V2Session, V2Connection] = {}
        self.waiting: set[V2Connection] = set()
        self.on_changes: Callable[[], None] = broker.changes.clear
        self._is_due = self._stood_still = False
        self._due_ns = self._ended_ns = 0
        self._is_awake = False
        self._short_gaps, self._gaps_wanted = 0, SHORT_GAPS_MIN
        self._tick_due_ns = self.runner.now().mono_ns
        self._tick_timer: asyncio.TimerHandle | None = None

    def schedule(self) -> None:
        """Schedule a turn after the events that are ready now."""
        if not self._is_due:
            self._is_due = True
            self._due_ns = time.monotonic_ns()
            # Not here and now, in `data_received`: commands of ten connections that are ready
            # together would need ten commits instead of one. Tried twice, for at most 19 % more
            # rate with one client.
            self.loop.call_soon(self._wake)

    def is_late(self, mono_ns: int) -> bool:
        """Whether the due turn has waited longer than `TURN_WAITS_NS` while input was read."""
        return self._is_due and mono_ns - self._due_ns > TURN_WAITS_NS

    def is_flooded(self) -> bool:
        """Whether too much data waits for the disk, so that no commands are read."""
        return self.broker.turn.backlog_bytes > BACKLOG_BYTES_MAX

    def _wake(self) -> None:
        """Run the due turn, unless one has run meanwhile."""
        if self._is_due:
            self.take()

    def take(self) -> None:
        """Run a turn now."""
        try:
            self._take()
        except Exception:
            # The rest of the turn is lost: replies, commits, and with them an orderly stop.
            crash("an internal error in a turn ends nsqd")

    async def wait_until_durable(self) -> None:
        """Return when every change made so far is on disk."""
        for _ in range(2):
            self.take()
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

    def _take(self) -> None:
        self._is_due = False
        self._run_tasks()
        if self.broker.turn.changes:
            for what, topic, channel in self.broker.turn.changes:
                text = what if channel is None else f"channel {channel} {what}"
                facts = {"topic": topic, "channel": channel}
                logger.info("TOPIC(%s): %s", topic, text, extra=facts)
            # Before the replies: then nsqlookupd has a new topic before its first OK is read.
            self.on_changes()
        self._flush()
        if self.waiting:
            # A copy: connections that resume leave the set.
            for connection in tuple(self.waiting):
                connection.resume_reading()
        self._follow_up()
        self._stay_awake()

    def _stay_awake(self) -> None:
        """Poll for the next request if the last ones came at short intervals."""
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

    def _flush(self) -> None:
        by_session = self.by_session
        for session in self.broker.take_sessions():
            connection = by_session.get(session)
            if connection is not None:
                connection.flush()
        if self.broker.turn.published:
            for ticket, error in self.broker.take_published():
                ticket.answered(error)

    def _follow_up(self) -> None:
        """Finish the turn: schedule another one, log notes, set the next tick."""
        broker, runner, turn = self.broker, self.runner, self.broker.turn
        if (turn.topics or turn.tasks) and broker.turn.is_busy:
            self.schedule()
        if turn.health.notes:
            for note in turn.health.notes:
                is_error = isinstance(note, ErrorNote)
                logger.log(logging.ERROR if is_error else logging.WARNING, "%s", note)
            turn.health.notes.clear()
        # Something due earlier moves the tick: a deferral of 20 ms once waited for the regular tick
        # and was 40 ms late in the median, now 2.
        due_ns = broker.next_due_ns()
        if due_ns < self._tick_due_ns - TICK_SLACK_NS:
            self._tick_sooner(due_ns)
        if runner.barriers:
            runner.open_barriers()

    # Time

    def stop(self) -> None:
        """Stop the tick timer."""
        if self._tick_timer is not None:
            self._tick_timer.cancel()

    def tick(self) -> None:
        """Apply what is due, and set the timer for the next tick."""
        try:
            self._run_tick()
        except Exception:
            crash("an internal error in a timer ends nsqd")

    def _run_tick(self) -> None:
        now = self.runner.now()
        delay = TICK_SECONDS_MAX
        # Never twice in a row: an nsqd that is late for every tick must still apply timeouts.
        self._stood_still = not self._stood_still and now.mono_ns - self._tick_due_ns > STALL_NS
        # After a standstill, read what clients sent meanwhile before any timeout is applied.
        if not self._stood_still:
            next_ns = self.broker.tick(now)
            if next_ns is not None:
                delay = min(delay, max(TICK_SECONDS_MIN, (next_ns - now.mono_ns) / SECOND))
        self._set_tick(now.mono_ns, delay)
        self.schedule()

    def _tick_sooner(self, due_ns: int) -> None:
        """Move the next tick forward for something due earlier, such as a short deferral."""
        # After a standstill the next tick is not moved: clients are read before it.
        if self._tick_timer is None or self._stood_still:
            return
        now_ns = self.runner.now().mono_ns
        delay = max(TICK_SECONDS_MIN, (due_ns - now_ns) / SECOND)
        # Overdue work must not postpone the tick from turn to turn.
        if now_ns + int(delay * SECOND) < self._tick_due_ns - TICK_SLACK_NS:
            self._tick_timer.cancel()
            self._set_tick(now_ns, delay)

    def _set_tick(self, now_ns: int, delay: float) -> None:
        self._tick_due_ns = now_ns + int(delay * SECOND)
        self._tick_timer = self.loop.call_later(delay, self.tick)
