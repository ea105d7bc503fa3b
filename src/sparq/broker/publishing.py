"""Publishes waiting for the disk: a group commit for each topic, one at a time.

1. While a commit is in flight, new publishes wait; the next batch takes them in order of arrival,
   up to 256 KiB or 4,096 messages. A publish is never split, and a single one may be larger.
2. Each publish is answered exactly once: after its messages are stored as the sync policy requires,
   or with the reason why none of them is stored.
3. An ephemeral topic's log is memory: its commits finish at once, and messages that do not fit are
   dropped silently, as in NSQ.

`Outcome` collects a topic's results since the broker last took them, answered publishes
included. A topic never calls the layer above it: `Broker.end_turn` takes the outcome and handles
each part once.
"""

from __future__ import annotations

import heapq
from collections import deque
from enum import Enum
from operator import itemgetter
from typing import NamedTuple, Protocol

from sparq.broker.counts import TopicCounts
from sparq.broker.dead_letters import DeadLetterBatch, Only
from sparq.broker.ledger_writer import Ended
from sparq.broker.options import NEVER, BrokerOptions
from sparq.broker.rates import Rates
from sparq.broker.session import Slot, V2Session
from sparq.log.commit import Commit
from sparq.log.disk import DiskError
from sparq.log.log import Log
from sparq.log.task import Task
from sparq.protocol.errors import RemoteError
from sparq.protocol.frames import BodySlices
from sparq.protocol.instant import Instant


class Ticket(Protocol):
    """A requester outside the broker that waits for a result, such as an HTTP request."""

    def answered(self, error: RemoteError | None) -> None:
        """Report that the request is done (None), or why it was refused."""


class Publish(NamedTuple):
    """One publish that waits for its commit, and the destination of its answer.

    Attributes:
        topic: the topic's name.
        command: PUB, MPUB or DPUB: used in the text of a refusal.
        messages, size_bytes: number of bodies, and their total size.
        due: when it may be delivered; None: at once.
        session, slot: the sender, and the place of the answer; None: it came by HTTP.
        oks: number of OKs in the answer: one for each message of a run of PUBs.
        ticket: receives the answer if it came by HTTP.
        letters: the dead letters, or the messages sent back, whose bodies are published.
        only: the one channel that gets it; None: all channels.
    """

    topic: str
    command: str
    bodies: BodySlices
    messages: int
    size_bytes: int
    due: Instant | None = None
    session: V2Session | None = None
    slot: Slot | None = None
    oks: int = 1
    ticket: Ticket | None = None
    letters: DeadLetterBatch | None = None
    only: Only | None = None


def publish_of(letters: DeadLetterBatch, topic: str, ticket: Ticket | None = None) -> Publish:
    """Make a publish of dead letters, or of messages sent back from there."""
    bodies = BodySlices.of(letters.bodies)
    count, size_bytes = len(bodies), bodies.size_bytes
    return Publish(
        topic, "PUB", bodies, count, size_bytes, ticket=ticket, letters=letters, only=letters.only
    )


class Answered(NamedTuple):
    """The result for publishes of one commit, or of a topic that is deleted: stored or refused.

    Attributes:
        reason: why they were refused; None: they are stored.
        fatal: whether the refusal closes the connection.
    """

    publishes: list[Publish]
    reason: str | None = None
    fatal: bool = False


def refusal(command: str, reason: str, fatal: bool) -> RemoteError:
    """The error reply for a publish that was not stored."""
    return RemoteError(f"E_{command}_FAILED", f"{command} failed {reason}", fatal)


class Publishing:
    """The publishes of one topic.

    Attributes:
        waiting: publishes that no commit has taken yet.
        batch: the publishes of the commit in flight.
        commit: the commit in flight; None: there is none.
        pending_bytes, pending_messages: size and number of messages that are not in the log yet.
        rates: the use of the publish rate limits.
        held: publishes held back by a rate limit: a heap of (mono ns, number, publish).
    """

    def __init__(self, options: BrokerOptions, counts: TopicCounts) -> None:
        self.waiting: deque[Publish] = deque()
        self.batch: list[Publish] = []
        self.commit: Commit | None = None
        self.pending_bytes = self.pending_messages = 0
        self.rates = Rates()
        self.held: list[tuple[int, int, Publish]] = []
        self._counts, self._options = counts, options

    def add(self, publish: Publish) -> None:
        """Queue a publish to be committed at the end of the turn."""
        self.waiting.append(publish)
        self.pending_bytes += publish.size_bytes
        self.pending_messages += publish.messages

    def commit_later(self, publish: Publish, ready_ns: int) -> None:
        """Queue a publish to be committed, but not before `ready_ns` (mono ns)."""
        self._counts.held_count += publish.messages
        self.pending_bytes += publish.size_bytes
        self.pending_messages += publish.messages
        # The count breaks ties: equal times keep the order of arrival.
        heapq.heappush(self.held, (ready_ns, self._counts.held_count, publish))

    def release(self, mono_ns: int) -> int:
        """Release held publishes that are ready; returns the next one's time, or NEVER."""
        while self.held and self.held[0][0] <= mono_ns:
            self.waiting.append(heapq.heappop(self.held)[2])
        return self.held[0][0] if self.held else NEVER

    def begin(self, log: Log, now: Instant) -> Commit:
        """Begin the next commit of the waiting publishes; the log must not be busy."""
        if len(self.waiting) == 1 and (publish := self.waiting[0]).due is None:
            # The usual case of a publisher that waits for each OK.
            self.waiting.clear()
            self.batch = [publish]
            self.commit = log.begin([publish.bodies], now)
        else:
            self.batch = self._next_batch()
            pieces = [publish.bodies for publish in self.batch]
            self.commit = log.begin(pieces, now, _dues(self.batch))
        return self.commit

    def begin_bounded(self, log: Log, now: Instant, room: int) -> Commit:
        """Do what `begin` does, for an ephemeral topic: drop the newest messages beyond `room`.

        Due times are not stored: deferred messages are lost when the process ends.
        """
        batch = self.batch = self._next_batch()
        pieces: list[BodySlices] = []
        for publish in batch:
            bodies = publish.bodies
            # The publisher still gets its OK: NSQ drops what does not fit without an error, too.
            kept = BodySlices(bodies.buffer, bodies.starts[:room], bodies.sizes[:room])
            pieces.append(kept)
            room -= len(kept)
        commit = self.commit = log.begin(pieces, now)
        return commit

    def _next_batch(self) -> list[Publish]:
        waiting, options = self.waiting, self._options
        first = waiting.popleft()
        batch = [first]
        if not waiting:
            return batch
        size, count = first.size_bytes, first.messages
        while waiting:
            size += waiting[0].size_bytes
            count += waiting[0].messages
            # Batches of 1 MiB instead of 256 KiB gained nothing.
            if size > options.commit_bytes or count > options.commit_count:
                break
            batch.append(waiting.popleft())
        return batch

    def take(self) -> list[Publish]:
        """Take the publishes of the commit, which has run."""
        batch, self.batch, self.commit = self.batch, [], None
        # Only now: limits on the topic's size count a message here until the log has it.
        for publish in batch:
            self.pending_bytes -= publish.size_bytes
            self.pending_messages -= publish.messages
        return batch

    def take_waiting(self) -> list[Publish]:
        """Take the publishes that will not be stored, since the topic is deleted or nsqd stops."""
        # Sorted by time and number, since a heap's list is only partly ordered.
        held = [publish for _, _, publish in sorted(self.held, key=itemgetter(0, 1))]
        waiting, self.waiting, self.held = [*self.waiting, *held], deque(), []
        for publish in waiting:
            self.pending_bytes -= publish.size_bytes
            self.pending_messages -= publish.messages
        return waiting


def _dues(batch: list[Publish]) -> list[tuple[int, int]] | None:
    # Positions in the batch: a batch per DPUB would need a header for each.
    dues: list[tuple[int, int]] = []
    position = 0
    for publish in batch:
        if publish.due is not None:
            dues += [(position + at, publish.due.wall_ns) for at in range(publish.messages)]
        position += publish.messages
    return dues or None


Change = tuple[str, str, str | None]
"""("created" | "deleted", topic, channel or None)."""


class Trouble(Enum):
    """What the disk refuses (see `health`)."""

    PUBLISH = "publishing to a topic, or syncing its messages"
    LEDGER = "writing or syncing a topic's ledger"
    CREATE = "creating a topic"
    SAVE = "saving policies or drains"
    REMOVAL = "deleting a topic's files"
    OPENING = "opening a topic at the start"
    PLACE = "finding the data path"
    CLOCK = "assigning message ids: the clock is out of their range"


class Failure(NamedTuple):
    """A refusal by the disk: of what, a note for the operator, and the error."""

    trouble: Trouble
    note: str
    error: DiskError


class Outcome:
    """The results of one topic since the broker last took them.

    Attributes:
        tasks: disk work to hand out.
        answers: publishes that were stored or refused.
        replies: waiters for the ledger, each with the disk error or None if it was written.
        letters: messages to move to the dead-letter topic.
        changes: created and deleted channels.
        notes: notes for the operator.
        failures: disk errors.
        has_stored: whether publishes were stored.
        has_noted: whether the ledger has been written again after a failure.
        journals_ended: number of the newest journal that is complete, according to the commits.
    """

    __slots__ = (
        "answers",
        "changes",
        "failures",
        "has_noted",
        "has_stored",
        "journals_ended",
        "letters",
        "notes",
        "replies",
        "tasks",
    )

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.answers: list[Answered] = []
        self.replies: Ended = []
        self.letters: list[DeadLetterBatch] = []
        self.changes: list[Change] = []
        self.notes: list[str] = []
        self.failures: list[Failure] = []
        self.has_stored = self.has_noted = False
        self.journals_ended = 0

    def fail(self, trouble: Trouble, note: str, error: DiskError) -> None:
        """Record a disk error."""
        self.failures.append(Failure(trouble, note, error))
