"""Moves a channel to another place of its topic's log, and reports the result.

1. An index or an end of the log is found at once. A time may need a disk read; so may the publish
   time of the message at the new place. The channel moves as soon as its place is known.
2. `Seek.landing` is set when the tasks that the next turns hand out have run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sparq.broker.channel import Channel, SeekTarget
from sparq.broker.topic import Topic
from sparq.log.disk import DiskError
from sparq.log.log import Log
from sparq.log.reading import BlockRead
from sparq.protocol.instant import Instant


@dataclass(frozen=True, slots=True)
class Landing:
    """The position that a channel has moved to, and what it will deliver.

    Attributes:
        index: the index at which it continues.
        time_ns: publish time (ns since 1970) of the first message from there on; None: there is no
            message yet, or it cannot be read.
        again: number of messages from there on that are delivered again: the cursor had passed
            them, or they were finished ahead of it.
        waiting: number of messages from there on to deliver now, including `again`.
        skipped: number of unfinished messages before it, deferred ones included, that the channel
            does not deliver any more.
        oldest_index: the oldest message in the log; None: the log is empty.
        oldest_time_ns: its publish time, ns since 1970; None: the log is empty.
        older_are_gone: whether the topic had older messages that were deleted or lost.
    """

    index: int
    time_ns: int | None
    again: int
    waiting: int
    skipped: int
    oldest_index: int | None
    oldest_time_ns: int | None
    older_are_gone: bool


@dataclass(slots=True, eq=False)
class Seek:
    """A requested seek.

    Attributes:
        landing: the result; None: the channel has not moved yet, or could not.
        error: why the place could not be found; the channel has not moved then.
        moves: whether the channel moves; False: a dry run that only reports the result.
        may_skip: whether the channel may move past unfinished messages, which drops them.
        refused: whether the channel stays, because it may not skip.
    """

    moves: bool = True
    may_skip: bool = True
    refused: bool = False
    landing: Landing | None = None
    error: DiskError | None = None


def begin(topic: Topic, channel: Channel, target: SeekTarget, seek: Seek) -> Seek:
    """Move the channel to another place as soon as that place is known; returns `seek`."""
    log = topic.stream.log
    place = place_of(log, target, topic.stream.end)
    if isinstance(place, int):
        _go(topic, channel, place, seek)
        return seek
    read = place

    def finish(_now: Instant) -> None:
        log.store(read)
        if read.error is not None:
            seek.error = read.error
            note = f"seeking in {topic.name} failed: {read.error}"
            topic.turn.health.notes.append(note)
        # `is`: a new channel may have the name of a deleted one.
        elif topic.channels.get(channel.name) is channel:
            begin(topic, channel, target, seek)

    topic.submit(read, finish)
    return seek


def place_of(log: Log, target: SeekTarget, end: int) -> int | BlockRead:
    """The index of a place before `end`, or the disk read that is needed to find it."""
    if target == "latest":
        return end
    if target == "earliest":
        index = log.first_index
    elif isinstance(target, int):
        index = max(target, log.first_index)
    elif target[0] == "last":
        index = log.index_at_ordinal(log.ordinal_at(end) - int(target[1]))
    else:
        found = log.index_at_time(int(target[1]))
        if found is None:
            return log.load_time(int(target[1]))
        index = found
    return min(index, end)


def _go(topic: Topic, channel: Channel, index: int, seek: Seek) -> None:
    stream, log = topic.stream, topic.stream.log
    # Counted before the seek, which clears the state that this looks at.
    again = _ahead(channel, index, channel.cursor) + _finished_ahead(channel, index)
    waiting = _ahead(channel, index, stream.end)
    skipped = _unfinished_before(channel, index)
    seek.refused = seek.moves and bool(skipped) and not seek.may_skip
    if seek.moves and not seek.refused:
        channel.seek(index)
        # Voided at once: the depth would otherwise count deleted messages until the cursor comes
        # there.
        for first, end in lost_ranges(log, index, stream.end):
            channel.void(first, end)
        waiting = channel.depth()
        topic.wake(channel)
    kept = [segment for segment in log.segments() if segment.messages]
    seek.landing = Landing(
        index=index,
        time_ns=None,
        again=again,
        waiting=waiting,
        skipped=skipped,
        oldest_index=log.first_index if kept else None,
        oldest_time_ns=kept[0].first_time_ns if kept else None,
        older_are_gone=log.first_ordinal > 0,
    )
    first = log.next_stored(index)
    if first < stream.end and not _note_time(topic, first, seek):
        read = log.load(first)

        def finish(_now: Instant) -> None:
            log.store(read)
            _note_time(topic, first, seek)

        topic.submit(read, finish)


def _ahead(channel: Channel, first: int, end: int) -> int:
    """How many messages of [first, end) a channel delivers after it restarts at `first`."""
    log, due = channel.stream.log, channel.stream.due
    if first >= end:
        return 0
    if channel.range_epoch:
        return log.ordinal_at(end) - log.ordinal_at(first)
    cancelled = sum(first <= index < end for index in due.cancelled)
    return log.messages_between(first, end) - len(due.pending_between(first, end)) - cancelled


def _finished_ahead(channel: Channel, index: int) -> int:
    """How many messages from an index on the channel has finished ahead of its cursor.

    Some messages in `skips` are not finished but still waiting: see `recovery`.
    """
    if channel.range_epoch or not channel.skips.ranges:
        return 0
    unfinished = channel.unfinished()
    count = 0
    for first, end in channel.skips.bounds():
        low = max(first, index, channel.cursor)
        waiting = np.searchsorted(unfinished, end) - np.searchsorted(unfinished, low)
        count += _ahead(channel, low, end) - int(waiting) if low < end else 0
    return count


def _unfinished_before(channel: Channel, index: int) -> int:
    """How many messages before an index the channel has not finished, deferred ones included."""
    fresh = _ahead(channel, channel.cursor, index)
    if channel.range_epoch:
        return fresh
    passed = int(np.searchsorted(channel.unfinished(), index))
    for first, end in channel.skips.bounds():
        fresh -= _ahead(channel, max(first, channel.cursor), min(end, index))
    return fresh + passed + len(channel.pending_between(channel.cursor, index))


def lost_ranges(log: Log, first: int, end: int) -> list[tuple[int, int]]:
    """The parts of [first, end) whose messages were deleted or lost; no channel gets those.

    They may be in the middle: an unneeded file is deleted while an earlier one is still needed.
    """
    firsts, ends = log.stored_runs(first, end)
    begins, stops = np.append(first, ends), np.append(firsts, end)
    missing = log.ordinals_at(stops) > log.ordinals_at(begins)
    return list(zip(begins[missing].tolist(), stops[missing].tolist(), strict=True))


def _note_time(topic: Topic, index: int, seek: Seek) -> bool:
    """Add a message's publish time to the result; False: the message is not in memory."""
    block = topic.stream.log.block(index)
    if block is None or seek.landing is None:
        return False
    seek.landing = replace(seek.landing, time_ns=int(block.timestamps(np.array([index]))[0]))
    return True
