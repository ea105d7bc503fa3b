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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparq.broker.options import NEVER

if TYPE_CHECKING:
    from sparq.broker.channel import Channel
    from sparq.broker.in_flight import Rows
    from sparq.protocol.instant import Instant

Indexes = NDArray[np.int64]

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


class StateDetails(NamedTuple):
    """The details of a message's state on a channel; times on the mono clock.

    Attributes:
        attempts: how often it was delivered; None: unknown.
        owner: the number of the session that has it, in the channel's `sessions`; 0: none.
        since_ns, deadline_ns: since when and until when it is in flight.
        due_ns: when it becomes ready.
    """

    state: MessageState
    attempts: int | None
    owner: int = 0
    since_ns: int = 0
    deadline_ns: int = 0
    due_ns: int = 0


class Deferred(NamedTuple):
    """Deferred messages by columns, ascending by index; times on the mono clock."""

    indexes: Indexes
    dues: Indexes
    attempts: Indexes


@dataclass(eq=False)
class ChannelSnapshot:
    """A channel as it was at `now`.

    Attributes:
        cursor, end, start, is_range: as in the channel; `is_range`: a range reader has it.
        in_flight: messages that consumers have.
        chunks: messages that wait for another delivery, as the channel stores them.
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
    is_range: bool
    in_flight: Rows
    chunks: list[tuple[Indexes, NDArray[np.uint16]]]
    delays: list[tuple[int, int, int]]
    dues: list[tuple[int, int, int]]
    detached: set[int]
    overdue: list[int]
    skipped: list[int]
    skips: list[tuple[int, int]]

    @cached_property
    def again(self) -> tuple[Indexes, Indexes]:
        """Messages that wait for another delivery, ascending, with their attempts."""
        indexes = np.concatenate([np.empty(0, np.int64), *(chunk[0] for chunk in self.chunks)])
        attempts = np.concatenate([np.empty(0, np.int64), *(chunk[1] for chunk in self.chunks)])
        order = np.argsort(indexes, kind="stable")
        return indexes[order], attempts[order]

    @cached_property
    def deferred(self) -> Deferred:
        """The deferred messages, ascending by index."""
        dues, indexes, attempts = _columns(self.delays, 3)
        if not self.is_range:
            due, pending, _ = _columns(self.dues, 3)
            mine = (pending >= self.start) & ~np.isin(pending, _column(self.detached))
            dues, indexes = np.append(dues, due[mine]), np.append(indexes, pending[mine])
            attempts = np.append(attempts, np.zeros(int(mine.sum()), np.int64))
        order = np.argsort(indexes, kind="stable")
        return Deferred(indexes[order], dues[order], attempts[order])

    @cached_property
    def _passed(self) -> Indexes:
        """Single indexes ahead of the cursor that it will pass over."""
        if self.is_range:
            return np.empty(0, np.int64)
        overdue = np.setdiff1d(_column(self.overdue), _column(self.detached), assume_unique=True)
        return np.setdiff1d(_column(self.skipped), overdue, assume_unique=True)

    @cached_property
    def _skips(self) -> Indexes:
        """The ranges that the cursor passes over, shape (2, n)."""
        return _columns(self.skips, 2)

    def due_after(self, after: tuple[int, int], count: int) -> tuple[Indexes, Indexes]:
        """Return the next deferred messages after (due, index), in the order of their due times.

        Messages that the channel does not see yet are left out, as in its statistics.
        """
        indexes, dues, _ = self.deferred
        later = (dues > after[0]) | ((dues == after[0]) & (indexes > after[1]))
        later &= indexes < self.end
        indexes, dues = indexes[later], dues[later]
        order = np.lexsort((indexes, dues))[:count]
        return indexes[order], dues[order]

    def again_after(self, after: int, count: int) -> Indexes:
        """Return the next messages after an index that wait for another delivery."""
        indexes, _ = self.again
        low = int(np.searchsorted(indexes, after, "right"))
        return indexes[low : low + count]

    def states(self, indexes: Indexes) -> tuple[NDArray[np.uint8], Indexes]:
        """Return state and attempts (or UNKNOWN) of these ascending indexes."""
        states = np.full(len(indexes), MessageState.FINISHED, np.uint8)
        attempts = np.full(len(indexes), UNKNOWN, np.int64)
        fresh = indexes >= self.cursor
        if fresh.any():
            fresh &= ~_within(indexes, self._skips) & (_rows_in(self._passed, indexes) < 0)
            states[fresh], attempts[fresh] = MessageState.WAITING, 0
        known = (
            (MessageState.DEFERRED, self.deferred.indexes, self.deferred.attempts),
            (MessageState.WAITING, *self.again),
            (MessageState.IN_FLIGHT, self.in_flight.indexes, self.in_flight.attempts),
        )
        for state, at, counts in known:
            rows = _rows_in(at, indexes)
            found = rows >= 0
            states[found] = state
            attempts[found] = counts[rows[found]]
        return states, attempts

    def state_details(self, indexes: Sequence[int]) -> dict[int, StateDetails]:
        """Return the details of each of these messages' states."""
        ascending = np.unique(np.array(indexes, np.int64))
        states, attempts = self.states(ascending)
        flying = _rows_in(self.in_flight.indexes, ascending)
        waiting = _rows_in(self.deferred.indexes, ascending)
        found: dict[int, StateDetails] = {}
        for position, index in enumerate(ascending.tolist()):
            state, count = MessageState(int(states[position])), int(attempts[position])
            standing = StateDetails(state, None if count == UNKNOWN else count)
            if state is MessageState.IN_FLIGHT:
                row, rows = flying[position], self.in_flight
                standing = standing._replace(
                    owner=int(rows.owners[row]),
                    since_ns=int(rows.delivered_at[row]),
                    deadline_ns=int(rows.deadlines[row]),
                )
            elif state is MessageState.DEFERRED:
                standing = standing._replace(due_ns=int(self.deferred.dues[waiting[position]]))
            found[index] = standing
        return found


def take(channel: Channel, now: Instant) -> ChannelSnapshot:
    """Take a snapshot of the channel."""
    due = channel.stream.due
    return ChannelSnapshot(
        now=now,
        start=channel.start,
        cursor=channel.cursor,
        end=channel.stream.end,
        is_range=bool(channel.range_epoch),
        in_flight=channel.in_flight.rows(),
        chunks=list(channel.requeued.chunks()),
        delays=channel.delays.entries(),
        dues=due.pending.entries(),
        detached=set(channel.detached),
        overdue=list(due.overdue),
        # A channel may have passed very many of them: only those ahead of the cursor are needed.
        skipped=due.skipped[bisect_left(due.skipped, channel.cursor) :],
        skips=[] if channel.range_epoch else channel.skips.bounds(),
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


def _columns(rows: Sequence[tuple[int, ...]], width: int) -> Indexes:
    """Turn rows into columns, shape (width, n), a slice at a time."""
    slices = [rows[at : at + SLICE] for at in range(0, len(rows), SLICE)]
    parts = [np.empty((0, width), np.int64), *(np.array(part, np.int64) for part in slices)]
    return np.concatenate(parts).T


def _column(values: Iterable[int]) -> Indexes:
    """Turn numbers into an array, a slice at a time."""
    # One call for all of them would let no other thread run meanwhile.
    left = iter(values)
    parts = [np.empty(0, np.int64)]
    while len(part := np.fromiter(islice(left, SLICE), np.int64)):
        parts.append(part)
    return np.concatenate(parts)


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
