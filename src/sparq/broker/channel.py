"""A channel: a cursor over its topic's log, and what lies unfinished behind the cursor.

Finished is the complement: of the messages from `start` on and before the cursor, all are finished
but those in flight, ready again, delayed, or pending in the topic's due list. Invariants:

1. An index is in at most one of these places, and in `skips` only when it lies ahead of the cursor.
2. `cursor <= stream.end`; `cursor_ordinal` is the number of messages in the log before the cursor.
3. `ready` holds exactly the sessions whose window is open, the longest waiting first.
4. What must be known after a restart is noted in `ledger` in the turn in which it happens.
5. A channel calls its sessions and what it consists of. Whoever calls a channel has the turn's end
   look at it (`Topic.wake`): there it is delivered from, and there `due_ns` is taken over.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparq.broker.books import Forgetful
from sparq.broker.dead_letters import BURIAL
from sparq.broker.fates import Fates
from sparq.broker.in_flight import NOT_IN_FLIGHT, Expired, InFlight
from sparq.broker.latency import OFF, Latency, Outlook, Window, merged
from sparq.broker.options import MILLISECOND_NS, NEVER, SECOND_NS, Settings
from sparq.broker.session import Session
from sparq.broker.slots import ranges_of
from sparq.broker.stream import Skips, Stream
from sparq.broker.waiting import Delays, ReadyAgain
from sparq.log.ledger import Ledger
from sparq.log.records import drop_range
from sparq.protocol.commands import Finish, Requeue, Touch
from sparq.protocol.errors import RemoteError
from sparq.protocol.frames import Run
from sparq.protocol.instant import Instant
from sparq.protocol.layout import INDEX_BITS, INDEX_LIMIT

SeekTarget = Literal["earliest", "latest"] | int | tuple[Literal["time", "last"], int]
"""A place in a log: an end of it, an index, the first message published at or after a wall time in
ns, or the last so many messages."""

LOST_TOLD_NS: Final = 60 * SECOND_NS
"""How long after a line about messages that a channel has lost the next may follow."""


class Hold(NamedTuple):
    """Which range reader has a channel, and since which attach."""

    session: Session
    epoch: int


class Channel:
    """One channel of a topic.

    Attributes:
        start: messages before it do not concern this channel.
        cursor: the next index to be delivered for the first time.
        sessions: the subscribers by the number that stands for them in `in_flight`.
        range_epoch: the newest attach of a range reader, 0 once the channel is streamed again.
        apart: deferred publishes that wait in the topic's due list, but no more for this channel:
            it has finished them, or has them elsewhere already.
        is_retired: whether it is deleted, and another of its name may be there.
        hold: the range reader that has this channel, if one does.
        settings: what holds for it; whoever has the channel replaces them.
        kept: from where on the log keeps what one has read: the place of its commit before the last
            (see `commit`); None: nothing is kept for that.
        committed_mono_ns: when one has last committed; None: none has since nsqd started.
        due_ns: when (mono ns) something is due here at the earliest; it may be too early.
        outlook: what earlier looks at its figures have told.
        latencies: of the messages finished lately; None: not measured.
        finish_count: messages finished by whoever has subscribed so far.
        voided_count: unread messages that a lag limit has taken from the channel.
        expired_count: messages that nobody was given because they were too old.
        dead_letter_count: messages that were moved to the dead-letter topic.
        redriven_count: dead letters of this channel that were sent back to where they came from.
        fates: how deliveries of messages ended that may become dead letters.
        redriven: of messages that are dead letters sent back, how often they were.
        zone_local_count, region_local_count, global_count: deliveries by where the consumer is;
            without topology-aware consumption all are global.
        base_ordinal: messages before the first that was put to this channel (for message_count).
    """

    def __init__(
        self,
        name: str,
        stream: Stream,
        ledger: Ledger | Forgetful,
        settings: Settings,
        *,
        ephemeral: bool,
    ) -> None:
        self.name = name
        self.stream = stream
        self.ledger = ledger
        self.settings = settings
        self.ephemeral = ephemeral
        self.start = self.cursor = self.noted_cursor = stream.end
        self.cursor_ordinal = self.base_ordinal = stream.ordinal
        self.in_flight = InFlight()
        self.again = ReadyAgain()
        self.delays = Delays()
        self.skips = Skips()
        self.apart: set[int] = set()
        self.sessions: dict[int, Session] = {}
        self.ready: dict[Session, None] = {}
        self.hold: Hold | None = None
        self.range_epoch = 0
        self.kept: int | None = None
        self.committed_mono_ns: int | None = None
        self.paused = self.is_retired = False
        self.again_next = False
        self.requeue_count = 0
        self.timeout_count = 0
        self.fates = Fates()
        self.redriven: dict[int, int] = {}
        self.latencies: Window | None = None
        self.outlook = Outlook()
        self.finish_count = self.voided_count = self.expired_count = 0
        self.dead_letter_count = self.redriven_count = 0
        self.zone_local_count = self.region_local_count = self.global_count = 0
        self.due_ns = NEVER
        self._told_ns, self._told = 0, (0, 0)
        self._last_owner = BURIAL
        self._id_base = stream.log.node_id << INDEX_BITS
        self._raw_base = np.uint64(self._id_base)

    # Subscribers

    def subscribe(self, session: Session) -> None:
        """Give a session a place among the consumers."""
        if self.range_epoch:
            self.range_epoch = 0
            self.join(self.stream.due.joined_from(self.cursor, self.stream.end))
        self.keep(None)
        self._last_owner += 1
        session.owner = self._last_owner
        self.sessions[session.owner] = session

    def unsubscribe(self, session: Session, now: Instant, *, requeue: bool) -> None:
        """Forget a session; its messages wait for their timeouts unless they are requeued."""
        if self.sessions.pop(session.owner, None) is None:
            return
        self.ready.pop(session, None)
        if self.settings.max_attempts and session.in_flight_count:
            self.fates.left(session)
        if requeue:
            expired = self.in_flight.release_owner(session.owner)
            self._note_fates(expired, now)
            self.take_back(expired)

    def opened(self, session: Session) -> None:
        """A session's window may have opened."""
        if session not in self.ready and session.window() > 0:
            self.ready[session] = None

    # Commands of subscribers

    def finish(self, session: Session, command: Finish, now: Instant) -> None:
        """FIN, a run of them; those that fail are answered with an error each."""
        indexes = self._indexes(command.raw_ids)
        if self.latencies is not None:
            published_ns = self.in_flight.published(indexes, session.owner)
            self.latencies.add(now.wall_ns - published_ns, now.mono_ns)
        freed = self.in_flight.finish(indexes, session.owner)
        if freed.freed:
            session.in_flight_count -= freed.freed
            session.finish_count += freed.freed
            self.finish_count += freed.freed
            if self.fates.by_index or self.redriven:
                self.forget(freed.starts, freed.ends)
            self.ledger.finished(self.name, freed.starts, freed.ends)
            self.opened(session)
        for position, why in freed.failures:
            session.reply_error(refusal("FIN", command.id_text(position), why))

    def id_of(self, index: int) -> str:
        """A message's id, as consumers see it."""
        return f"{self._id_base | index:016x}"

    def _indexes(self, raw: range | list[int] | NDArray[np.uint64]) -> Run | list[int]:
        """What ids say here; another node's are indexes that no page can hold."""
        base = self._id_base
        if isinstance(raw, list):
            return [number - base for number in raw]
        if isinstance(raw, range):
            if base <= raw.start and raw.stop <= base + INDEX_LIMIT:
                return range(raw.start - base, raw.stop - base)
            raw = np.arange(raw.start, raw.stop, dtype=np.uint64)
        return (raw - self._raw_base).view(np.int64)

    def requeue(self, session: Session, command: Requeue, now: Instant) -> None:
        """REQ: ready again at once, or after a while.

        Raises:
            RemoteError: the message is not this session's.
        """
        index = command.raw_id - self._id_base
        attempts = self.in_flight.release(index, session.owner)
        if attempts <= NOT_IN_FLIGHT:
            raise refusal("REQ", command.id, attempts)
        session.in_flight_count -= 1
        session.requeue_count += 1
        self.requeue_count += 1
        if self.settings.max_attempts:
            self.fates.requeued(index, session, now.wall_ns)
        delay_ns = command.timeout_ms * MILLISECOND_NS
        if delay_ns:
            self.delays.add(now.mono_ns + delay_ns, index, attempts)
            self.ledger.requeued(self.name, [index], [now.wall_ns + delay_ns], [attempts])
            self.due_ns = min(self.due_ns, now.mono_ns + delay_ns)
        else:
            self.again.push(index, attempts)
        self.opened(session)

    def touch(self, session: Session, command: Touch, now: Instant, cap_ns: int) -> None:
        """TOUCH: the message's full time again, but never beyond `cap_ns` from its delivery.

        Raises:
            RemoteError: the message is not this session's.
        """
        index = command.raw_id - self._id_base
        deadline_ns = now.mono_ns + session.msg_timeout_ns
        touched = self.in_flight.touch(index, session.owner, deadline_ns, cap_ns)
        # A touch never moves a deadline to an earlier time, so no timer needs to be set.
        if touched <= NOT_IN_FLIGHT:
            raise refusal("TOUCH", command.id, touched)

    # Time

    def on_time(self, now: Instant) -> None:
        """Take back what timed out, and let go what was delayed until now."""
        expired = self.in_flight.expire(now.mono_ns)
        self.timeout_count += len(expired.indexes)
        self._note_fates(expired, now)
        self.take_back(expired)
        for index, attempts in self.delays.pop_due(now.mono_ns):
            self.again.push(index, attempts)
        self.reschedule()

    def _note_fates(self, expired: Expired, now: Instant) -> None:
        if self.settings.max_attempts and len(expired.indexes):
            self.fates.expired(expired, self.sessions, self.settings.max_attempts, now.wall_ns)

    def reschedule(self) -> None:
        """Find out when the next message is due."""
        self.due_ns = min(self.in_flight.next_deadline_ns(), self.delays.next_due_ns())

    def take_back(self, expired: Expired) -> None:
        """Have messages that came back delivered again."""
        if len(expired.indexes):
            self.again.push_many(expired.indexes, expired.attempts)
            self.returned(expired)

    def returned(self, expired: Expired) -> None:
        """Messages came back from their owners, who have room for others now."""
        owners, counts = np.unique(expired.owners, return_counts=True)
        for owner, count in zip(owners.tolist(), counts.tolist(), strict=True):
            session = self.sessions.get(owner)
            if session is not None:
                session.in_flight_count -= count
                self.opened(session)

    def join(self, due: list[int]) -> None:
        """Deferred publishes of the topic are due: those that concern this channel are ready."""
        if self.range_epoch:
            return
        concerned = [index for index in due if index >= self.start]
        if self.apart:
            concerned = [index for index in concerned if index not in self.apart]
            self.apart.difference_update(due)
        if concerned:
            self.again.push_many(np.array(concerned, np.int64), np.zeros(len(concerned), np.uint16))

    # Moving the cursor

    def fresh_count(self) -> int:
        """Messages between cursor and P that the cursor will deliver."""
        stream = self.stream
        count = stream.ordinal - self.cursor_ordinal
        if self.range_epoch:
            return count
        if self.skips:
            count -= self.skips.count
        if stream.due.skipped:
            count -= stream.due.count_between(self.cursor, stream.end)
        return count

    def depth(self) -> int:
        """Messages that wait for a consumer (decision 17)."""
        return max(0, self.fresh_count()) + len(self.again)

    def deferred_count(self) -> int:
        """Messages that wait for their time, those of the topic's due list among them."""
        return len(self.delays) + len(self.pending_between(self.start, self.stream.end))

    def pending_between(self, first: int, end: int) -> NDArray[np.int64]:
        """The deferred publishes in [first, end) that this channel still waits for, ascending."""
        pending = self.stream.due.pending_between(first, end)
        if self.apart and len(pending):
            pending = pending[~np.isin(pending, np.array(list(self.apart), np.int64))]
        return pending

    def run_end(self) -> int:
        """Let the cursor pass what it is not to deliver; where the run from there on ends."""
        stream = self.stream
        due = stream.due
        if not self.skips and not due.skipped:
            return stream.end
        cursor = self.cursor
        while True:
            passed, _ = self.skips.jump(cursor)
            while due.contains(passed) and passed < stream.end:
                passed += 1
            if passed == cursor:
                break
            cursor = passed
        self._move(cursor)
        return min(stream.end, self.skips.next_start(), due.next_skipped(cursor))

    def pass_hole(self) -> bool:
        """Move the cursor to the next stored index if the one it is at is not stored."""
        stored = min(self.stream.log.next_stored(self.cursor), self.stream.end)
        moved = stored > self.cursor
        self._move(stored)
        return moved

    def _move(self, cursor: int) -> None:
        if cursor != self.cursor:
            self.cursor = cursor
            self.cursor_ordinal = self.stream.log.ordinal_at(cursor)

    def seek(self, index: int) -> None:
        """Begin anew at an index: nothing from there on is finished, everything before it is."""
        self.in_flight.clear()
        self.again.clear()
        self.delays.clear()
        self.skips.clear()
        self.apart.clear()
        self.fates.clear()
        self.redriven.clear()
        self.start = self.noted_cursor = index
        self.kept = None
        self._move(index)
        self.ledger.seek(self.name, index)
        self.join(self.stream.due.joined_from(index, self.stream.end))
        for session in self.sessions.values():
            session.in_flight_count = 0
            self.opened(session)

    def commit(self, index: int) -> None:
        """A range reader has finished everything before an index.

        What it has read since its commit before this one stays in the log until the next: a reader
        whose own record of this commit is lost (a file in Spark's `commits/`) reads that once more.
        """
        before = self.cursor
        self.seek(index)
        if before < index:
            self.keep(before)

    def keep(self, index: int | None) -> None:
        """Have the log keep what was read from an index on; None: nothing of it."""
        if index != self.kept:
            self.kept = index
            self.ledger.kept(self.name, index)

    def retire(self) -> None:
        """The channel is deleted: whatever still calls finds nothing to do."""
        self.is_retired = True
        self.due_ns = NEVER
        self.in_flight.clear()
        self.again.clear()
        self.delays.clear()
        self.ready.clear()
        self.sessions.clear()
        self.hold = None

    def empty(self) -> None:
        """Drop everything that waits, is in flight or is delayed."""
        self.seek(self.stream.end)

    def void(self, first: int, end: int, *, kept: Sequence[int] = ()) -> None:
        """The messages [first, end), which the cursor has not reached, are not for this channel.

        Args:
            first: where they begin.
            end: where they end.
            kept: those that it has elsewhere already, or still waits for, ascending. The cursor
                passes them too, but the ledger must not have them as finished: a restart would.
        """
        log, due = self.stream.log, self.stream.due
        if self.cursor >= first:
            self._move(self.skips.jump(max(end, self.cursor))[0])
        else:
            count = log.ordinal_at(end) - log.ordinal_at(first) - due.count_between(first, end)
            self.skips.add(first, end, count)
        gaps = [(a, b) for a, b in pairwise([first - 1, *kept, end]) if a + 1 < b]
        if gaps:
            self.ledger.voided(self.name, [a + 1 for a, _ in gaps], [b for _, b in gaps])

    def overrun(self, end: int) -> int:
        """Give up what is unread before an index; returns how many messages those were.

        What waits once more, or for its time, stays; what a range reader has read does not.
        """
        if self.kept is not None and self.kept < end:
            self.keep(end)
        end = min(end, self.stream.end)
        if self.cursor >= end:
            return 0
        before = self.fresh_count()
        self.void(self.cursor, end, kept=self._apart_between(self.cursor, end))
        return before - self.fresh_count()

    def _apart_between(self, first: int, end: int) -> list[int]:
        """What the cursor, still before it, will not deliver, but the channel: ascending."""
        if self.range_epoch:
            return []
        unfinished = self.unfinished()
        unfinished = unfinished[(first <= unfinished) & (unfinished < end)]
        found: list[int] = np.union1d(unfinished, self.pending_between(first, end)).tolist()
        return found

    def expire(self, indexes: NDArray[np.int64]) -> None:
        """Messages have come up for delivery that are too old: they are finished unread."""
        self.expired_count += len(indexes)
        ranges = ranges_of(indexes)
        self.forget(*ranges)
        self.ledger.finished(self.name, *ranges)

    def forget(self, starts: Sequence[int], ends: Sequence[int]) -> None:
        """What is remembered of messages that are finished now."""
        self.fates.forget(starts, ends)
        if self.redriven:
            for first, end in zip(starts, ends, strict=True):
                drop_range(self.redriven, first, end)

    def tell_lost(self, now: Instant) -> tuple[int, int]:
        """How many messages were voided, and how many too old, since this last told of some.

        (0, 0): none, or it told of some within the last minute.
        """
        counts = self.voided_count, self.expired_count
        if now.mono_ns < self._told_ns or counts == self._told:
            return 0, 0
        voided, expired = counts[0] - self._told[0], counts[1] - self._told[1]
        self._told, self._told_ns = counts, now.mono_ns + LOST_TOLD_NS
        return voided, expired

    def bound(self, count_max: int) -> None:
        """Drop the newest unread messages beyond a number of them (decision 16)."""
        excess = self.depth() - count_max
        if excess > 0:
            stream = self.stream
            end = stream.end
            fresh_end = stream.log.index_at_ordinal(stream.ordinal - excess)
            first = max(self.cursor, self.skips.end(self.cursor), fresh_end)
            if first < end:
                self.void(first, end)

    def pause(self, paused: bool) -> None:
        """Stop or resume deliveries; what is in flight goes on."""
        if paused != self.paused:
            self.paused = paused
            self.ledger.paused(self.name, paused)

    def unfinished(self) -> NDArray[np.int64]:
        """The unfinished indexes that the cursor has passed or that stand outside it, ascending."""
        parts = (
            self.in_flight.indexes(),
            self.again.indexes(),
            self.delays.indexes(),
            self.pending_between(self.start, self.cursor),
        )
        return np.sort(np.concatenate(parts))

    def latency(self, now: Instant) -> Latency:
        """How long the messages took that were finished lately."""
        if self.latencies is None:
            return OFF
        return merged([self.latencies], self.latencies.quantiles, now.mono_ns)

    @property
    def message_count(self) -> int:
        """Messages put to this channel since nsqd started or the channel was created."""
        return self.stream.ordinal - self.base_ordinal


def refusal(command: str, message_id: bytes, why: int) -> RemoteError:
    """The error for a message that is not in flight with this client."""
    text = message_id.decode("utf-8", "surrogateescape")
    reason = "ID not in flight" if why == NOT_IN_FLIGHT else "client does not own message"
    return RemoteError(f"E_{command}_FAILED", f"{command} {text} failed {reason}")
