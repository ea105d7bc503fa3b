"""Who gets which messages: the turn's end for one channel.

1. A burst is shared in equal parts over the sessions whose window is open; who has waited longest
   comes first, and whoever was served goes to the end (decision 13).
2. First deliveries are slices of the log's blocks in publishing order, noted by one array write.
3. Of one run at most half are messages that were out before, while fresh ones can be had; a run of
   one takes turns (decision 12). Those go by the copy path, since their attempts must be patched.
4. A run ends with the message that fills the session's output.
5. With topology-aware consumption nobody is served while somebody nearer has an open window.
"""

from __future__ import annotations

import numpy as np

from sparq.broker import topology
from sparq.broker.channel import Channel
from sparq.broker.handout import Handout
from sparq.broker.in_flight import ranges_of
from sparq.broker.redelivery import give_again
from sparq.broker.sampling import Sampler
from sparq.broker.session import Session
from sparq.broker.topology import nearest
from sparq.log.block import Block
from sparq.protocol.frames import ATTEMPTS_OFFSET
from sparq.protocol.instant import Instant

TIMESTAMP = slice(8, ATTEMPTS_OFFSET)
"""Where a frame says when it was published."""


def hand_out(channel: Channel, sampler: Sampler, now: Instant) -> list[Session]:
    """Give the channel's ready sessions what there is; returns who got something."""
    served: dict[Session, None] = {}
    if channel.paused or channel.hold is not None:
        return []
    while channel.ready:
        available = channel.fresh_count() + len(channel.again)
        if available <= 0 or not _round(channel, available, served, Handout(channel, sampler, now)):
            break
    if channel.cursor != channel.noted_cursor:
        channel.noted_cursor = channel.cursor
        channel.memory.cursor(channel.cursor)
    return list(served)


def _round(channel: Channel, available: int, served: dict[Session, None], handout: Handout) -> int:
    """One equal share for each ready session; returns how many messages left the queue."""
    ready = channel.ready
    sessions = nearest(tuple(ready))
    share = -(-available // len(sessions))
    given = 0
    for session in sessions:
        count = min(share, session.window(), available - given)
        if count > 0:
            sent = session.message_count
            taken = give(handout, session, count)
            topology.count(channel, session, session.message_count - sent)
            if not taken:
                return 0
            served[session] = None
            given += taken
        del ready[session]
        if session.window() > 0:
            ready[session] = None
        if given >= available:
            break
    return given


def give(handout: Handout, session: Session, count: int) -> int:
    """Give one session up to `count` messages; returns how many left the channel's queue."""
    channel = handout.channel
    waiting = len(channel.again)
    if not waiting:
        return give_fresh(handout, session, count)
    quota = count
    if channel.fresh_count() > 0:
        quota = count // 2
        if count == 1:
            channel.again_next = not channel.again_next
            quota = int(channel.again_next)
    given = give_again(handout, session, min(quota, waiting))
    given += give_fresh(handout, session, count - given)
    if given < count:
        given += give_again(handout, session, min(count - given, len(channel.again)))
    return given


def give_fresh(handout: Handout, session: Session, count: int) -> int:
    """Give a session the next messages of the log; returns how many left the queue."""
    channel = handout.channel
    given = 0
    while given < count and session.room_bytes() > 0:
        end = channel.run_end()
        first = channel.cursor
        if first >= end:
            break
        block = channel.stream.log.block(first)
        if block is None:
            if channel.pass_hole():
                continue
            channel.stream.want_next(first, channel)
            break
        end, frames = _run_within(block, first, min(end, first + count - given), session)
        if session.sample_rate:
            _send_sample(handout, session, block, (first, end))
        else:
            _send(handout, session, frames, (first, end))
        if channel.latencies is not None:
            indexes = np.arange(first, end)
            channel.in_flight.note_published(indexes, block.timestamps(indexes))
        channel.cursor = end
        channel.cursor_ordinal = block.ordinal + (end - block.first)
        if end == block.first + block.count:
            _read_ahead(channel)
        given += end - first
    return given


def _read_ahead(channel: Channel) -> None:
    """A block is used up: have the next one read while the clients are busy with this one."""
    cursor, stream = channel.cursor, channel.stream
    if cursor < stream.end and stream.log.block(cursor) is None:
        following = stream.log.next_stored(cursor)
        if following < stream.end and stream.log.block(following) is None:
            stream.want_next(following, channel)


def _run_within(block: Block, first: int, end: int, session: Session) -> tuple[int, memoryview]:
    """Where a run from `first` ends: at `end`, with the block, or with what fills the output; and
    its frames."""
    ends = block.ends
    low = first - block.first
    high = min(end - block.first, block.count)
    start = int(ends[low - 1]) if low else 0
    stop = int(ends[high - 1])
    if stop - start > session.room_bytes():
        high = min(high, int(np.searchsorted(ends, start + session.room_bytes())) + 1)
        stop = int(ends[high - 1])
    return block.first + high, memoryview(block.frames)[start:stop]


def _send(handout: Handout, session: Session, frames: memoryview, run: tuple[int, int]) -> None:
    first, end = run
    session.send(frames, len(frames), end - first)
    # The first has waited longest; it stands for all, lest a run cost more than one message.
    waited_ns = handout.now.wall_ns - int.from_bytes(frames[TIMESTAMP])
    handout.channel.agenda.waited.observe(waited_ns, end - first)
    deadline_ns = handout.deadline_ns(session)
    handout.channel.in_flight.note_run(
        first, end, session.owner, now_ns=handout.now.mono_ns, deadline_ns=deadline_ns
    )


def _send_sample(handout: Handout, session: Session, block: Block, run: tuple[int, int]) -> None:
    indexes = np.arange(*run, dtype=np.int64)
    keeps = handout.sampler.keeps(len(indexes), session.sample_rate)
    if not keeps.all():
        handout.channel.memory.finished(*ranges_of(indexes[~keeps]))
    for kept in zip(*ranges_of(indexes[keeps]), strict=True):
        _send(handout, session, block.slice(*kept), kept)
