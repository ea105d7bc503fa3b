"""What the present turn, or a later moment, still has to see to; shared by all parts of a broker.

Commands only note what they have made possible; the turn's end then does each thing once
(decision "tick": nothing is done directly in reaction to an event). Rules:

1. Each list is an insertion-ordered set, so work is done in the order in which it came up.
2. A timer is a lower bound: being called too early is harmless, too late is not. Whoever is called
   looks whether there is something to do.
3. Of the entries of `_timers` one counts for each object that is scheduled: the one at its
   `scheduled_ns`. The others are left over from wishes that were replaced by earlier ones; when
   they are the most, the list is made anew. So it is bounded by what is scheduled, however often
   that changes.
"""

from __future__ import annotations

import errno
import heapq
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Final, Protocol

from sparq.broker.histogram import Histogram
from sparq.broker.options import NEVER
from sparq.log.disk import DiskError
from sparq.log.task import Task
from sparq.protocol.instant import Instant

if TYPE_CHECKING:
    from sparq.broker.bookkeeping import Bookkeeper
    from sparq.broker.channel import Channel
    from sparq.broker.session import Session
    from sparq.broker.topic import Topic


STALE_TIMERS_MIN: Final = 64
"""So many entries that no longer count are not worth making the list anew."""


class Timed(Protocol):
    """Something that wants to be called at a time."""

    scheduled_ns: int

    def on_time(self, now: Instant) -> None:
        """The time has come, or nearly."""


class Agenda:
    """What is to be done.

    Attributes:
        hungry: channels that may have something for someone.
        dirty: sessions that may have output, or are to be closed.
        gathering: topics with publishes that no commit has taken yet.
        ledgers: those that have something to write.
        books: all that there are.
        tasks: disk work to hand out.
        changes: what was created and deleted: (kind, topic, channel or None).
        backlog_bytes: publishes that are not on disk yet.
        journals_ended: no commit goes to the journals up to this number any more.
        failure: why the disk last refused something, None after a success.
        notes: what an operator should read.
        waited: how long messages waited from their publish to their first delivery.
    """

    def __init__(self) -> None:
        self.hungry: dict[Channel, None] = {}
        self.dirty: dict[Session, None] = {}
        self.gathering: dict[Topic, None] = {}
        self.ledgers: dict[Bookkeeper, None] = {}
        self.books: dict[Bookkeeper, None] = {}
        self.tasks: list[Task] = []
        self.changes: deque[tuple[str, str, str | None]] = deque()
        self.backlog_bytes = 0
        self.journals_ended = 0
        self.failure: str | None = None
        self._failure_number = 0
        self.notes: list[str] = []
        self.waited = Histogram()
        self._timers: list[tuple[int, int, Timed]] = []
        self._scheduled_count = 0
        self._numbers = count()

    def fail(self, note: str, error: DiskError) -> None:
        """The disk refused something: the health is bad until it does not."""
        if self.failure != error.reason:
            self.notes.append(note)
        self.failure = error.reason
        self._failure_number = error.number

    @property
    def is_full(self) -> bool:
        """Whether what the disk last refused, it refused for want of space."""
        return self.failure is not None and self._failure_number == errno.ENOSPC

    def schedule(self, timed: Timed, at_ns: int) -> None:
        """Call `timed` at this time, unless it is to be called earlier anyway."""
        if at_ns < timed.scheduled_ns:
            self._scheduled_count += timed.scheduled_ns == NEVER
            timed.scheduled_ns = at_ns
            heapq.heappush(self._timers, (at_ns, next(self._numbers), timed))
            if len(self._timers) > 2 * self._scheduled_count + STALE_TIMERS_MIN:
                self._drop_stale()

    def cancel(self, timed: Timed) -> None:
        """Do not call `timed` any more, unless it is scheduled again."""
        if timed.scheduled_ns != NEVER:
            timed.scheduled_ns = NEVER
            self._scheduled_count -= 1

    def _drop_stale(self) -> None:
        """Keep the one entry of each object that is scheduled."""
        kept = {
            id(timed): (at_ns, number, timed)
            for at_ns, number, timed in self._timers
            if at_ns == timed.scheduled_ns
        }
        self._timers[:] = kept.values()
        heapq.heapify(self._timers)

    def run_timers(self, now: Instant) -> None:
        """Call everyone whose time has come."""
        timers = self._timers
        while timers and timers[0][0] <= now.mono_ns:
            at_ns, _, timed = heapq.heappop(timers)
            if at_ns == timed.scheduled_ns:
                self.cancel(timed)
                timed.on_time(now)

    def next_timer_ns(self) -> int:
        """When someone wants to be called; NEVER when nobody does."""
        return self._timers[0][0] if self._timers else NEVER
