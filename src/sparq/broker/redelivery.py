"""Deliveries once more: messages that were requeued, timed out, or became due.

They lie scattered, so they are fetched in ascending order, block by block (decision 21), and are
copied, since the number of attempts stands in each frame. The new number is told to the ledger:
after a crash it must go on from there (decision 11).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sparq.broker.handout import Handout
from sparq.broker.in_flight import ranges_of
from sparq.broker.session import Session
from sparq.log.block import Block
from sparq.protocol.frames import ATTEMPTS_MAX, patch_attempts

Indexes = NDArray[np.int64]
Attempts = NDArray[np.uint16]


def give_again(handout: Handout, session: Session, count: int) -> int:
    """Give a session up to `count` messages that wait to be delivered once more.

    Those that are not in memory are asked for and keep waiting; those that the log has lost are
    dropped. Returns how many left the queue.
    """
    if count <= 0 or session.room_bytes() <= 0:
        return 0
    channel = handout.channel
    indexes, attempts = channel.again.take(count)
    order = np.argsort(indexes)
    indexes, attempts = indexes[order], attempts[order]
    waits = np.zeros(len(indexes), np.bool_)
    asked = False
    at = 0
    while at < len(indexes):
        index = int(indexes[at])
        block = channel.stream.log.block(index)
        if session.room_bytes() <= 0:
            waits[at:] = True
            break
        if block is None:
            # Neighbours lie in the same block: one question at a time is enough.
            waits[at] = channel.stream.log.next_stored(index) == index
            if waits[at] and not asked:
                channel.stream.want(index, channel)
                asked = True
            at += 1
            continue
        end = at + int(np.searchsorted(indexes[at:], block.first + block.count))
        end = at + _fitting(block, indexes[at:end], session.room_bytes())
        _send(handout, session, block, indexes[at:end], attempts[at:end])
        at = end
    channel.again.push_front(indexes[waits], attempts[waits])
    return len(indexes) - int(waits.sum())


def _bounds(block: Block, indexes: Indexes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the frames of these messages begin and end in the block."""
    positions = indexes - block.first
    ends = block.ends[positions].astype(np.int64)
    starts = np.where(positions > 0, block.ends[positions - 1], 0).astype(np.int64)
    return starts, ends


def _fitting(block: Block, indexes: Indexes, room_bytes: int) -> int:
    """How many of the messages go into the room; the last may be more than fits."""
    starts, ends = _bounds(block, indexes)
    filled = np.cumsum(ends - starts)
    return min(len(indexes), int(np.searchsorted(filled, room_bytes)) + 1)


def _send(
    handout: Handout, session: Session, block: Block, indexes: Indexes, attempts: Attempts
) -> None:
    channel = handout.channel
    if session.sample_rate:
        keeps = handout.sampler.keeps(len(indexes), session.sample_rate)
        if not keeps.all():
            channel.memory.finished(*ranges_of(indexes[~keeps]))
            indexes, attempts = indexes[keeps], attempts[keeps]
    if not len(indexes):
        return
    raised = np.minimum(attempts.astype(np.int64) + 1, ATTEMPTS_MAX)
    frames = copy_run(block, indexes, raised)
    session.send(frames, len(frames), len(indexes))
    deadline_ns = handout.deadline_ns(session)
    channel.in_flight.note_many(
        indexes, raised, session.owner, now_ns=handout.now.mono_ns, deadline_ns=deadline_ns
    )
    if channel.latencies is not None:
        channel.in_flight.note_published(indexes, block.timestamps(indexes))
    channel.memory.requeued(indexes, np.zeros(len(indexes), np.int64), raised)


def copy_run(block: Block, indexes: Indexes, attempts: Indexes) -> bytearray:
    """The frames of ascending indexes of one block as a run of their own, attempts patched."""
    starts, ends = _bounds(block, indexes)
    view = memoryview(block.frames)
    frames = b"".join(map(view.__getitem__, map(slice, starts.tolist(), ends.tolist())))
    return patch_attempts(frames, np.cumsum(ends - starts), attempts)
