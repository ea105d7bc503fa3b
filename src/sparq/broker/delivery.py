"""Delivery for one channel at the end of a turn: which consumer gets which messages.

1. A burst is divided equally among the sessions whose window is open. The session that has waited
   longest comes first; a session that was served goes to the end. Nothing is
   delivered while the channel is paused, or held by a range reader.
2. First deliveries are slices of the log's blocks in publishing order, noted by one array write.
3. While fresh messages are available, at most half of a run are redeliveries; runs of one message
   alternate. Redeliveries are copied, since their attempts must be patched.
4. A run ends with the message that fills the session's output.
5. With topology-aware consumption (NSQ's experiment: traffic between zones costs money) a session
   is served only if no nearer session has an open window. An empty zone is a zone too: if neither
   this nsqd nor any client names one, all consumers are near.
6. Redeliveries (requeued, timed out or due messages) are scattered over the log. They are fetched
   in ascending order, extent by extent; extents that are not in memory are read many
   at a time. They are copied because each frame contains the number of attempts. The new number is
   noted in the ledger: after a crash, counting continues from it. A run from several
   blocks is still one output, one note of messages in flight and one record of the ledger.
7. With `--message-ttl`, a message published longer ago is not delivered, neither for the first time
   nor again; it is finished instead. The publish time counts, also for deferred messages. The age
   is checked when a message comes up for delivery; messages that no consumer asks for are removed
   soon after (see `trimming`). After a clock was set back, older messages can follow newer.
8. With `max_attempts`, a message that comes up for delivery after that many attempts is a dead
   letter: it is added to `Turn.letters` and not sent to a consumer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparq.broker.channel import Channel
from sparq.broker.dead_letters import dead_letters_of, mark_as_claimed
from sparq.broker.in_flight import PAGE_MASK, ranges_of
from sparq.broker.session import V2Session
from sparq.broker.turn import Turn
from sparq.log.block import Block
from sparq.log.reading import BlockRead
from sparq.log.records import RecordKind
from sparq.protocol.frames import patch_attempts
from sparq.protocol.instant import Instant
from sparq.protocol.layout import ATTEMPTS_MAX, ATTEMPTS_OFFSET

Indexes = NDArray[np.int64]
Attempts = NDArray[np.uint16]

SHARERS_MIN: Final = 4
"""For fewer consumers than this, shares cost more than they save."""

# One extent per turn, with a search of the queue in each turn, gave 2,326 and 2,632 messages per
# second of CPU instead of 18,182 and 15,385.
READS_MAX: Final = 64
"""Extents requested at a time: a task for fewer costs more than reading them."""

TIMESTAMP = slice(8, ATTEMPTS_OFFSET)
"""Position of the publish time in a frame."""


class DeliveryContext(NamedTuple):
    """The context of one delivery: the channel, the time, and the turn that takes the results."""

    channel: Channel
    turn: Turn[Any]
    now: Instant

    def deadline_ns(self, session: V2Session) -> int:
        """When messages delivered now to the session time out; updates the channel's `due_ns`."""
        channel = self.channel
        deadline_ns = self.now.mono_ns + session.msg_timeout_ns
        channel.due_ns = min(channel.due_ns, deadline_ns)
        return deadline_ns

    def oldest_ns(self) -> int:
        """Messages published before this time (wall ns) are too old to be delivered."""
        return self.now.wall_ns - self.channel.settings.message_ttl_ns


def deliver(context: DeliveryContext) -> None:
    """Deliver available messages to ready sessions."""
    channel = context.channel
    if channel.paused or channel.range_reader is not None:
        return
    while channel.ready_sessions:
        available = channel.fresh_count() + len(channel.requeued)
        if available <= 0 or not _round(context, available):
            break
    # Written before these messages leave, so that a restart counts them as delivered. One record
    # for all runs of the turn: only the last position matters.
    if channel.cursor != channel.noted_cursor:
        channel.noted_cursor = channel.cursor
        channel.ledger.note(RecordKind.CURSOR, channel.name, [channel.cursor])


def _round(context: DeliveryContext, available: int) -> int:
    """Give each ready session one equal share; returns how many messages left the queue."""
    channel = context.channel
    ready = channel.ready_sessions
    sessions = tuple(ready)
    if sessions[0].nearness is not None:
        least = min(session.nearness or 0 for session in sessions)
        sessions = tuple(session for session in sessions if session.nearness == least)
    # Rounded up: if there are fewer messages than sessions, the first sessions get one each.
    share = -(-available // len(sessions))
    seen = given = 0
    # Not with redeliveries, whose attempts are patched, nor where locations must be counted.
    if len(sessions) >= SHARERS_MIN and not channel.requeued and sessions[0].nearness is None:
        seen, given = _give_shares(context, sessions, share, available)
    for session in sessions[seen:]:
        if given >= available:
            break
        count = min(share, session.window(), available - given)
        if count > 0:
            sent = session.message_count
            taken = give(context, session, count)
            sent = session.message_count - sent
            if session.nearness is None:
                channel.counts.global_msg_count += sent
            else:
                channel.count_deliveries(sent, session.nearness)
            if not taken:
                # The next messages are not in memory, for any session: this one stays first.
                return 0
            context.turn.sessions[session] = None
            given += taken
        # A dict keeps the order of insertion: added again, the session is last.
        del ready[session]
        if session.window() > 0:
            ready[session] = None
    return given


def _give_shares(
    context: DeliveryContext, sessions: Sequence[V2Session], share: int, available: int
) -> tuple[int, int]:
    """Serve the first of many sessions at once, each with a slice of one block.

    Fifty consumers with RDY 1 that finish their messages in the same turn each get one message.
    Finding the block, noting and counting once per consumer took a fifth of the time per message.
    Stops before the first session that cannot take a slice: it samples, takes envelopes, its share
    exceeds the block or the page of `in_flight`, or its output would overflow.

    Returns:
        How many sessions had their turn, and how many messages left the queue.
    """
    channel, turn = context.channel, context.turn
    end, first = channel.run_end(), channel.cursor
    block = channel.stream.block(first) if first < end else None
    # With these, each message must be checked for its age, or timed.
    if block is None or channel.settings.message_ttl_ns or channel.latencies is not None:
        return 0, 0
    # Within one page of `in_flight`, so that all shares are noted by one write.
    end = min(end, first + available, block.end, (first | PAGE_MASK) + 1)
    ends = block.ends[first - block.first : end - block.first].tolist()
    frames, start = memoryview(block.frames), block.start_of(first)
    counts: list[int] = []
    owners: list[int] = []
    deadlines: list[int] = []
    seen = given = 0
    for session in sessions:
        # Checked inline and not in a function: this runs for each message.
        if given == available or session.sample_rate or session.takes_envelopes:
            break
        window = session.window()
        count = min(share, window, available - given)
        if count > 0:
            if given + count > len(ends):
                break
            stop = ends[given + count - 1]
            if stop - start > session.room_bytes():
                break
            # A slice of the block, uncopied: it keeps the block in memory until it is sent.
            session.send(frames[start:stop], stop - start, count)
            turn.sessions[session] = None
            counts.append(count)
            owners.append(session.owner)
            deadlines.append(context.now.mono_ns + session.msg_timeout_ns)
            given += count
            start = stop
        seen += 1
        del channel.ready_sessions[session]
        # Computed again, since the output may be full now.
        if window > count and session.window() > 0:
            channel.ready_sessions[session] = None
    if given:
        channel.in_flight.note_run(
            first,
            first + given,
            np.repeat(np.array(owners, np.uint32), counts),
            now_ns=context.now.mono_ns,
            deadline_ns=np.repeat(np.array(deadlines, np.int64), counts),
        )
        channel.due_ns = min(channel.due_ns, *deadlines)
        channel.counts.global_msg_count += given
        frame = block.slice(first, first + 1)
        waited_ns = context.now.wall_ns - int.from_bytes(frame[TIMESTAMP])
        turn.waited.observe(waited_ns, given)
        _advance(channel, block, first + given)
    return seen, given


def give(context: DeliveryContext, session: V2Session, count: int) -> int:
    """Give a session up to `count` messages; returns how many left the channel's queue."""
    channel = context.channel
    waiting = len(channel.requeued)
    if not waiting:
        return give_fresh(context, session, count)
    quota = count
    if channel.fresh_count() > 0:
        quota = count // 2
        if count == 1:
            channel.again_next = not channel.again_next
            quota = int(channel.again_next)
    given = give_again(context, session, min(quota, waiting))
    given += give_fresh(context, session, count - given)
    # Fresh messages did not fill their half, or none are in memory.
    if given < count:
        given += give_again(context, session, min(count - given, len(channel.requeued)))
    return given


def give_fresh(context: DeliveryContext, session: V2Session, count: int) -> int:
    """Give a session the next messages of the log; returns how many left the queue."""
    channel = context.channel
    given = 0
    while given < count and session.room_bytes() > 0:
        end = channel.run_end()
        first = channel.cursor
        if first >= end:
            break
        block = channel.stream.block(first, sealed=session.takes_envelopes)
        if block is None:
            # Indexes have gaps: failed writes, damage, each start of nsqd.
            if channel.pass_hole():
                continue
            channel.stream.want_next(first, channel.name)
            break
        if channel.settings.message_ttl_ns and block.oldest_ns() < context.oldest_ns():
            end = _young_end(context, block, (first, end))
            if end == first:
                continue
        end, frames = _run_within(block, first, min(end, first + count - given), session)
        if session.sample_rate:
            indexes = np.arange(first, end, dtype=np.int64)
            run = DeliveryRun(block, indexes, np.zeros(len(indexes), np.uint16))
            _send_copies(context, session, [run], is_first=True)
        else:
            _send(context, session, block, frames, (first, end))
        _advance(channel, block, end)
        given += end - first
    return given


def _young_end(context: DeliveryContext, block: Block, run: tuple[int, int]) -> int:
    """Where the run must end before a message that is too old; expires such messages at its start.

    Returns `first` if messages were expired: the cursor has moved past them.
    """
    channel = context.channel
    first, end = run
    indexes = np.arange(first, min(end, block.end), dtype=np.int64)
    alive = block.timestamps(indexes) >= context.oldest_ns()
    if alive[0]:
        return end if alive.all() else first + int(alive.argmin())
    count = int(alive.argmax()) if alive.any() else len(indexes)
    channel.expire(indexes[:count])
    _advance(channel, block, first + count)
    return first


def _advance(channel: Channel, block: Block, cursor: int) -> None:
    """Move the cursor within a block; at its end, request the next while clients are busy."""
    stream = channel.stream
    channel.cursor, channel.cursor_ordinal = cursor, block.ordinal + (cursor - block.first)
    is_used_up = cursor == block.first + block.count
    if is_used_up and cursor < stream.end and stream.log.block(cursor) is None:
        following = stream.log.next_stored(cursor)
        if following < stream.end and stream.log.block(following) is None:
            stream.want_next(following, channel.name)


def _run_within(block: Block, first: int, end: int, session: V2Session) -> tuple[int, memoryview]:
    """The end of a run from `first`, and its frames.

    The run ends at `end`, at the block's end, or with the message that fills the output.
    """
    ends = block.ends
    low = first - block.first
    high = min(end - block.first, block.count)
    start = int(ends[low - 1]) if low else 0
    stop = int(ends[high - 1])
    if stop - start > session.room_bytes():
        # `+ 1`: with the message that exceeds the room; one larger than the limit would never
        # leave.
        high = min(high, int(np.searchsorted(ends, start + session.room_bytes())) + 1)
        stop = int(ends[high - 1])
    return block.first + high, memoryview(block.frames)[start:stop]


def _send(
    context: DeliveryContext,
    session: V2Session,
    block: Block,
    frames: memoryview,
    run: tuple[int, int],
) -> None:
    """Send first deliveries as they are stored."""
    first, end = run
    in_flight = context.channel.in_flight
    session.send(frames, len(frames), end - first)
    # All count as the first, which waited longest: a run must not cost more than one message.
    waited_ns = context.now.wall_ns - int.from_bytes(frames[TIMESTAMP])
    context.turn.waited.observe(waited_ns, end - first)
    deadline_ns = context.deadline_ns(session)
    in_flight.note_run(
        first, end, session.owner, now_ns=context.now.mono_ns, deadline_ns=deadline_ns
    )
    if context.channel.latencies is not None:
        indexes = np.arange(first, end)
        in_flight.note_published(indexes, block.timestamps(indexes))


class DeliveryRun(NamedTuple):
    """Messages of one block for one session."""

    block: Block
    indexes: Indexes
    attempts: Attempts


def give_again(context: DeliveryContext, session: V2Session, count: int) -> int:
    """Redeliver up to `count` waiting messages to a session.

    Messages that are not in memory are requested and keep waiting; messages that the log has lost
    are dropped. Returns how many left the queue.
    """
    if count <= 0 or session.room_bytes() <= 0:
        return 0
    channel = context.channel
    indexes, attempts = channel.requeued.take(count)
    # Ascending: messages of one block are found, read and copied together.
    order = np.argsort(indexes)
    indexes, attempts = indexes[order], attempts[order]
    runs, waits = _collect(context, session, indexes, attempts)
    # First the age: what is too old is finished, and needs no dead letter.
    if runs and channel.settings.message_ttl_ns:
        runs = _without_expired(context, runs)
    if runs and channel.settings.max_attempts:
        runs = _without_dead(context, runs)
    if runs:
        _send_copies(context, session, runs)
    channel.requeued.push_front(indexes[waits], attempts[waits])
    return len(indexes) - int(waits.sum())


def _collect(
    context: DeliveryContext, session: V2Session, indexes: Indexes, attempts: Attempts
) -> tuple[list[DeliveryRun], NDArray[np.bool_]]:
    """Return the runs that are in memory and fit, and a mask of the messages that must wait.

    Messages that are not in memory are requested, up to `READS_MAX` extents at a time. While those
    reads are pending, at most `READS_MAX` misses are looked at: the queue may be long, and this
    runs in each turn.
    """
    channel = context.channel
    stream, log = channel.stream, channel.stream.log
    is_reading = channel.name in stream.reading
    misses_max = READS_MAX if is_reading else len(indexes)
    may_read = not is_reading and channel.name not in stream.failed
    waits = np.zeros(len(indexes), np.bool_)
    runs: list[DeliveryRun] = []
    reads: list[BlockRead] = []
    room_bytes = session.room_bytes()
    misses = read_bytes = at = 0
    while at < len(indexes):
        has_asked = len(reads) >= READS_MAX or read_bytes > stream.read_bytes_max
        if room_bytes <= 0 or has_asked or misses >= misses_max:
            waits[at:] = True
            break
        index = int(indexes[at])
        block = stream.block(index, sealed=session.takes_envelopes)
        if block is not None:
            end = at + int(indexes[at:].searchsorted(block.end))
            fits, size = _fitting(block, indexes[at:end], room_bytes)
            end = at + fits
            room_bytes -= size
            runs.append(DeliveryRun(block, indexes[at:end], attempts[at:end]))
            at = end
            continue
        misses += 1
        if not may_read:
            waits[at] = True
            at += 1
            continue
        read = log.load(index)
        if read.place is None:  # the log has lost it
            at += 1
            continue
        end = at + int(indexes[at:].searchsorted(read.place.extent.end))
        waits[at:end] = True
        at = end
        reads.append(read)
        read_bytes += read.place.extent.size
    stream.want(reads, channel.name)
    return runs, waits


def _bounds(block: Block, indexes: Indexes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the frames of these messages begin and end in the block."""
    positions = indexes - block.first
    ends = block.ends[positions].astype(np.int64)
    starts = np.where(positions > 0, block.ends[positions - 1], 0).astype(np.int64)
    return starts, ends


def _fitting(block: Block, indexes: Indexes, room_bytes: int) -> tuple[int, int]:
    """How many messages fit, and their size in bytes; the last one may exceed the room."""
    starts, ends = _bounds(block, indexes)
    filled = np.cumsum(ends - starts)
    count = min(len(indexes), int(np.searchsorted(filled, room_bytes)) + 1)
    return count, int(filled[count - 1])


def _send_copies(
    context: DeliveryContext,
    session: V2Session,
    runs: list[DeliveryRun],
    *,
    is_first: bool = False,
) -> None:
    """Send redeliveries, or first deliveries to a sampling client, with patched attempts."""
    channel, turn, now = context
    if session.sample_rate:
        runs = _sampled(context, session, runs)
        if not runs:
            return
    indexes = np.concatenate([run.indexes for run in runs])
    attempts = np.concatenate([run.attempts for run in runs])
    # In uint16 the sum would wrap to 0, as in NSQ, and a poison message would look new.
    raised = np.minimum(attempts.astype(np.int64) + 1, ATTEMPTS_MAX)
    frames = copy_runs([(run.block, run.indexes) for run in runs], raised)
    session.send(frames, len(frames), len(indexes))
    deadline_ns = context.deadline_ns(session)
    channel.in_flight.note_many(
        indexes, raised, session.owner, now_ns=now.mono_ns, deadline_ns=deadline_ns
    )
    if channel.latencies is not None:
        published = np.concatenate([run.block.timestamps(run.indexes) for run in runs])
        channel.in_flight.note_published(indexes, published)
    if is_first:
        turn.waited.observe(now.wall_ns - int.from_bytes(frames[TIMESTAMP]), len(indexes))
    else:
        channel.ledger.note(
            RecordKind.REQUEUED, channel.name, indexes, np.zeros(len(indexes), np.int64), raised
        )


def _without_expired(context: DeliveryContext, runs: list[DeliveryRun]) -> list[DeliveryRun]:
    """Finish the messages that are too old; returns the runs without them."""
    kept = []
    for run in runs:
        alive = run.block.timestamps(run.indexes) >= context.oldest_ns()
        if not alive.all():
            context.channel.expire(run.indexes[~alive])
        if alive.any():
            kept.append(DeliveryRun(run.block, run.indexes[alive], run.attempts[alive]))
    return kept


def _without_dead(context: DeliveryContext, runs: list[DeliveryRun]) -> list[DeliveryRun]:
    """Take out the messages that become dead letters; returns the runs without them."""
    channel = context.channel
    kept = []
    for block, indexes, attempts in runs:
        dead = attempts >= channel.settings.max_attempts
        if channel.last_deliveries.by_index:
            dead |= channel.last_deliveries.is_poison(indexes)
        if dead.any():
            mark_as_claimed(channel, indexes[dead], attempts[dead], context.now)
            context.turn.letters.append(
                dead_letters_of(channel, block, indexes[dead], attempts[dead])
            )
        if not dead.all():
            kept.append(DeliveryRun(block, indexes[~dead], attempts[~dead]))
    return kept


def _sampled(
    context: DeliveryContext, session: V2Session, runs: list[DeliveryRun]
) -> list[DeliveryRun]:
    """Select a sampling client's messages from the runs and finish the rest."""
    channel, kept = context.channel, []
    for run in runs:
        # Not `<`: NSQ skips a message if `rand.Int31n(100) > sampleRate`, so 42 keeps 43 %.
        keeps = context.turn.random.integers(0, 100, len(run.indexes)) <= session.sample_rate
        if not keeps.all():
            finished = ranges_of(run.indexes[~keeps])
            channel.ledger.note(RecordKind.FINISHED, channel.name, *finished)
        if keeps.any():
            kept.append(DeliveryRun(run.block, run.indexes[keeps], run.attempts[keeps]))
    return kept


def copy_runs(runs: Sequence[tuple[Block, Indexes]], attempts: NDArray[np.integer]) -> bytearray:
    """Copy the frames of ascending indexes of each block into one run, with patched attempts."""
    parts: list[memoryview] = []
    sizes: list[int] = []
    for block, indexes in runs:
        starts, ends = _bounds(block, indexes)
        view = memoryview(block.frames)
        # Calls in C: no bytecode runs for each message.
        parts += map(view.__getitem__, map(slice, starts.tolist(), ends.tolist()))
        sizes += (ends - starts).tolist()
    return patch_attempts(b"".join(parts), np.cumsum(sizes), attempts)
