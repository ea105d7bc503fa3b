"""The turn: what commands and finished tasks have changed, until the end of the turn processes it.

nsqd does not act directly on each event. Commands change topics in memory and note the topics here,
and `Broker.end_turn` does each step once for the topics that were added, in this order:

1. commits begin and messages are delivered (`Topic.end_turn`);
2. ledgers are written: what the turn has finished or requeued, before any reply leaves. Requests
   that waited for a ledger are answered; the publishes of a commit were answered when it finished;
3. the tasks are handed out.

This module knows no topics: topics, and what calls them, add to the turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from sparq.broker.dead_letters import DeadLetterBatch
from sparq.broker.health import Health
from sparq.broker.latency import Histogram
from sparq.broker.options import NEVER
from sparq.broker.session import V2Session
from sparq.broker.waiting import DueTimes
from sparq.log.task import Task
from sparq.protocol.errors import RemoteError
from sparq.protocol.instant import Instant

Change = tuple[str, str, str | None]
"""("created" | "deleted", topic, channel or None)."""


class Ticket(Protocol):
    """A requester outside the broker that waits for a result, such as an HTTP request."""

    def answered(self, error: RemoteError | None) -> None:
        """Report that the request is done (None), or why it was refused."""


class TopicTask(NamedTuple):
    """A task, and the function that takes its results over once it has run."""

    task: Task
    finish: Callable[[Instant], None]


class TurnTopic(Protocol):
    """A topic, as far as a turn knows it."""

    def needs_turn(self) -> bool:
        """Whether another turn should follow even if no event arrives."""


T = TypeVar("T", bound=TurnTopic)


class Turn(Generic[T]):
    """One broker's turn.

    Attributes:
        topics: topics that were touched in this turn.
        sessions: sessions that may have output or must be closed.
        tasks: the tasks to hand out.
        letters: messages to move to a dead-letter topic.
        published: (ticket, refusal or None) of completed requests outside sessions, such as HTTP.
        changes: created and deleted topics and channels, to be reported to nsqlookupd.
        backlog_bytes: size of the publishes that are not on disk yet.
        journals_ended: number of the newest journal that is complete: no commit is added to it or
            to an older one any more.
        health: the last disk error, and notes for the operator.
        waited: how long messages waited from publish to first delivery.
        due_topics: names of topics, with the time (mono ns) at which something in each is due: a
            lower bound. A call that is too early is harmless, one that is too late is not.
        due_ns: a lower bound of these times, which `Broker.tick` raises again.
        random: chooses the messages for sampling consumers; repeatable with a seed.
    """

    def __init__(self, seed: int | None = None) -> None:
        # Dicts as ordered sets: a set would order topics and sessions by their addresses in memory,
        # and a simulated run could not be repeated.
        self.topics: dict[T, None] = {}
        self.sessions: dict[V2Session, None] = {}
        self.tasks: list[TopicTask] = []
        self.letters: list[DeadLetterBatch] = []
        self.published: list[tuple[Ticket, RemoteError | None]] = []
        self.changes: deque[Change] = deque()
        self.backlog_bytes = 0
        self.journals_ended = 0
        self.health = Health()
        self.waited = Histogram()
        self.due_topics: DueTimes[str] = DueTimes()
        self.due_ns = NEVER
        self.random = np.random.default_rng(seed)

    @property
    def is_busy(self) -> bool:
        """Whether another turn should follow even if no event arrives."""
        if self.tasks or self.letters:
            return True
        return any(topic.needs_turn() for topic in self.topics)
