"""Publishes on their way to the disk: gathered per topic, one commit at a time.

1. While a commit is in flight, what arrives gathers; the next batch takes it in order of arrival,
   up to 256 KiB or 4,096 messages. One publish is never split, and may alone be larger (decision
   20).
2. `done` is called exactly once for each publish: after its messages are kept by the sync policy,
   or with the refusal, and then none of them is stored (decision 18).
3. An ephemeral topic's log is memory: its commits are done at once, and what it has no room for is
   dropped without a word, as NSQ does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparq.broker.agenda import Agenda
from sparq.broker.options import BrokerOptions
from sparq.log.log import Commit
from sparq.protocol.errors import RemoteError
from sparq.protocol.frames import Bodies
from sparq.protocol.instant import Instant

if TYPE_CHECKING:
    from sparq.broker.topic import Topic

Done = Callable[[RemoteError | None], None]


@dataclass(frozen=True, slots=True, eq=False)
class Publish:
    """One publish that waits for its commit.

    Attributes:
        command: PUB, MPUB or DPUB: how a refusal is worded.
        size_bytes: of all bodies.
        due: when it may be delivered, None at once.
    """

    command: str
    bodies: Bodies
    size_bytes: int
    due: Instant | None
    done: Done


def refusal(command: str, reason: str, *, fatal: bool) -> RemoteError:
    """The error for a publish that was not stored."""
    return RemoteError(f"E_{command}_FAILED", f"{command} failed {reason}", fatal)


class Publishing:
    """The publishes of one topic; `pending_bytes` are the bodies that are not in its log yet."""

    def __init__(self, topic: Topic, agenda: Agenda, options: BrokerOptions) -> None:
        self._topic = topic
        self._agenda = agenda
        self._options = options
        self.pending_bytes = 0
        self._waiting: deque[Publish] = deque()

    def add(self, publish: Publish) -> None:
        """Have a publish committed with the turn's end."""
        self._waiting.append(publish)
        self._agenda.backlog_bytes += publish.size_bytes
        self.pending_bytes += publish.size_bytes
        self._agenda.gathering[self._topic] = None

    def begin(self, now: Instant) -> None:
        """Start the next commit, unless one is in flight or nothing waits."""
        log = self._topic.stream.log
        if not self._waiting or log.busy:
            return
        batch = self._next_batch()
        pieces = [publish.bodies for publish in batch]
        if self._topic.ephemeral:
            pieces = self._that_fit(pieces, now)
        commit = log.begin(pieces, now, None if self._topic.ephemeral else _dues(batch))
        if self._topic.ephemeral:
            commit.run()
            self._finished(commit, batch, now)
        else:
            errands = self._topic.stream.errands
            errands.submit(commit, lambda then: self._finished(commit, batch, then))

    def _next_batch(self) -> list[Publish]:
        waiting, options = self._waiting, self._options
        first = waiting.popleft()
        batch = [first]
        size, count = first.size_bytes, len(first.bodies)
        while waiting:
            size += waiting[0].size_bytes
            count += len(waiting[0].bodies)
            if size > options.commit_bytes or count > options.commit_count:
                break
            batch.append(waiting.popleft())
        return batch

    def _that_fit(self, pieces: list[Bodies], now: Instant) -> list[Bodies]:
        """What an ephemeral topic takes; the newest beyond its bounds are dropped."""
        room = self._topic.ephemeral_room(now)
        kept: list[Bodies] = []
        for piece in pieces:
            kept.append(Bodies(piece.buffer, piece.starts[:room], piece.sizes[:room]))
            room -= len(kept[-1])
        return kept

    def _finished(self, commit: Commit, batch: list[Publish], now: Instant) -> None:
        agenda, topic = self._agenda, self._topic
        topic.stream.log.finish(commit)
        agenda.notes += commit.notes
        agenda.journals_ended = max(agenda.journals_ended, commit.journals_ended)
        if self._waiting:
            agenda.gathering[topic] = None
        if commit.error is not None:
            agenda.fail(f"publishing to {topic.name} failed: {commit.error}", commit.error)
        else:
            agenda.failure = None
            self._stored(commit, batch, now)
        for publish in batch:
            agenda.backlog_bytes -= publish.size_bytes
            self.pending_bytes -= publish.size_bytes
            if commit.error is None:
                publish.done(None)
            else:
                publish.done(refusal(publish.command, commit.error.reason, fatal=False))
        topic.committed(now)

    def _stored(self, commit: Commit, batch: list[Publish], now: Instant) -> None:
        topic = self._topic
        first = commit.first_index
        for publish in batch:
            topic.message_bytes += publish.size_bytes
            if publish.due is not None:
                for index in range(first, min(first + len(publish.bodies), commit.end_index)):
                    topic.defer(publish.due.mono_ns, index)
            first += len(publish.bodies)
        topic.message_count += commit.count

    def refuse_all(self) -> None:
        """The topic goes: nothing that waits will be stored."""
        waiting, self._waiting = self._waiting, deque()
        for publish in waiting:
            self._agenda.backlog_bytes -= publish.size_bytes
            self.pending_bytes -= publish.size_bytes
            publish.done(refusal(publish.command, "exiting", fatal=True))


def _dues(batch: list[Publish]) -> list[tuple[int, int]] | None:
    dues: list[tuple[int, int]] = []
    position = 0
    for publish in batch:
        if publish.due is not None:
            dues += [(position + at, publish.due.wall_ns) for at in range(len(publish.bodies))]
        position += len(publish.bodies)
    return dues or None
