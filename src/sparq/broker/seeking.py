"""Moves a channel to another place of its topic's log, and tells what that came to.

1. Indexes and ends are known at once; a time, also that of the message at the new place, may need a
   look at the disk. The channel moves as soon as its place is known.
2. `Seek.landing` is there when the tasks are done that the next turns hand out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sparq.broker.channel import Channel, SeekTarget
from sparq.broker.topic import Topic
from sparq.broker.turn import Turn
from sparq.log.disk import DiskError
from sparq.log.log import Log
from sparq.log.reading import BlockRead
from sparq.protocol.instant import Instant


@dataclass(frozen=True, slots=True)
class Landing:
    """Where a channel has gone.

    Attributes:
        index: the index at which it goes on.
        time_ns: when the first message from there on was published, ns since 1970; None: there is
            none yet, or it cannot be read.
        again: messages from there on that it had passed before, or that were finished ahead of it:
            they are delivered again.
        waiting: messages from there on that it will deliver now, those of `again` among them.
        oldest_index: the oldest message that the log keeps; None: it keeps none.
        oldest_time_ns: when that was published, ns since 1970; None: it keeps none.
        older_are_gone: whether the topic has had older messages, which are deleted (or lost).
    """

    index: int
    time_ns: int | None
    again: int
    waiting: int
    oldest_index: int | None
    oldest_time_ns: int | None
    older_are_gone: bool


@dataclass(slots=True, eq=False)
class Seek:
    """A seek that was asked for.

    Attributes:
        landing: what it came to; None: it has not moved yet, or could not.
        error: why its place could not be found; the channel has not moved then.
        moves: whether the channel moves; else only what it would come to is told.
    """

    moves: bool = True
    landing: Landing | None = None
    error: DiskError | None = None


class Asked(NamedTuple):
    """A seek that is under way."""

    topic: Topic
    channel: Channel
    target: SeekTarget
    seek: Seek


class PlaceRead(NamedTuple):
    """What goes on when that was read which tells a seek's place."""

    asked: Asked
    read: BlockRead

    def finish(self, turn: Turn, _now: Instant) -> None:
        """Find the place, unless the channel has gone meanwhile."""
        topic, channel, _, seek = self.asked
        topic.stream.log.store(self.read)
        if self.read.error is not None:
            seek.error = self.read.error
            turn.health.notes.append(f"seeking in {topic.name} failed: {self.read.error}")
        elif topic.channels.get(channel.name) is channel:
            _find(self.asked, turn)


class FirstRead(NamedTuple):
    """What goes on when the first message at the new place was read: its time is known."""

    topic: Topic
    first: int
    seek: Seek
    read: BlockRead

    def finish(self, _turn: Turn, _now: Instant) -> None:
        """Tell it."""
        self.topic.stream.log.store(self.read)
        _note_time(self.topic, self.first, self.seek)


def begin(
    turn: Turn, topic: Topic, channel: Channel, target: SeekTarget, *, moves: bool = True
) -> Seek:
    """Have the channel go on from another place, as soon as that place is known."""
    seek = Seek(moves)
    _find(Asked(topic, channel, target, seek), turn)
    return seek


def place_of(log: Log, target: SeekTarget, end: int) -> int | BlockRead:
    """The index of a place in what lies before `end`, or what must be read first to know it."""
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


def _find(asked: Asked, turn: Turn) -> None:
    stream = asked.topic.stream
    place = place_of(stream.log, asked.target, stream.end)
    if isinstance(place, int):
        _go(asked, place, turn)
    else:
        turn.submit(place, asked.topic, PlaceRead(asked, place))


def _go(asked: Asked, index: int, turn: Turn) -> None:
    topic, channel, _, seek = asked
    stream, log = topic.stream, topic.stream.log
    again = _ahead(channel, index, channel.cursor) + _finished_ahead(channel, index)
    waiting = _ahead(channel, index, stream.end)
    if seek.moves:
        channel.seek(index)
        for first, end in gone(log, index, stream.end):
            channel.void(first, end)
        waiting = channel.depth()
        turn.wake(topic, channel)
    kept = [segment for segment in log.segments() if segment.messages]
    seek.landing = Landing(
        index=index,
        time_ns=None,
        again=again,
        waiting=waiting,
        oldest_index=log.first_index if kept else None,
        oldest_time_ns=kept[0].first_time_ns if kept else None,
        older_are_gone=log.first_ordinal > 0,
    )
    first = log.next_stored(index)
    if first < stream.end and not _note_time(topic, first, seek):
        read = log.load(first)
        turn.submit(read, topic, FirstRead(topic, first, seek, read))


def _ahead(channel: Channel, first: int, end: int) -> int:
    """How many messages of [first, end) a channel is to deliver that begins anew at `first`."""
    log, due = channel.stream.log, channel.stream.due
    if first >= end:
        return 0
    if channel.range_epoch:
        return log.ordinal_at(end) - log.ordinal_at(first)
    cancelled = sum(first <= index < end for index in due.cancelled)
    return log.messages_between(first, end) - len(due.pending_between(first, end)) - cancelled


def _finished_ahead(channel: Channel, index: int) -> int:
    """How many messages from an index on a channel has finished, though its cursor is before them.

    Of what the cursor is to pass over some may wait all the same: see `recovery`.
    """
    if channel.range_epoch or not channel.skips:
        return 0
    unfinished = channel.unfinished()
    count = 0
    for first, end in channel.skips.ranges():
        low = max(first, index, channel.cursor)
        waiting = np.searchsorted(unfinished, end) - np.searchsorted(unfinished, low)
        count += _ahead(channel, low, end) - int(waiting) if low < end else 0
    return count


def gone(log: Log, first: int, end: int) -> list[tuple[int, int]]:
    """The parts of [first, end) whose messages were deleted or lost, which no channel gets.

    They may lie in the middle: a file that nobody needs goes while one before it is still needed.
    """
    firsts, ends = log.stored_runs(first, end)
    begins, stops = np.append(first, ends), np.append(firsts, end)
    missing = log.ordinals_at(stops) > log.ordinals_at(begins)
    return list(zip(begins[missing].tolist(), stops[missing].tolist(), strict=True))


def _note_time(topic: Topic, index: int, seek: Seek) -> bool:
    """Tell when a message was published; False: it is not in memory."""
    block = topic.stream.log.block(index)
    if block is None or seek.landing is None:
        return False
    seek.landing = replace(seek.landing, time_ns=int(block.timestamps(np.array([index]))[0]))
    return True
