"""The turn: what commands and finished works have made possible, seen to once, at its end.

nsqd does nothing directly in reaction to an event. Commands put down here what they have changed,
and `Broker.end_turn` does each thing once, in this order, for the topics that were touched:

1. commits begin, messages are handed out (`Topic.end_turn`);
2. ledgers are written: what the turn has finished or requeued, before any reply leaves;
3. what has become known is answered: publishes, and those that waited for a ledger;
4. works for the disk are listed with their topics, and times with the timers.

Only the broker's own level puts something down here: `broker`, `commands`, `admin`, `topics` and
what they call beside them. Topics, channels and sessions return what they have come to.

`Timers` says when topics want to be looked at though nothing happens: a heap of times.
"""

from __future__ import annotations

import heapq
from collections import deque
from itertools import count
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from sparq.broker.channel import Channel
from sparq.broker.delivery import Sampler
from sparq.broker.health import Health
from sparq.broker.latency import Histogram
from sparq.broker.options import NEVER
from sparq.broker.publishing import Answered, Change, Ticket
from sparq.broker.session import Session, Slot
from sparq.broker.topic import Topic
from sparq.log.disk import DiskError
from sparq.log.task import Work
from sparq.protocol import layout
from sparq.protocol.errors import RemoteError
from sparq.protocol.instant import Instant

STALE_MIN: Final = 64
"""So many entries that no longer count are not worth making the heap anew."""


class Timed(Protocol):
    """Something that is due at a time (mono ns); NEVER: it is not."""

    scheduled_ns: int


T = TypeVar("T", bound=Timed)


class Timers(Generic[T]):
    """The times of all topics.

    1. A time is a lower bound: being called too early is harmless, too late is not. Whoever is
       called looks whether there is something to do.
    2. Of the entries of the heap one counts for each topic: the one at its `scheduled_ns`. The
       others are left over from wishes that were replaced by earlier ones; when they are the most,
       the heap is made anew. So it is bounded by the number of topics, however often their times
       change.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, T]] = []
        self._scheduled_count = 0
        self._numbers = count()

    def schedule(self, timed: T, at_ns: int) -> None:
        """Have it returned by `pop_due` at this time, unless it is to be earlier anyway."""
        if at_ns < timed.scheduled_ns:
            self._scheduled_count += timed.scheduled_ns == NEVER
            timed.scheduled_ns = at_ns
            heapq.heappush(self._heap, (at_ns, next(self._numbers), timed))
            if len(self._heap) > 2 * self._scheduled_count + STALE_MIN:
                self._drop_stale()

    def cancel(self, timed: T) -> None:
        """Do not return it any more, unless it is scheduled again."""
        if timed.scheduled_ns != NEVER:
            timed.scheduled_ns = NEVER
            self._scheduled_count -= 1

    def _drop_stale(self) -> None:
        """Keep the one entry of each that is scheduled."""
        kept = {
            id(timed): (at_ns, number, timed)
            for at_ns, number, timed in self._heap
            if at_ns == timed.scheduled_ns
        }
        self._heap[:] = kept.values()
        heapq.heapify(self._heap)

    def pop_due(self, mono_ns: int) -> list[T]:
        """Those whose time has come, in its order."""
        heap = self._heap
        due: list[T] = []
        while heap and heap[0][0] <= mono_ns:
            at_ns, _, timed = heapq.heappop(heap)
            if at_ns == timed.scheduled_ns:
                self.cancel(timed)
                due.append(timed)
        return due

    def next_ns(self) -> int:
        """When somebody is due; NEVER when nobody is."""
        return self._heap[0][0] if self._heap else NEVER


class Request(Protocol):
    """Something that goes on when its work has run: a seek, a read of a range, a checkpoint."""

    def finish(self, turn: Turn, now: Instant) -> None:
        """Go on; the work's results have been taken over."""


class Task(NamedTuple):
    """Work for a thread, and for whom it is.

    Attributes:
        topic: whose files it uses: they are not closed before it has run; None: nobody's.
        request: what goes on behind it; None: nothing but the topic itself.
    """

    work: Work
    topic: Topic | None = None
    request: Request | None = None


class Inspected(NamedTuple):
    """Work that only looks has run: whoever has asked for it goes on."""

    ticket: Ticket

    def finish(self, turn: Turn, _now: Instant) -> None:
        """Nothing went wrong but what the work tells itself."""
        turn.published.append((self.ticket, None))


class Reply(NamedTuple):
    """The answer to a command that waits for the ledger."""

    session: Session
    slot: Slot
    answer: bytes
    command: str

    def settle(self, error: DiskError | None) -> Session:
        """Fill the slot, now that the ledger is written, or is not; returns whose it is."""
        if error is None:
            self.slot.data = self.answer
        else:
            text = f"{self.command} failed {error.reason}"
            refused = RemoteError(f"E_{self.command}_FAILED", text)
            self.slot.data = layout.error(refused.frame_text())
            self.session.closing |= refused.fatal
        return self.session


class Turn:
    """One broker's turn.

    Attributes:
        topics: those that something has happened to.
        sessions: those that may have output, or are to be closed.
        tasks: disk work to hand out.
        answers: publishes that are refused before a topic has them.
        published: (ticket, refusal or None) of publishes by HTTP that are kept, or refused.
        changes: topics and channels that have come or gone, for whoever tells nsqlookupd.
        backlog_bytes: publishes that are not on disk yet.
        journals_ended: nothing is added any more to the journals up to this number.
        health: why the disk last refused something, and what an operator should read.
        waited: how long messages waited from their publish to their first delivery.
        sampler: chooses the messages of consumers that take only some.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.topics: dict[Topic, None] = {}
        self.sessions: dict[Session, None] = {}
        self.tasks: list[Task] = []
        self.answers: list[Answered] = []
        self.published: list[tuple[Ticket, RemoteError | None]] = []
        self.changes: deque[Change] = deque()
        self.backlog_bytes = 0
        self.journals_ended = 0
        self.health = Health()
        self.waited = Histogram()
        self.timers: Timers[Topic] = Timers()
        self.sampler = Sampler(seed)

    # What commands put down

    def touch(self, topic: Topic) -> None:
        """Something has happened to a topic."""
        self.topics[topic] = None

    def wake(self, topic: Topic, channel: Channel) -> None:
        """A channel may have something for someone."""
        topic.woken[channel] = None
        self.topics[topic] = None

    def submit(self, work: Work, topic: Topic | None, request: Request | None = None) -> None:
        """Hand work out with the turn's end."""
        if topic is not None:
            topic.under_way += 1
        self.tasks.append(Task(work, topic, request))

    def end_sessions(self, sessions: list[Session]) -> None:
        """Connections are to be closed."""
        for session in sessions:
            self.sessions[session] = None

    def forget(self, topic: Topic) -> None:
        """A topic is gone."""
        self.topics.pop(topic, None)
        self.timers.cancel(topic)

    @property
    def is_busy(self) -> bool:
        """Whether another turn should follow, though no event may be there to cause it."""
        if not self.topics:
            return bool(self.tasks)
        return bool(self.tasks) or any(topic.goes_on() for topic in self.topics)
