"""Publishes on their way to the disk: gathered per topic, one commit at a time.

1. While a commit is in flight, what arrives gathers; the next batch takes it in order of arrival,
   up to 256 KiB or 4,096 messages. One publish is never split, and may alone be larger.
2. Each publish is answered exactly once: after its messages are kept by the sync policy, or with
   the reason why none of them is stored.
3. An ephemeral topic's log is memory: its commits are done at once, and what it has no room for is
   dropped without a word, as NSQ does.

`Outcome` is what a topic has come to since the broker last looked, answered publishes among it:
lists, taken at the turn's end. A topic calls nobody above it; `Broker.end_turn` does each thing
once.
"""

from __future__ import annotations

import heapq
from collections import deque
from operator import itemgetter
from typing import Final, NamedTuple, Protocol

from sparq.broker.books import Ended
from sparq.broker.letters import Letters, Only
from sparq.broker.options import NEVER, SECOND_NS, BrokerOptions
from sparq.broker.rates import Rates
from sparq.broker.session import Session, Slot
from sparq.log.commit import Commit
from sparq.log.disk import DiskError
from sparq.log.log import Log
from sparq.log.task import Work
from sparq.protocol.errors import RemoteError
from sparq.protocol.frames import Bodies
from sparq.protocol.instant import Instant

LIMITED_TOLD_NS: Final = 60 * SECOND_NS
"""How long after a line about a topic's limits the next may follow."""


class Ticket(Protocol):
    """Whoever waits outside the broker: an HTTP request."""

    def answered(self, error: RemoteError | None) -> None:
        """What was asked for is done, or refused."""


class Publish(NamedTuple):
    """One publish that waits for its commit, and whom its answer is for.

    Attributes:
        topic: the topic's name.
        command: PUB, MPUB or DPUB: how a refusal is worded.
        messages, size_bytes: how many bodies there are, and their size.
        due: when it may be delivered, None at once.
        session, slot: who has sent it, and the place of the answer; None: it came by HTTP.
        oks: how many OKs answer it: one for each message of a run of PUBs.
        ticket: who is answered where it came by HTTP.
        letters: what it has the bodies of, where they are dead letters, or were.
        only: the channel that it is for; None: for all.
    """

    topic: str
    command: str
    bodies: Bodies
    messages: int
    size_bytes: int
    due: Instant | None = None
    session: Session | None = None
    slot: Slot | None = None
    oks: int = 1
    ticket: Ticket | None = None
    letters: Letters | None = None
    only: Only | None = None


def publish_of(letters: Letters, topic: str, ticket: Ticket | None = None) -> Publish:
    """Dead letters, or what they are of, as a publish."""
    bodies = Bodies.of(letters.bodies)
    count, size_bytes = len(bodies), bodies.size_bytes
    return Publish(
        topic, "PUB", bodies, count, size_bytes, ticket=ticket, letters=letters, only=letters.only
    )


class Answered(NamedTuple):
    """Publishes of one commit, or of a topic that goes: kept, or refused for a reason.

    Attributes:
        reason: None: they are kept.
        fatal: whether the refusal ends a connection.
    """

    publishes: list[Publish]
    reason: str | None = None
    fatal: bool = False


def refusal(command: str, reason: str, fatal: bool) -> RemoteError:
    """The error for a publish that was not stored."""
    return RemoteError(f"E_{command}_FAILED", f"{command} failed {reason}", fatal)


class Publishing:
    """The publishes of one topic.

    Attributes:
        waiting: those that no commit has taken yet.
        batch: those of the commit that is in flight.
        commit: that commit; None: none is.
        pending_bytes, pending_messages: what is not in the log yet.
        rates: how fast is published, where that has a limit.
        held: those that were too fast, with their times: a heap of (mono ns, number, publish).
        held_count: messages that were held back so far.
        refused_count: messages for which the topic was full, or that were too fast.
        given_up_count: messages that no channel saw yet, given up when the topic was full.
    """

    def __init__(self, options: BrokerOptions) -> None:
        self.waiting: deque[Publish] = deque()
        self.batch: list[Publish] = []
        self.commit: Commit | None = None
        self.pending_bytes = self.pending_messages = 0
        self.refused_count = self.given_up_count = self.held_count = 0
        self.rates = Rates()
        self.held: list[tuple[int, int, Publish]] = []
        self._told, self._told_ns = (0, 0), 0
        self._options = options

    def add(self, publish: Publish) -> None:
        """Have a publish committed with the turn's end."""
        self.waiting.append(publish)
        self.pending_bytes += publish.size_bytes
        self.pending_messages += publish.messages

    def hold(self, publish: Publish, ready_ns: int) -> None:
        """Have a publish committed not before a time (mono ns)."""
        self.held_count += publish.messages
        self.pending_bytes += publish.size_bytes
        self.pending_messages += publish.messages
        heapq.heappush(self.held, (ready_ns, self.held_count, publish))

    def release(self, mono_ns: int) -> int:
        """Let those go on whose time has come; returns the next one's, NEVER: there is none."""
        while self.held and self.held[0][0] <= mono_ns:
            self.waiting.append(heapq.heappop(self.held)[2])
        return self.held[0][0] if self.held else NEVER

    def tell_limited(self, mono_ns: int) -> tuple[int, int]:
        """How many messages were refused, and how many given up, since this last told of some.

        (0, 0): none, or it told of some within the last minute.
        """
        counts = self.refused_count, self.given_up_count
        if counts == self._told or mono_ns < self._told_ns:
            return 0, 0
        refused, given_up = counts[0] - self._told[0], counts[1] - self._told[1]
        self._told, self._told_ns = counts, mono_ns + LIMITED_TOLD_NS
        return refused, given_up

    def begin(self, log: Log, now: Instant) -> Commit:
        """The next commit of what waits, for a log that is not busy."""
        if len(self.waiting) == 1 and (publish := self.waiting[0]).due is None:
            # What most turns of a publisher come to that waits for each OK.
            self.waiting.clear()
            self.batch = [publish]
            self.commit = log.begin([publish.bodies], now)
        else:
            self.batch = self._next_batch()
            pieces = [publish.bodies for publish in self.batch]
            self.commit = log.begin(pieces, now, _dues(self.batch))
        return self.commit

    def begin_bounded(self, log: Log, now: Instant, room: int) -> Commit:
        """What `begin` does, of an ephemeral topic: the newest messages beyond `room` are dropped.

        Deferred ones keep no due time: they are forgotten with the process.
        """
        batch = self.batch = self._next_batch()
        pieces: list[Bodies] = []
        for publish in batch:
            bodies = publish.bodies
            kept = Bodies(bodies.buffer, bodies.starts[:room], bodies.sizes[:room])
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
            if size > options.commit_bytes or count > options.commit_count:
                break
            batch.append(waiting.popleft())
        return batch

    def take(self) -> list[Publish]:
        """The commit has run: the publishes that it was for."""
        batch, self.batch, self.commit = self.batch, [], None
        for publish in batch:
            self.pending_bytes -= publish.size_bytes
            self.pending_messages -= publish.messages
        return batch

    def take_waiting(self) -> list[Publish]:
        """The topic goes: the publishes that will not be stored."""
        held = [publish for _, _, publish in sorted(self.held, key=itemgetter(0, 1))]
        waiting, self.waiting, self.held = [*self.waiting, *held], deque(), []
        for publish in waiting:
            self.pending_bytes -= publish.size_bytes
            self.pending_messages -= publish.messages
        return waiting


def _dues(batch: list[Publish]) -> list[tuple[int, int]] | None:
    dues: list[tuple[int, int]] = []
    position = 0
    for publish in batch:
        if publish.due is not None:
            dues += [(position + at, publish.due.wall_ns) for at in range(publish.messages)]
        position += publish.messages
    return dues or None


Change = tuple[str, str, str | None]
"""("created" | "deleted", topic, channel or None)."""


class Failure(NamedTuple):
    """The disk has refused something: a note for the operator, and the reason."""

    note: str
    error: DiskError


class Outcome:
    """What one topic has come to.

    Attributes:
        works: disk work to hand out.
        answers: publishes that are kept or refused.
        replies: who has waited for the ledger, and why it cannot be written; None: it is.
        letters: what is to be moved to the dead-letter topic.
        changes: channels that have come or gone.
        notes: what an operator should read.
        failures: what the disk has refused.
        has_recovered: whether the disk has taken something.
        journals_ended: commits have shown that nothing is added to journals up to this number.
    """

    __slots__ = (
        "answers",
        "changes",
        "failures",
        "has_recovered",
        "journals_ended",
        "letters",
        "notes",
        "replies",
        "works",
    )

    def __init__(self) -> None:
        self.works: list[Work] = []
        self.answers: list[Answered] = []
        self.replies: Ended = []
        self.letters: list[Letters] = []
        self.changes: list[Change] = []
        self.notes: list[str] = []
        self.failures: list[Failure] = []
        self.has_recovered = False
        self.journals_ended = 0

    def fail(self, note: str, error: DiskError) -> None:
        """The disk has refused something."""
        self.failures.append(Failure(note, error))
