"""A channel from its topic's ledger, and back: what a restart knows of it.

After a start, a channel's unfinished messages below its cursor are ready again: those have been
with a consumer, so they go out with attempts + 1 (decision 11). Exceptions:

1. A deferred publish that is not due yet stays in the topic's due list.
2. One that is due has been with nobody unless the ledger says so, for whenever it is delivered the
   ledger is told; it is ready with attempts 0, wherever the cursor stands.
3. What the ledger has as requeued keeps its due time and its attempts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sparq.broker.channel import Channel
from sparq.broker.in_flight import NEVER, ranges_of
from sparq.log.records import ChannelState
from sparq.protocol.instant import Instant

Indexes = NDArray[np.int64]
Range = tuple[int, int]


def restore(channel: Channel, state: ChannelState, past_due: set[int], now: Instant) -> None:
    """Give a new channel the state that the ledger has.

    Args:
        channel: fresh; its stream's end is where P is.
        state: what the ledger knows.
        past_due: the topic's deferred publishes that are due already.
        now: due times on disk are wall time, in memory they run on the mono clock.
    """
    channel.paused = state.paused
    channel.start = state.start
    channel.cursor = channel.noted_cursor = max(state.cursor, state.start)
    channel.cursor_ordinal = channel.stream.log.ordinal_at(channel.cursor)
    requeued = {i: entry for i, entry in state.requeued.items() if i >= state.start}
    ready = {i: attempts for i, (due, attempts) in requeued.items() if due <= now.wall_ns}
    channel.delays.add_all(
        (now.mono_ns + due - now.wall_ns, i, attempts)
        for i, (due, attempts) in requeued.items()
        if due > now.wall_ns
    )
    elsewhere = requeued.keys() | channel.stream.due.pending | past_due
    for first, end in _unfinished(channel, state):
        ready.update((index, 1) for index in range(first, end) if index not in elsewhere)
    for index in past_due - requeued.keys():
        if state.start <= index < channel.stream.end and not _is_finished(state, index):
            ready[index] = 0
    indexes = np.array(sorted(ready), np.int64)
    attempts = np.array([ready[i] for i in indexes.tolist()], np.uint16)
    channel.again.push_many(indexes, attempts)
    _skip_ahead(channel, state, [i for i in requeued if i >= channel.cursor])
    channel.reschedule()
    channel.wake()


def _unfinished(channel: Channel, state: ChannelState) -> Iterator[Range]:
    """The stored ranges of [start, cursor) that the ledger does not have as finished."""
    log = channel.stream.log
    at = state.start
    for first, end in [*state.finished, (channel.cursor, channel.cursor)]:
        limit = min(first, channel.cursor)
        while at < limit:
            low, high = log.stored_run(at)
            if low >= limit or low >= high:
                break
            at = min(high, limit)
            yield low, at
        at = max(at, end)


def _is_finished(state: ChannelState, index: int) -> bool:
    at = bisect_right(state.finished, (index, NEVER))
    return at > 0 and index < state.finished[at - 1][1]


def _skip_ahead(channel: Channel, state: ChannelState, outside: list[int]) -> None:
    """What is ahead of the cursor and must not be delivered by it."""
    log, due, cursor = channel.stream.log, channel.stream.due, channel.cursor
    ranges = [(max(first, cursor), end) for first, end in state.finished if end > cursor]
    ranges += [(index, index + 1) for index in outside]
    for first, end in sorted(ranges):
        count = log.ordinal_at(end) - log.ordinal_at(first) - due.count_between(first, end)
        channel.skips.add(first, end, count)


def state_of(channel: Channel, now: Instant) -> ChannelState:
    """What the ledger has to know of a channel, for a checkpoint."""
    unfinished = channel.unfinished()
    unfinished = unfinished[unfinished < channel.cursor]
    starts, ends = ranges_of(unfinished)
    bounds = [*starts, channel.cursor]
    finished = [(end, start) for end, start in zip(ends, bounds[1:], strict=True) if end < start]
    return ChannelState(
        start=bounds[0],
        cursor=channel.cursor,
        finished=finished + _finished_ahead(channel),
        requeued=_requeued(channel, now),
        paused=channel.paused,
    )


def _finished_ahead(channel: Channel) -> list[Range]:
    """What the cursor will pass: skipped ranges, and deferred publishes that overtook it."""
    skipped = channel.skips.ranges()
    if channel.range_epoch:
        return skipped
    due = channel.stream.due.joined_from(channel.cursor, channel.stream.end)
    done = set(due).difference(channel.unfinished().tolist())
    apart = [(i, i + 1) for i in done if not any(first <= i < end for first, end in skipped)]
    return sorted(skipped + apart)


def _requeued(channel: Channel, now: Instant) -> dict[int, tuple[int, int]]:
    """What is not told by the cursor alone: delays, and how often a message was delivered."""
    requeued: dict[int, tuple[int, int]] = {}
    for indexes, attempts in (channel.in_flight.all(), channel.again.all()):
        for index, count in zip(indexes.tolist(), attempts.tolist(), strict=True):
            told = count == 1 and index < channel.cursor and not channel.stream.due.contains(index)
            if count and not told:
                requeued[index] = (0, count)
    for due_ns, index, count in channel.delays.entries():
        requeued[index] = (now.wall_ns + due_ns - now.mono_ns, count)
    return requeued
