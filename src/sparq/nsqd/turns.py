"""The loop's turns around one broker.

A turn (ARCHITECTURE.md, "The turn") happens once after each group of events: all that
arrived is applied, one write per topic goes to disk, and only then replies and messages leave.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from sparq.nsqd.commit import Runner, instant

if TYPE_CHECKING:
    from sparq.broker.broker import Broker
    from sparq.broker.session import Session

NANOSECONDS = 1_000_000_000

BACKLOG_BYTES_MAX = 64 << 20
"""Publishes of all connections that are not on disk yet; beyond it reading pauses (decision 20)."""

INLINE_ROUNDS_MAX = 4
"""A commit in the loop may release work that needs another; after so many the loop goes on."""

TURN_WAITS_NS = 20_000_000
"""A loop may read a socket many times before it goes on: so long one client may keep it."""

AWAKE_NS = 100_000
"""So long the loop polls before it sleeps, where requests follow each other at shorter gaps: a core
that has slept takes as long to wake up as a request does."""

SHORT_GAPS_MIN = 8
SHORT_GAPS_MAX = 4096
"""So many short gaps in a row begin it; each poll in vain doubles the number."""

TICK_SECONDS_MIN = 0.001
TICK_SECONDS_MAX = 0.1
TICK_SLACK_NS = 1_000_000
"""How much later than due a tick may come; setting its timer anew costs more than this wait."""

STALL_NS = NANOSECONDS
"""A timer that comes so late says that the process stood still: stopped, or without a CPU."""

logger = logging.getLogger(__name__)


class V2Connection(Protocol):
    """A connection of a V2 client, as turns and `Clients` use it; ``tcp`` has the class."""

    def flush(self) -> None:
        """Send what the broker has put out for its session."""

    def resume_reading(self) -> None:
        """Read on, if nothing is against it any more."""

    def close(self) -> None:
        """End it after what it is still to be sent: the client sees a plain disconnect."""

    def abort(self) -> None:
        """End it now; what it was to be sent is dropped."""


class Turns:
    """Takes the turns of one broker, in its loop.

    Attributes:
        runner: runs the broker's disk work.
        by_session: the connections by their sessions.
        waiting: connections that do not read until a turn lets them.
        on_changes: called when topics or channels have come or gone.
    """

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        self.broker = broker
        self.loop = loop
        self.runner = Runner(loop, self.take, broker.journal.run)
        self.by_session: dict[Session, V2Connection] = {}
        self.waiting: set[V2Connection] = set()
        self.on_changes: Callable[[], None] = broker.changes.clear
        self._is_due = self._stood_still = False
        self._due_ns = self._ended_ns = 0
        self._is_awake = False
        self._short_gaps, self._gaps_wanted = 0, SHORT_GAPS_MIN
        self._tick_due_ns = self.runner.now().mono_ns
        self._tick_timer: asyncio.TimerHandle | None = None

    def schedule(self) -> None:
        """Have a turn once the events that are ready now are taken in."""
        if not self._is_due:
            self._is_due = True
            self._due_ns = time.monotonic_ns()
            self.loop.call_soon(self._wake)

    def is_late(self, mono_ns: int) -> bool:
        """Whether the turn that is due has waited for what is still read for long enough."""
        return self._is_due and mono_ns - self._due_ns > TURN_WAITS_NS

    def is_flooded(self) -> bool:
        """Whether so much waits for the disk that nobody's commands are read."""
        return self.broker.turn.backlog_bytes > BACKLOG_BYTES_MAX

    def _wake(self) -> None:
        """Take the turn that is due, unless one was taken meanwhile."""
        if self._is_due:
            self.take()

    def take(self) -> None:
        """Take a turn now."""
        self._is_due = False
        self._run_tasks()
        self._flush()
        if self.waiting:
            for connection in tuple(self.waiting):
                connection.resume_reading()
        self._follow_up()
        self._stay_awake()

    def _stay_awake(self) -> None:
        """Poll for the next request if the last ones have come soon enough."""
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
        """Nothing to do yet: have the loop look again, for so long after the last turn."""
        if time.monotonic_ns() - self._ended_ns < AWAKE_NS:
            self.loop.call_soon(self._poll)
            return
        self._is_awake = False
        self._short_gaps = 0
        self._gaps_wanted = min(2 * self._gaps_wanted, SHORT_GAPS_MAX)

    def _run_tasks(self) -> None:
        """Take over the tasks that have run; run those that are next here, or hand them out."""
        broker, runner = self.broker, self.runner
        now = instant()
        if runner.finished:
            for task in runner.take_finished():
                broker.finish(task, now)
        for _ in range(INLINE_ROUNDS_MAX):
            tasks = broker.end_turn(now)
            if not tasks:
                break
            if not runner.may_run_inline(tasks, broker.turn.backlog_bytes):
                runner.submit(tasks)
                break
            now = runner.run_inline(tasks)
            for task in tasks:
                broker.finish(task, now)
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
        """See to what the turn has left: another turn, news for others, the next tick."""
        broker, runner, turn = self.broker, self.runner, self.broker.turn
        if (turn.topics or turn.tasks) and broker.busy:
            self.schedule()
        if turn.changes:
            self._log_changes()
            self.on_changes()
        if turn.health.notes:
            self._log_notes()
        due_ns = broker.next_due_ns()
        if due_ns < self._tick_due_ns - TICK_SLACK_NS:
            self._tick_sooner(due_ns)
        if runner.barriers:
            runner.open_barriers()

    def _log_changes(self) -> None:
        for what, topic, channel in self.broker.turn.changes:
            facts = {"topic": topic, "channel": channel}
            if channel is None:
                logger.info("TOPIC(%s): %s", topic, what, extra=facts)
            else:
                logger.info("TOPIC(%s): channel %s %s", topic, channel, what, extra=facts)

    def _log_notes(self) -> None:
        for note in self.broker.notes:
            logger.warning("%s", note)
        self.broker.notes.clear()

    # Time

    def start(self) -> None:
        """Begin to keep time."""
        self._tick()

    def stop(self) -> None:
        """Keep time no more."""
        if self._tick_timer is not None:
            self._tick_timer.cancel()

    def _tick(self) -> None:
        now = self.runner.now()
        delay = TICK_SECONDS_MAX
        self._stood_still = not self._stood_still and now.mono_ns - self._tick_due_ns > STALL_NS
        # What clients said while nsqd stood still is read before anybody's time is over.
        if not self._stood_still:
            next_ns = self.broker.tick(now)
            if next_ns is not None:
                delay = min(delay, max(TICK_SECONDS_MIN, (next_ns - now.mono_ns) / NANOSECONDS))
        self._set_tick(now.mono_ns, delay)
        self.schedule()

    def _tick_sooner(self, due_ns: int) -> None:
        """What has come since the last tick is due before the next one: a short deferral, say."""
        # After a standstill the next tick keeps its distance: clients are read before it.
        if self._tick_timer is None or self._stood_still:
            return
        now_ns = self.runner.now().mono_ns
        delay = max(TICK_SECONDS_MIN, (due_ns - now_ns) / NANOSECONDS)
        # What is overdue already must not put the tick off from turn to turn.
        if now_ns + int(delay * NANOSECONDS) < self._tick_due_ns - TICK_SLACK_NS:
            self._tick_timer.cancel()
            self._set_tick(now_ns, delay)

    def _set_tick(self, now_ns: int, delay: float) -> None:
        self._tick_due_ns = now_ns + int(delay * NANOSECONDS)
        self._tick_timer = self.loop.call_later(delay, self._tick)
