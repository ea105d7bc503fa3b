"""Deliveries once more: messages that were requeued, timed out, or became due.

They lie scattered, so they are fetched in ascending order, extent by extent (decision 21), those
that are not in memory many extents at a time. They are copied, since the number of attempts stands
in each frame. The new number is told to the ledger: after a crash it must go on from there
(decision 11). However many blocks a run comes from, it is one output, one note of what is in flight
and one record of the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparq.broker.handout import Handout
from sparq.broker.in_flight import ranges_of
from sparq.broker.session import Session
from sparq.log.block import Block
from sparq.log.log import BlockRead
from sparq.protocol.frames import ATTEMPTS_MAX, patch_attempts

Indexes = NDArray[np.int64]
Attempts = NDArray[np.uint16]

READS_MAX: Final = 64
"""Extents that are asked for at a time: a task for fewer costs more than their reading."""


class Run(NamedTuple):
    """Messages of one block that a session is given."""

    block: Block
    indexes: Indexes
    attempts: Attempts


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
    runs, waits = _collect(handout, session.room_bytes(), indexes, attempts)
    if runs:
        _send(handout, session, runs)
    channel.again.push_front(indexes[waits], attempts[waits])
    return len(indexes) - int(waits.sum())


def _collect(
    handout: Handout, room_bytes: int, indexes: Indexes, attempts: Attempts
) -> tuple[list[Run], NDArray[np.bool_]]:
    """The runs of these ascending messages that are in memory and fit; which messages must wait.

    What is not in memory is asked for, up to `READS_MAX` extents. While those have not come, only
    as many messages are looked at: the queue may be long, and it is looked at in each turn.
    """
    channel = handout.channel
    stream, log = channel.stream, channel.stream.log
    looks_max = READS_MAX if stream.is_gathering(channel) else len(indexes)
    may_read = not (stream.is_gathering(channel) or stream.is_failing(channel))
    waits = np.zeros(len(indexes), np.bool_)
    runs: list[Run] = []
    reads: list[BlockRead] = []
    misses = read_bytes = at = 0
    while at < len(indexes):
        has_asked = len(reads) >= READS_MAX or read_bytes > stream.gather_bytes_max
        if room_bytes <= 0 or has_asked or misses >= looks_max:
            waits[at:] = True
            break
        index = int(indexes[at])
        block = log.block(index)
        if block is not None:
            end = at + int(indexes[at:].searchsorted(block.end))
            fits, size = _fitting(block, indexes[at:end], room_bytes)
            end = at + fits
            room_bytes -= size
            runs.append(Run(block, indexes[at:end], attempts[at:end]))
            at = end
            continue
        misses += 1
        if not may_read:
            waits[at] = True
            at += 1
            continue
        read = log.load(index)
        if read.place is None:  # lost
            at += 1
            continue
        end = at + int(indexes[at:].searchsorted(read.place.extent.end))
        waits[at:end] = True
        at = end
        reads.append(read)
        read_bytes += read.place.extent.size
    if reads:
        stream.gather(reads, channel)
    return runs, waits


def _bounds(block: Block, indexes: Indexes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the frames of these messages begin and end in the block."""
    positions = indexes - block.first
    ends = block.ends[positions].astype(np.int64)
    starts = np.where(positions > 0, block.ends[positions - 1], 0).astype(np.int64)
    return starts, ends


def _fitting(block: Block, indexes: Indexes, room_bytes: int) -> tuple[int, int]:
    """How many of the messages go into the room, and their size; the last may be more than fits."""
    if len(indexes) == 1:
        first = int(indexes[0])
        return 1, block.start_of(first + 1) - block.start_of(first)
    starts, ends = _bounds(block, indexes)
    filled = np.cumsum(ends - starts)
    count = min(len(indexes), int(np.searchsorted(filled, room_bytes)) + 1)
    return count, int(filled[count - 1])


def _send(handout: Handout, session: Session, runs: list[Run]) -> None:
    channel = handout.channel
    if session.sample_rate:
        runs = _sample(handout, session, runs)
        if not runs:
            return
    indexes = np.concatenate([run.indexes for run in runs])
    attempts = np.concatenate([run.attempts for run in runs])
    raised = np.minimum(attempts.astype(np.int64) + 1, ATTEMPTS_MAX)
    frames = copy_runs([(run.block, run.indexes) for run in runs], raised)
    session.send(frames, len(frames), len(indexes))
    deadline_ns = handout.deadline_ns(session)
    channel.in_flight.note_many(
        indexes, raised, session.owner, now_ns=handout.now.mono_ns, deadline_ns=deadline_ns
    )
    if channel.latencies is not None:
        published = np.concatenate([run.block.timestamps(run.indexes) for run in runs])
        channel.in_flight.note_published(indexes, published)
    channel.memory.requeued(indexes, np.zeros(len(indexes), np.int64), raised)


def _sample(handout: Handout, session: Session, runs: list[Run]) -> list[Run]:
    """What a sampling client is given of the runs; the rest is finished (decision 15)."""
    kept = []
    for run in runs:
        keeps = handout.sampler.keeps(len(run.indexes), session.sample_rate)
        if not keeps.all():
            handout.channel.memory.finished(*ranges_of(run.indexes[~keeps]))
        if keeps.any():
            kept.append(Run(run.block, run.indexes[keeps], run.attempts[keeps]))
    return kept


def copy_runs(runs: Sequence[tuple[Block, Indexes]], attempts: NDArray[np.integer]) -> bytearray:
    """The frames of ascending indexes of each block as one run, attempts patched."""
    parts: list[bytes | bytearray | memoryview] = []
    sizes: list[int] = []
    for block, indexes in runs:
        if len(indexes) == 1:
            first = int(indexes[0])
            part = block.slice(first, first + 1)
            parts.append(part)
            sizes.append(len(part))
            continue
        starts, ends = _bounds(block, indexes)
        view = memoryview(block.frames)
        parts += map(view.__getitem__, map(slice, starts.tolist(), ends.tolist()))
        sizes += (ends - starts).tolist()
    return patch_attempts(b"".join(parts), np.cumsum(sizes), attempts)
