"""The turn: collects the effects of commands and finished tasks, and processes them at its end.

nsqd does not act directly on each event. Commands record what they have changed here, and
`Broker.end_turn` does each step once for the topics that were added, in this order:

1. commits begin and messages are delivered (`Topic.end_turn`);
2. ledgers are written: what the turn has finished or requeued, before any reply leaves;
3. requests that waited for a ledger are answered; the publishes of a commit were answered before,
   when it was finished (`Broker.finish`);
4. disk tasks are listed with their topics, and due times are passed to the timers.

Only the broker's own level records things here: `broker`, `commands`, `admin`, `topics` and the
modules at the same level that they call. Topics, channels and sessions return their results.

`Timers` tells when a topic must be looked at even without an event: a heap of times.
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
from sparq.broker.session import Slot, V2Session
from sparq.broker.topic import Topic
from sparq.log.disk import DiskError
from sparq.log.task import Task
from sparq.protocol import layout
from sparq.protocol.errors import RemoteError
from sparq.protocol.instant import Instant

STALE_MIN: Final = 64
"""The heap is not rebuilt for fewer stale entries than this."""


class Timed(Protocol):
    """An object that is due at a time (mono ns); NEVER: no time is scheduled."""

    scheduled_ns: int


T = TypeVar("T", bound=Timed)


class Timers(Generic[T]):
    """The due times of all topics.

    1. A time is a lower bound: a call that is too early is harmless, one that is too late is not.
       The object that is called checks whether it has something to do.
    2. For each topic one heap entry is valid: the one at its `scheduled_ns`. The others are stale:
       they were replaced by an earlier time. When most entries are stale the heap is rebuilt, so
       its size is bounded by the number of topics, however often their times change.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, T]] = []
        self._scheduled_count = 0
        self._numbers = count()

    def schedule(self, timed: T, at_ns: int) -> None:
        """Have `pop_due` return it at this time, unless an earlier time is scheduled already."""
        if at_ns < timed.scheduled_ns:
            self._scheduled_count += timed.scheduled_ns == NEVER
            timed.scheduled_ns = at_ns
            # Topics cannot be compared: the number decides between equal times.
            heapq.heappush(self._heap, (at_ns, next(self._numbers), timed))
            if len(self._heap) > 2 * self._scheduled_count + STALE_MIN:
                self._drop_stale()

    def cancel(self, timed: T) -> None:
        """Cancel its scheduled time; it may be scheduled again."""
        if timed.scheduled_ns != NEVER:
            timed.scheduled_ns = NEVER
            self._scheduled_count -= 1

    def _drop_stale(self) -> None:
        """Rebuild the heap with only the valid entry of each scheduled object."""
        kept = {
            id(timed): (at_ns, number, timed)
            for at_ns, number, timed in self._heap
            if at_ns == timed.scheduled_ns
        }
        # By `id`, since a topic may have been scheduled twice for the same time.
        self._heap[:] = kept.values()
        heapq.heapify(self._heap)

    def pop_due(self, mono_ns: int) -> list[T]:
        """Remove and return the objects that are due, earliest first."""
        heap = self._heap
        due: list[T] = []
        while heap and heap[0][0] <= mono_ns:
            at_ns, _, timed = heapq.heappop(heap)
            if at_ns == timed.scheduled_ns:
                self.cancel(timed)
                due.append(timed)
        return due

    def next_ns(self) -> int:
        """A lower bound of the next due time; NEVER: nothing is scheduled."""
        return self._heap[0][0] if self._heap else NEVER


class ContinuedRequest(Protocol):
    """An operation that continues after its task has run: a seek, a range read, a checkpoint."""

    def finish(self, turn: Turn, now: Instant) -> None:
        """Continue; the task's results have already been taken over."""


class TopicTask(NamedTuple):
    """A task with its topic and its continuation.

    Attributes:
        topic: the topic whose files it uses, which stay open until it has run; None: no topic.
        request: the operation that continues afterwards; None: only the topic uses the result.
    """

    task: Task
    topic: Topic | None = None
    request: ContinuedRequest | None = None


class Inspected(NamedTuple):
    """The continuation of a read-only task: its requester is notified."""

    ticket: Ticket

    def finish(self, turn: Turn, _now: Instant) -> None:
        """Report success; the task itself holds any error."""
        turn.published.append((self.ticket, None))


class Reply(NamedTuple):
    """The answer to a command that waits for the ledger."""

    session: V2Session
    slot: Slot
    answer: bytes
    command: str

    def fill(self, error: DiskError | None) -> V2Session:
        """Fill the slot after the ledger was written or has failed; returns the session."""
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
        topics: topics that were touched in this turn.
        sessions: sessions that may have output or must be closed.
        tasks: the tasks to hand out.
        answers: publishes that were refused before they reached a topic.
        published: (ticket, refusal or None) of completed requests outside sessions, such as HTTP.
        changes: created and deleted topics and channels, to be reported to nsqlookupd.
        backlog_bytes: size of the publishes that are not on disk yet.
        journals_ended: number of the newest journal that is complete: no commit is added to it or
            to an older one any more.
        health: the last disk error, and notes for the operator.
        waited: how long messages waited from publish to first delivery.
        sampler: chooses the messages for sampling consumers.
    """

    def __init__(self, seed: int | None = None) -> None:
        # Dicts as ordered sets: a set would order topics and sessions by their addresses in memory,
        # and a simulated run could not be repeated.
        self.topics: dict[Topic, None] = {}
        self.sessions: dict[V2Session, None] = {}
        self.tasks: list[TopicTask] = []
        self.answers: list[Answered] = []
        self.published: list[tuple[Ticket, RemoteError | None]] = []
        self.changes: deque[Change] = deque()
        self.backlog_bytes = 0
        self.journals_ended = 0
        self.health = Health()
        self.waited = Histogram()
        self.timers: Timers[Topic] = Timers()
        self.sampler = Sampler(seed)

    # Recording changes

    def add_topic(self, topic: Topic) -> None:
        """Have a topic processed at the end of the turn."""
        self.topics[topic] = None

    def wake(self, topic: Topic, channel: Channel) -> None:
        """Add the topic to the turn, whose end checks whether the channel can deliver messages."""
        topic.woken[channel] = None
        self.topics[topic] = None

    def submit(
        self, task: Task, topic: Topic | None, request: ContinuedRequest | None = None
    ) -> None:
        """Hand out a task at the end of the turn."""
        if topic is not None:
            topic.under_way += 1
        self.tasks.append(TopicTask(task, topic, request))

    def end_sessions(self, sessions: list[V2Session]) -> None:
        """Have connections closed."""
        for session in sessions:
            self.sessions[session] = None

    def forget(self, topic: Topic) -> None:
        """Remove a topic that is gone."""
        self.topics.pop(topic, None)
        self.timers.cancel(topic)

    @property
    def is_busy(self) -> bool:
        """Whether another turn should follow even if no event arrives."""
        if not self.topics:
            return bool(self.tasks)
        return bool(self.tasks) or any(topic.needs_turn() for topic in self.topics)
