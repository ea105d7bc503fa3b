"""A snapshot of a channel: the state of each of its messages, and the consumer that has it.

To take it, the event loop only copies the channel's state in memory; sorting is done when the
snapshot is used, which may be in a thread. A message is, by its index:

1. in flight, deferred (by REQ, or a publish that is not due yet), or waiting (requeued, or ahead of
   the cursor), each in one place (see `channel`);
2. else finished, which includes messages that were voided or cancelled, or that lie before the
   channel's start;
3. also waiting if the channel does not see it yet, since its topic is paused.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from sparq.broker.options import NEVER

if TYPE_CHECKING:
    from sparq.broker.channel import Channel
    from sparq.broker.in_flight import Rows
    from sparq.protocol.instant import Instant

Indexes = NDArray[np.int64]
T = TypeVar("T")

UNKNOWN: Final = -1
"""Attempts of a finished message: they are not recorded."""

SLICE: Final = 4096
"""Number of rows that become an array at a time: other threads may run in between."""


class MessageState(IntEnum):
    """The state of a message on a channel."""

    WAITING = 0
    IN_FLIGHT = 1
    DEFERRED = 2
    FINISHED = 3


class MessagePlace(NamedTuple, Generic[T]):
    """Where a message stands on a channel, or columns of many; times on the mono clock.

    Attributes:
        message: its index in the log.
        state: a `MessageState`.
        attempts: how often it was delivered, or UNKNOWN.
        owner: the number of the session that has it, in the channel's `sessions`; 0: none.
        since_ns: since when it is in flight.
        until_ns: until when it is in flight; of a deferred message, when it becomes ready.
    """

    message: T
    state: T
    attempts: T
    owner: T
    since_ns: T
    until_ns: T


Places: TypeAlias = MessagePlace[Indexes]


@dataclass(eq=False)
class ChannelSnapshot:
    """A channel as it was at `now`; each message is in one of these places.

    Attributes:
        cursor, end, start: as in the channel.
        in_flight: messages that consumers have.
        requeued: messages that wait for another delivery, as the channel stores them.
        delays: (due, index, attempts) of messages that REQ has deferred.
        dues: (due, index, 0) of the topic's deferred publishes.
        detached: those of `dues` and `overdue` that the channel does not wait for.
        overdue: see `waiting.DueList`.
        skipped, skips: the indexes, and the ranges, that the cursor will pass over.
    """

    now: Instant
    start: int
    cursor: int
    end: int
    in_flight: Rows
    requeued: list[tuple[Indexes, NDArray[np.uint16]]]
    delays: list[tuple[int, int, int]]
    dues: list[tuple[int, int, int]]
    detached: set[int]
    overdue: list[int]
    skipped: list[int]
    skips: list[tuple[int, int]]

    @cached_property
    def held(self) -> Places:
        """The messages that wait for another delivery, are in flight or deferred, by index."""
        rows, delays, dues = self.in_flight, _columns(self.delays, 3), _columns(self.dues, 3)
        mine = (dues[1] >= self.start) & ~np.isin(dues[1], _column(self.detached))
        flying = rows.owners, rows.delivered_at, rows.deadlines
        waiting, deferred = MessageState.WAITING, MessageState.DEFERRED
        tables = [
            *(_places(indexes, waiting, attempts) for indexes, attempts in self.requeued),
            _places(delays[1], deferred, delays[2], 0, 0, delays[0]),
            _places(dues[1, mine], deferred, 0, 0, 0, dues[0, mine]),
            _places(rows.indexes, MessageState.IN_FLIGHT, rows.attempts, *flying),
        ]
        columns = [np.concatenate(parts) for parts in zip(*tables, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        return MessagePlace(*(column[order] for column in columns))

    @cached_property
    def _passed(self) -> Indexes:
        """Single indexes ahead of the cursor that it will pass over."""
        overdue = np.setdiff1d(_column(self.overdue), _column(self.detached), assume_unique=True)
        return np.setdiff1d(_column(self.skipped), overdue, assume_unique=True)

    @cached_property
    def _skips(self) -> Indexes:
        """The ranges that the cursor passes over, shape (2, n)."""
        return _columns(self.skips, 2)

    def held_in(self, state: MessageState) -> Places:
        """Return the messages of `held` in this state."""
        those = self.held.state == state
        return MessagePlace(*(column[those] for column in self.held))

    def page(self, state: MessageState, after: tuple[int, int], count: int) -> list[int]:
        """Return the next indexes of `held` in this state after a message, (due, index).

        Deferred messages have the order of their due times. Those that the channel does not see yet
        are left out, as in its statistics.
        """
        held = self.held_in(state)
        indexes, dues = held.message, held.until_ns
        later = indexes > after[1]
        if state is MessageState.DEFERRED:
            later = ((dues > after[0]) | ((dues == after[0]) & later)) & (indexes < self.end)
            indexes = indexes[later][np.lexsort((indexes[later], dues[later]))]
        else:
            indexes = indexes[later]
        found: list[int] = indexes[:count].tolist()
        return found

    def places(self, indexes: Indexes) -> Places:
        """Return where each of these messages stands."""
        fresh = indexes >= self.cursor
        if fresh.any():
            fresh &= ~_within(indexes, self._skips) & (_rows_in(self._passed, indexes) < 0)
        places = _places(indexes, MessageState.FINISHED, UNKNOWN)
        places.state[fresh], places.attempts[fresh] = MessageState.WAITING, 0
        rows = _rows_in(self.held.message, indexes)
        for column, held in zip(places, self.held, strict=True):
            column[rows >= 0] = held[rows[rows >= 0]]
        return places


def take(channel: Channel, now: Instant) -> ChannelSnapshot:
    """Take a snapshot of the channel."""
    # A range reader gets every message of the log.
    due, is_range = channel.stream.due, bool(channel.range_epoch)
    return ChannelSnapshot(
        now=now,
        start=channel.start,
        cursor=channel.cursor,
        end=channel.stream.end,
        in_flight=channel.in_flight.rows(),
        requeued=list(channel.requeued.chunks()),
        delays=channel.delays.entries(),
        dues=[] if is_range else due.pending.entries(),
        detached=set(channel.detached),
        overdue=list(due.overdue),
        # A channel may have passed very many of them: only those ahead of the cursor are needed.
        skipped=[] if is_range else due.skipped[bisect_left(due.skipped, channel.cursor) :],
        skips=[] if is_range else channel.skips.bounds(),
    )


def fresh_after(channel: Channel, after: int, count: int) -> list[int]:
    """List the next messages after an index, in log order, that the cursor will deliver."""
    log, due, end = channel.stream.log, channel.stream.due, channel.stream.end
    skips = [] if channel.range_epoch else channel.skips.bounds()
    found: list[int] = []
    index = max(channel.cursor, after + 1)
    at = 0
    while len(found) < count:
        while at < len(skips) and skips[at][1] <= index:
            at += 1
        stop = skips[at][0] if at < len(skips) else NEVER
        begin = index
        if stop <= index:
            index = skips[at][1]
        if not channel.range_epoch:
            index = due.next_unskipped(index)
            stop = min(stop, due.next_skipped(index))
        part = log.inspection.part(index)
        # Each jump may end in something else to be passed: the loop then begins anew.
        if part is None:
            index = log.next_stored(index)
        if index >= end:
            break
        if index == begin and part is not None:
            index = min(part.end, stop, end, begin + count - len(found))
            found += range(begin, index)
    return found


def _places(indexes: Indexes, *columns: Any) -> Places:
    """Make columns of messages; a number stands for the same one in each row, none for 0."""
    filled = (indexes, *columns, 0, 0, 0)[: len(MessagePlace._fields)]
    rows = len(indexes)
    return MessagePlace(*(np.broadcast_to(one, rows).astype(np.int64) for one in filled))


def _columns(rows: Iterable[tuple[int, ...]], width: int) -> Indexes:
    """Turn rows into columns, shape (width, n), a slice at a time."""
    # One call for all of them would let no other thread run meanwhile.
    left = iter(rows)
    parts = [np.empty((0, width), np.int64)]
    while part := list(islice(left, SLICE)):
        parts.append(np.array(part, np.int64))
    return np.concatenate(parts).T


def _column(values: Iterable[int]) -> Indexes:
    """Turn numbers into an array, a slice at a time."""
    column: Indexes = _columns(((value,) for value in values), 1)[0]
    return column


def _rows_in(ascending: Indexes, indexes: Indexes) -> Indexes:
    """Return the position of each index in an ascending array; -1: it is not there."""
    if not len(ascending):
        return np.full(len(indexes), -1, np.int64)
    rows = np.minimum(np.searchsorted(ascending, indexes), len(ascending) - 1)
    return np.where(ascending[rows] == indexes, rows, -1)


def _within(indexes: Indexes, ranges: Indexes) -> NDArray[np.bool_]:
    """Tell which of the indexes lie in one of the ascending ranges, shape (2, n)."""
    firsts, ends = ranges
    if not len(firsts):
        return np.zeros(len(indexes), np.bool_)
    at = np.searchsorted(firsts, indexes, "right") - 1
    inside: NDArray[np.bool_] = (at >= 0) & (indexes < ends[at])
    return inside
