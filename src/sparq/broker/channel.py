"""A channel: a cursor over its topic's log, and the unfinished messages before the cursor.

Finished messages are not listed. From `start` to the cursor, every message is finished except those
in flight, ready again, delayed, or pending in the topic's due list. Invariants:

1. An index is in at most one of these places, and in `skips` only if it is at or after the cursor.
2. `cursor <= stream.end`; `cursor_ordinal` is the number of messages in the log before the cursor.
3. `ready_sessions` holds every session whose window is open, the one waiting longest first. The
   next delivery removes those whose window has closed since.
4. Everything a restart needs is noted in `ledger` in the turn in which it happens.
5. A channel calls only its sessions and its own components. The caller of a channel must also call
   `Topic.wake`, with its topic in the turn: the turn then ends with deliveries and takes `due_ns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sparq.broker.counts import ChannelCounts
from sparq.broker.in_flight import DEAD_LETTERS, NOT_IN_FLIGHT, InFlight, Rows, ranges_of
from sparq.broker.last_deliveries import LastDeliveries
from sparq.broker.latency import KnownAges, LatencyWindow
from sparq.broker.ledger_writer import NoLedger
from sparq.broker.options import NEVER, QueueSettings
from sparq.broker.session import Proximity, V2Session
from sparq.broker.stream import Skips, Stream
from sparq.broker.waiting import DueTimes, RequeueQueue
from sparq.log.ledger import Ledger
from sparq.log.records import RecordKind, drop_range
from sparq.options.units import MILLISECOND
from sparq.protocol.commands import Finish, Requeue, Touch
from sparq.protocol.errors import RemoteError
from sparq.protocol.frames import Run
from sparq.protocol.instant import Instant
from sparq.protocol.layout import INDEX_BITS, INDEX_LIMIT

SeekTarget = Literal["earliest", "latest"] | int | tuple[Literal["time", "last"], int]
"""A place in a log: an end of it, an index, the first message published at or after a wall time
(ns), or the last N messages."""


class Channel:
    """One channel of a topic.

    Attributes:
        start: messages before it do not belong to this channel.
        cursor: the next index to deliver for the first time.
        sessions: the subscribers, by the owner number that `in_flight` uses for them.
        range_epoch: epoch of the newest range reader's attach; 0: the channel is streamed (again).
        detached: deferred publishes of the topic that this channel has finished or holds elsewhere.
        is_retired: whether it is deleted; a new channel of the same name may exist.
        range_reader: the range reader that holds this channel; None: no reader does.
        settings: the channel's settings; the topic replaces them when policies change.
        kept: first index that the log keeps for a range reader (see `commit`); None: none.
        committed_mono_ns: time of the last range commit; None: none since nsqd started.
        due_ns: a lower bound (mono ns) of the next time at which something is due.
        outlook: earlier depths and message times, for the age and time-to-clear figures.
        latencies: publish-to-FIN times of recently finished messages; None: not measured.
        counts: what it has counted since nsqd started.
        last_deliveries: how the last deliveries of possible dead letters ended.
        redriven: for messages that were sent back as dead letters, how many times.
        base_ordinal: number of messages that are not its own (for message_count): those before its
            first one, and those that were published for another channel alone.
    """

    def __init__(
        self,
        name: str,
        stream: Stream,
        ledger: Ledger | NoLedger,
        settings: QueueSettings,
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
        self._begin_anew()
        self.sessions: dict[int, V2Session] = {}
        self.ready_sessions: dict[V2Session, None] = {}
        self.range_reader: V2Session | None = None
        self.range_epoch = 0
        self.kept: int | None = None
        self.committed_mono_ns: int | None = None
        self.paused = self.is_retired = False
        self.again_next = False
        self.counts = ChannelCounts()
        self.latencies: LatencyWindow | None = None
        self.outlook = KnownAges()
        self.due_ns = NEVER
        self._last_owner = DEAD_LETTERS  # sessions are numbered from the next one on
        self._id_base = stream.log.node_id << INDEX_BITS
        self._raw_base = np.uint64(self._id_base)

    def _begin_anew(self) -> None:
        """Begin without messages around the cursor."""
        self.in_flight = InFlight()
        self.requeued = RequeueQueue()
        self.delays: DueTimes[int] = DueTimes()
        self.skips = Skips()
        self.detached: set[int] = set()
        self.last_deliveries = LastDeliveries()
        self.redriven: dict[int, int] = {}

    # Subscribers

    def subscribe(self, session: V2Session) -> None:
        """Add a session to the consumers."""
        if self.range_epoch:
            self.range_epoch = 0
            # A range reader gets deferred publishes from the log; a streaming cursor skips them, so
            # those ahead of it that are due already must join now.
            self.join(self.stream.due.joined_from(self.cursor, self.stream.end))
        self.keep(None)
        self._last_owner += 1
        session.owner = self._last_owner
        self.sessions[session.owner] = session

    def unsubscribe(self, session: V2Session, now: Instant, *, requeue: bool) -> None:
        """Remove a session; its messages wait for their timeouts unless they are requeued."""
        if self.sessions.pop(session.owner, None) is None:
            return
        self.ready_sessions.pop(session, None)
        if self.settings.max_attempts and session.in_flight_count:
            self.last_deliveries.left(session)
        if requeue:
            self._returned_unanswered(self.in_flight.release_owner(session.owner), now)

    def opened(self, session: V2Session) -> None:
        """Mark a session as ready if its window is open."""
        if session not in self.ready_sessions and session.window() > 0:
            self.ready_sessions[session] = None

    # Commands of subscribers

    def finish(self, session: V2Session, command: Finish, now: Instant) -> None:
        """FIN, a run of them; each one that fails is answered with an error."""
        indexes = self._indexes(command.raw_ids)
        if self.latencies is not None:
            # First, since `finish` frees the slots that hold the publish times.
            published_ns = self.in_flight.published(indexes, session.owner)
            self.latencies.add(now.wall_ns - published_ns, now.mono_ns)
        freed = self.in_flight.finish(indexes, session.owner)
        if freed.freed:
            session.in_flight_count -= freed.freed
            session.finish_count += freed.freed
            self.counts.finish_count += freed.freed
            if self.last_deliveries.by_index or self.redriven:
                self.forget(freed.starts, freed.ends)
            self.ledger.note(RecordKind.FINISHED, self.name, freed.starts, freed.ends)
            self.opened(session)
        for position, why in freed.failures:
            session.reply_error(refusal("FIN", command.id_text(position), why))

    def id_of(self, index: int) -> str:
        """Return a message's id in the form that consumers see."""
        return f"{self._id_base | index:016x}"

    def _indexes(self, raw: range | list[int] | NDArray[np.uint64]) -> Run | list[int]:
        """Convert ids to indexes; ids of another node become indexes outside every page."""
        base = self._id_base
        if isinstance(raw, list):
            return [number - base for number in raw]
        if isinstance(raw, range):
            if base <= raw.start and raw.stop <= base + INDEX_LIMIT:
                return range(raw.start - base, raw.stop - base)
            raw = np.arange(raw.start, raw.stop, dtype=np.uint64)
        # Unsigned: an id of another node wraps to an index without a page, so no id is checked.
        return (raw - self._raw_base).view(np.int64)

    def requeue(self, session: V2Session, command: Requeue, now: Instant) -> None:
        """REQ: make the message ready again, at once or after a delay.

        Raises:
            RemoteError: the message is not in flight with this session.
        """
        index = command.raw_id - self._id_base
        attempts = self.in_flight.release(index, session.owner)
        if attempts <= NOT_IN_FLIGHT:
            raise refusal("REQ", command.id, attempts)
        session.in_flight_count -= 1
        session.requeue_count += 1
        self.counts.requeue_count += 1
        if self.settings.max_attempts:
            self.last_deliveries.requeued(index, session, now.wall_ns)
        delay_ns = command.timeout_ms * MILLISECOND
        if delay_ns:
            self.delays.add(index, now.mono_ns + delay_ns, attempts)
            self.ledger.note(
                RecordKind.REQUEUED, self.name, [index], [now.wall_ns + delay_ns], [attempts]
            )
            self.due_ns = min(self.due_ns, now.mono_ns + delay_ns)
        else:
            # No record: to a restart it is unfinished, with the attempts noted at its delivery.
            self.requeued.push(index, attempts)
        self.opened(session)

    def touch(self, session: V2Session, command: Touch, now: Instant, cap_ns: int) -> None:
        """TOUCH: restart the message's timeout, up to `cap_ns` after its delivery.

        Raises:
            RemoteError: the message is not in flight with this session.
        """
        index = command.raw_id - self._id_base
        deadline_ns = now.mono_ns + session.msg_timeout_ns
        result = self.in_flight.touch(index, session.owner, deadline_ns, cap_ns)
        # A touch never moves a deadline to an earlier time, so no timer needs to be set.
        if result <= NOT_IN_FLIGHT:
            raise refusal("TOUCH", command.id, result)

    # Time

    def on_time(self, now: Instant) -> None:
        """Requeue messages that timed out, and those whose REQ delay is over."""
        expired = self.in_flight.expire(now.mono_ns)
        self.counts.timeout_count += len(expired.indexes)
        self._returned_unanswered(expired, now)
        for index, attempts in self.delays.pop_due(now.mono_ns):
            self.requeued.push(index, attempts)
        self.reschedule()

    def _returned_unanswered(self, rows: Rows, now: Instant) -> None:
        """Make messages ready again that no consumer has answered."""
        if (most := self.settings.max_attempts) and len(rows.indexes):
            self.last_deliveries.expired(rows, self.sessions, most, now.wall_ns)
        self.take_back(rows)

    def reschedule(self) -> None:
        """Recompute `due_ns`."""
        self.due_ns = min(self.in_flight.next_deadline_ns(), self.delays.next_due_ns())

    def take_back(self, rows: Rows) -> None:
        """Make messages that are no longer in flight ready for delivery again."""
        if len(rows.indexes):
            self.requeued.push_many(rows.indexes, rows.attempts)
            self.taken_from_owners(rows)

    def taken_from_owners(self, rows: Rows) -> None:
        """Update the former owners of messages: their windows may have opened."""
        owners, counts = np.unique(rows.owners, return_counts=True)
        for owner, count in zip(owners.tolist(), counts.tolist(), strict=True):
            session = self.sessions.get(owner)
            if session is not None:
                session.in_flight_count -= count
                self.opened(session)

    def join(self, due: list[int]) -> None:
        """Make deferred publishes that are due now ready, if they belong to this channel."""
        if self.range_epoch:
            return
        concerned = [index for index in due if index >= self.start]
        if self.detached:
            concerned = [index for index in concerned if index not in self.detached]
            self.detached.difference_update(due)
        if concerned:
            attempts = np.zeros(len(concerned), np.uint16)
            self.requeued.push_many(np.array(concerned, np.int64), attempts)

    # Moving the cursor

    def fresh_count(self) -> int:
        """Messages between the cursor and P that the cursor will deliver."""
        stream = self.stream
        count = stream.ordinal - self.cursor_ordinal
        if self.range_epoch:
            return count
        if self.skips.ranges:
            count -= self.skips.count
        if stream.due.skipped:
            count -= stream.due.count_between(self.cursor, stream.end)
        return count

    def depth(self) -> int:
        """Messages between cursor and P that wait for a consumer, and those to redeliver."""
        return max(0, self.fresh_count()) + len(self.requeued)

    def deferred_count(self) -> int:
        """Messages that wait for a time: REQ delays and the topic's deferred publishes."""
        return len(self.delays) + len(self.pending_between(self.start, self.stream.end))

    def pending_between(self, first: int, end: int) -> NDArray[np.int64]:
        """The deferred publishes in [first, end) that this channel still waits for, ascending."""
        pending = self.stream.due.pending_between(first, end)
        if self.detached and len(pending):
            pending = pending[~np.isin(pending, np.array(list(self.detached), np.int64))]
        return pending

    def run_end(self) -> int:
        """Move the cursor past messages it must skip; returns the end of the run after it."""
        stream = self.stream
        due = stream.due
        if not self.skips.ranges and not due.skipped:
            return stream.end
        cursor = self.cursor
        while True:
            # In turn until neither moves it: a skipped range may end at a deferred publish.
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
        """Restart at an index: everything before it is finished, nothing from it on is."""
        self._begin_anew()
        self.start = self.noted_cursor = index
        self.kept = None
        self._move(index)
        self.ledger.note(RecordKind.SEEK, self.name, [index])
        self.join(self.stream.due.joined_from(index, self.stream.end))
        for session in self.sessions.values():
            session.in_flight_count = 0  # as in NSQ when a channel is emptied: later FINs fail
            self.opened(session)

    def commit(self, index: int) -> None:
        """Apply a range reader's commit: everything before an index is finished.

        The log keeps what the reader has read since its previous commit until its next one: if the
        reader loses its own record of this commit (a file in Spark's `commits/`), it reads that
        part again.
        """
        before = self.cursor
        self.seek(index)
        if before < index:
            self.keep(before)

    def keep(self, index: int | None) -> None:
        """Have the log keep messages already read, from an index on; None: keep none."""
        if index != self.kept:
            self.kept = index
            self.ledger.note(RecordKind.KEPT, self.name, [-1 if index is None else index])

    def retire(self) -> None:
        """Clear the state of a deleted channel: later calls find nothing to do."""
        self.is_retired = True
        self.due_ns = NEVER
        self._begin_anew()
        self.ready_sessions.clear()
        self.sessions.clear()
        self.range_reader = None

    def void(self, first: int, end: int, *, kept: Sequence[int] = ()) -> None:
        """Skip the messages [first, end): they are not for this channel.

        Args:
            first: first index of the range, at or after the cursor.
            end: end of the range.
            kept: ascending indexes in the range that this channel holds elsewhere or still waits
                for. The cursor skips them too, but the ledger must not record them as finished,
                or a restart would drop them.
        """
        log, due = self.stream.log, self.stream.due
        if self.cursor >= first:
            self._move(self.skips.jump(max(end, self.cursor))[0])
        else:
            count = log.ordinal_at(end) - log.ordinal_at(first) - due.count_between(first, end)
            self.skips.add(first, end, count)
        gaps = [(a, b) for a, b in pairwise([first - 1, *kept, end]) if a + 1 < b]
        if gaps:
            self.ledger.note(
                RecordKind.VOIDED, self.name, [a + 1 for a, _ in gaps], [b for _, b in gaps]
            )

    def overrun(self, end: int) -> int:
        """Drop unread messages before an index; returns how many.

        Requeued, timed-out and deferred messages stay; what a range reader has read does not.
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
        """Unfinished messages in [first, end) that the cursor will not deliver, ascending."""
        if self.range_epoch:
            return []
        unfinished = self.unfinished()
        unfinished = unfinished[(first <= unfinished) & (unfinished < end)]
        found: list[int] = np.union1d(unfinished, self.pending_between(first, end)).tolist()
        return found

    def count_deliveries(self, messages: int, nearness: Proximity) -> None:
        """Count deliveries by the consumer's location."""
        if nearness is Proximity.ZONE:
            self.counts.zone_local_msg_count += messages
        elif nearness is Proximity.REGION:
            self.counts.region_local_msg_count += messages
        else:
            self.counts.global_msg_count += messages

    def expire(self, indexes: NDArray[np.int64]) -> None:
        """Finish messages undelivered because they are too old."""
        self.counts.expired_count += len(indexes)
        ranges = ranges_of(indexes)
        self.forget(*ranges)
        self.ledger.note(RecordKind.FINISHED, self.name, *ranges)

    def forget(self, starts: Sequence[int], ends: Sequence[int]) -> None:
        """Drop what is remembered about messages that are finished now."""
        self.last_deliveries.forget(starts, ends)
        if self.redriven:
            for first, end in zip(starts, ends, strict=True):
                drop_range(self.redriven, first, end)

    def bound(self, count_max: int) -> None:
        """Drop the newest unread messages beyond `count_max`: an ephemeral channel is bounded."""
        excess = self.depth() - count_max
        if excess > 0:
            stream = self.stream
            end = stream.end
            fresh_end = stream.log.index_at_ordinal(stream.ordinal - excess)
            first = max(self.cursor, self.skips.end(self.cursor), fresh_end)
            if first < end:
                self.void(first, end)

    def pause(self, paused: bool) -> None:
        """Stop or resume deliveries; messages in flight are not affected."""
        if paused != self.paused:
            self.paused = paused
            self.ledger.note(RecordKind.PAUSED, self.name, flag=paused)

    def unfinished(self) -> NDArray[np.int64]:
        """Unfinished messages that the cursor has passed or will not deliver itself, ascending."""
        parts = (
            self.in_flight.indexes(),
            self.requeued.all()[0],
            np.fromiter(self.delays, np.int64, len(self.delays)),
            self.pending_between(self.start, self.cursor),
        )
        return np.sort(np.concatenate(parts))

    @property
    def message_count(self) -> int:
        """Messages put to this channel since nsqd started or the channel was created."""
        return self.stream.ordinal - self.base_ordinal


def refusal(command: str, message_id: bytes, why: int) -> RemoteError:
    """The error for a message that is not in flight with this client."""
    text = message_id.decode("utf-8", "surrogateescape")
    reason = "ID not in flight" if why == NOT_IN_FLIGHT else "client does not own message"
    return RemoteError(f"E_{command}_FAILED", f"{command} {text} failed {reason}")
