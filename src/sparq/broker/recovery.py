"""A channel from its topic's ledger, and back: what a restart knows of it.

After a start, a channel's unfinished messages below its cursor are ready again: those have been
with a consumer, so they go out with attempts + 1 (decision 11). Exceptions:

1. A deferred publish that is not due yet stays in the topic's due list.
2. One that is due has been with nobody unless the ledger says so, for whenever it is delivered the
   ledger is told; it is ready with attempts 0, wherever the cursor stands.
3. What the ledger has as requeued keeps its due time and its attempts, also below `start`: then
   somebody has had a finished message delivered again.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sparq.broker.channel import Channel
from sparq.broker.slots import ranges_of
from sparq.broker.stream import Stream
from sparq.log.records import ChannelState, TopicState, merge_ranges
from sparq.protocol.instant import Instant
from sparq.protocol.names import is_ephemeral

Indexes = NDArray[np.int64]
Ranges = tuple[Indexes, Indexes]
"""Firsts and ends of ranges that ascend and do not overlap."""


def restore(channel: Channel, state: ChannelState, past_due: Indexes, now: Instant) -> None:
    """Give a new channel the state that the ledger has.

    Args:
        channel: fresh; its stream's end is where P is.
        state: what the ledger knows.
        past_due: the topic's deferred publishes that are due already, ascending.
        now: due times on disk are wall time, in memory they run on the mono clock.
    """
    stream = channel.stream
    channel.paused, channel.kept = state.paused, state.kept
    channel.redriven = dict(state.redriven)
    channel.start = state.start
    channel.cursor = channel.noted_cursor = max(state.cursor, state.start)
    channel.cursor_ordinal = stream.log.ordinal_at(channel.cursor)
    if channel.cursor == state.start and not (
        state.finished or state.requeued or stream.due.skipped
    ):
        return  # nobody has been given anything: of thousands of topics most are like this
    requeued, dues, attempts = _requeued_arrays(state)
    is_ready = dues <= now.wall_ns
    channel.delays.add_all(
        zip(
            (dues[~is_ready] + (now.mono_ns - now.wall_ns)).tolist(),
            requeued[~is_ready].tolist(),
            attempts[~is_ready].tolist(),
            strict=True,
        )
    )
    finished = np.array(state.finished, np.int64).reshape(-1, 2)
    done = finished[:, 0], finished[:, 1]
    channel.apart = state.apart & stream.due.pending
    pending = stream.due.pending_between(state.start, stream.end)
    cancelled = np.array(list(stream.due.cancelled), np.int64)
    elsewhere = np.concatenate((requeued, pending, past_due, cancelled))
    fresh = _indexes_of(_unfinished(channel, done))
    fresh = fresh[~np.isin(fresh, elsewhere)]
    due = past_due[(past_due >= state.start) & (past_due < stream.end)]
    due = due[~np.isin(due, requeued) & ~_within(due, done)]
    indexes = np.concatenate((requeued[is_ready], fresh, due))
    counts = np.repeat([1, 0], [len(fresh), len(due)])
    order = np.argsort(indexes)
    channel.again.push_many(
        indexes[order], np.concatenate((attempts[is_ready], counts))[order].astype(np.uint16)
    )
    _skip_ahead(channel, done, requeued[requeued >= channel.cursor])
    channel.reschedule()


def seen_end(state: ChannelState) -> int:
    """The index behind all that a channel has been given: P was there, or beyond.

    The mark of a pause alone may be older: the disk failed when a later one was written, or a power
    cut took the record that the pause was over and left the channel's.
    """
    finished_end = max((end for _, end in state.finished), default=0)
    requeued_end = max(state.requeued, default=-1) + 1
    return max(state.start, state.cursor, finished_end, requeued_end)


def _requeued_arrays(state: ChannelState) -> tuple[Indexes, Indexes, Indexes]:
    """Index, due time in ns since 1970 and attempts of what the ledger has as requeued."""
    count = len(state.requeued)
    indexes = np.fromiter(state.requeued, np.int64, count)
    told = np.array(list(state.requeued.values()), np.int64).reshape(-1, 2)
    order = np.argsort(indexes)
    return indexes[order], told[order, 0], told[order, 1]


def _unfinished(channel: Channel, done: Ranges) -> Ranges:
    """The stored ranges of [start, cursor) that the ledger does not have as finished."""
    firsts, ends = done
    lows = np.append(channel.start, ends)
    highs = np.minimum(np.append(firsts, channel.cursor), channel.cursor)
    parts = [(lows[:0], lows[:0])]
    runs = channel.stream.log.stored_runs(channel.start, channel.cursor)
    for first, end in zip(*map(np.ndarray.tolist, runs), strict=True):
        low, high = np.maximum(lows, first), np.minimum(highs, end)
        parts.append((low[low < high], high[low < high]))
    return np.concatenate([low for low, _ in parts]), np.concatenate([high for _, high in parts])


def _indexes_of(ranges: Ranges) -> Indexes:
    """Every index of the ranges."""
    firsts, ends = ranges
    counts = ends - firsts
    before = np.cumsum(counts) - counts
    return np.repeat(firsts - before, counts) + np.arange(counts.sum())


def _within(indexes: Indexes, ranges: Ranges) -> NDArray[np.bool_]:
    """Which of the indexes lie in one of the ranges."""
    firsts, ends = ranges
    if not len(firsts):
        return np.zeros(len(indexes), bool)
    at = np.searchsorted(firsts, indexes, "right") - 1
    return (at >= 0) & (indexes < ends[at])


def _skip_ahead(channel: Channel, done: Ranges, outside: Indexes) -> None:
    """What is ahead of the cursor and must not be delivered by it."""
    firsts, ends = done
    ahead = ends > channel.cursor
    low = np.concatenate((np.maximum(firsts[ahead], channel.cursor), outside))
    high = np.concatenate((ends[ahead], outside + 1))
    if not len(low):
        return
    low, high = np.array(merge_ranges(low, high), np.int64).reshape(-1, 2).T
    log, due = channel.stream.log, channel.stream.due
    counts = log.ordinals_at(high) - log.ordinals_at(low) - due.counts_between(low, high)
    channel.skips.add_all(low, high, counts)


def recover_due(stream: Stream, state: TopicState, now: Instant) -> Indexes:
    """Refill a topic's due list; returns the deferred publishes that were due by now, ascending.

    One that some channel has seen has been due, even if the wall clock was set back since.
    """
    found = stream.log.due_entries
    if not found:
        return np.empty(0, np.int64)
    entries = np.array(found, np.int64)
    indexes, dues = entries[np.argsort(entries[:, 0])].T
    are_past = (dues <= now.wall_ns) | were_due(indexes, state)
    are_cancelled = np.isin(indexes, np.array(list(state.cancelled), np.int64))
    dues += now.mono_ns - now.wall_ns
    stream.due.fill(indexes, dues, are_past, stream.end, are_cancelled)
    past: Indexes = indexes[are_past & ~are_cancelled]
    return past


def were_due(indexes: Indexes, state: TopicState) -> NDArray[np.bool_]:
    """Which of these deferred publishes some channel has been given, or has finished."""
    found = np.zeros(len(indexes), bool)
    for channel in state.channels.values():
        finished = np.array(channel.finished, np.int64).reshape(-1, 2)
        seen = _within(indexes, (finished[:, 0], finished[:, 1]))
        seen |= np.isin(indexes, np.fromiter(channel.requeued, np.int64, len(channel.requeued)))
        if channel.apart:  # what became of those was decided before their time
            seen &= ~np.isin(indexes, np.fromiter(channel.apart, np.int64, len(channel.apart)))
        found |= seen
    return found


def state_of(channel: Channel, now: Instant) -> ChannelState:
    """What the ledger has to know of a channel, for a checkpoint."""
    unfinished = channel.unfinished()
    unfinished = unfinished[unfinished < channel.cursor]
    starts, ends = ranges_of(unfinished)
    bounds = [*starts, channel.cursor]
    finished = [(end, start) for end, start in zip(ends, bounds[1:], strict=True) if end < start]
    due = channel.stream.due
    return ChannelState(
        start=bounds[0],
        cursor=channel.cursor,
        finished=finished + _finished_ahead(channel),
        requeued=_requeued(channel, now),
        paused=channel.paused,
        kept=channel.kept,
        # A start that is told to be lower must not make the channel wait for more.
        apart=channel.apart | set(due.pending_between(bounds[0], channel.start).tolist()),
        redriven=dict(channel.redriven),
    )


def topic_state(
    stream: Stream, channels: dict[str, Channel], *, paused: bool, now: Instant
) -> TopicState:
    """What the ledger has to know of a topic, for a checkpoint."""
    return TopicState(
        mark=stream.end,
        paused=paused,
        channels={
            name: state_of(channel, now)
            for name, channel in channels.items()
            if not is_ephemeral(name)
        },
        cancelled=set(stream.due.cancelled),
    )


def _finished_ahead(channel: Channel) -> list[tuple[int, int]]:
    """What the cursor will pass: skipped ranges, and deferred publishes that overtook it.

    Of the skipped some are not finished: what a start found requeued ahead of the cursor.
    """
    unfinished = channel.unfinished()
    skipped = _cut_out(channel.skips.ranges(), unfinished[unfinished >= channel.cursor].tolist())
    if channel.range_epoch:
        return skipped
    due = channel.stream.due.joined_from(channel.cursor, channel.stream.end)
    due += [index for index in channel.apart if index >= channel.cursor]
    done = np.setdiff1d(np.array(due, np.int64), unfinished)
    ranges = np.array(skipped, np.int64).reshape(-1, 2)
    apart = [(i, i + 1) for i in done[~_within(done, (ranges[:, 0], ranges[:, 1]))].tolist()]
    return sorted(skipped + apart)


def _cut_out(ranges: list[tuple[int, int]], indexes: list[int]) -> list[tuple[int, int]]:
    """The ranges without these indexes; both ascend."""
    kept: list[tuple[int, int]] = []
    at = 0
    for first, end in ranges:
        begin = first
        while at < len(indexes) and indexes[at] < end:
            if begin <= indexes[at]:
                kept.append((begin, indexes[at]))
                begin = indexes[at] + 1
            at += 1
        kept.append((begin, end))
    return [(first, end) for first, end in kept if first < end]


def _requeued(channel: Channel, now: Instant) -> dict[int, tuple[int, int]]:
    """What is not told by the cursor alone: delays, and how often a message was delivered."""
    requeued: dict[int, tuple[int, int]] = {}
    for indexes, attempts in (channel.in_flight.all(), channel.again.all()):
        for index, count in zip(indexes.tolist(), attempts.tolist(), strict=True):
            told = count == 1 and index < channel.cursor and not channel.stream.due.contains(index)
            # One that is apart, or cancelled for the others, would else be taken for one of theirs.
            is_own = index in channel.apart or index in channel.stream.due.cancelled
            if (count and not told) or is_own:
                requeued[index] = (0, count)
    for due_ns, index, count in channel.delays.entries():
        requeued[index] = (now.wall_ns + due_ns - now.mono_ns, count)
    return requeued
