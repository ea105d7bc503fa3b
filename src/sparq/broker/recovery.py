"""Converts a channel's state to its topic's ledger and back, for checkpoints and restarts.

After a start, a channel's unfinished messages before its cursor are ready again. They were with a
consumer, so they are delivered with attempts + 1. Exceptions:

1. A deferred publish that is not due yet stays in the topic's due list.
2. A due deferred publish counts as undelivered unless the ledger lists it: every delivery of a
   deferred publish is noted there. It is ready with attempts 0, wherever the cursor is.
3. A message that the ledger has as requeued keeps its due time and attempts, even before `start`:
   this happens when an administrator has requeued a finished message.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sparq.broker.channel import Channel
from sparq.broker.in_flight import ranges_of
from sparq.broker.stream import Stream
from sparq.log.records import ChannelState, TopicState, merge_ranges
from sparq.protocol.instant import Instant
from sparq.protocol.names import is_ephemeral

Indexes = NDArray[np.int64]
Ranges = tuple[Indexes, Indexes]
"""First indexes and ends of ranges that ascend and do not overlap."""


def restore(channel: Channel, state: ChannelState, past_due: Indexes, now: Instant) -> None:
    """Apply the state from the ledger to a new channel.

    Args:
        channel: a new channel; P is the end of its stream.
        state: the state from the ledger.
        past_due: the topic's deferred publishes that are already due, ascending.
        now: converts due times, which are wall time on disk and monotonic time in memory.
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
        return  # nothing was delivered: of thousands of topics most are like this
    # Arrays from here on: index by index, 10,000 deferred messages among a million took more than
    # 200 s.
    requeued = np.array(sorted(state.requeued), np.int64)
    values = [state.requeued[index] for index in requeued.tolist()]
    dues, attempts = np.array(values, np.int64).reshape(-1, 2).T
    # Due times are wall time on disk, since the monotonic clock begins anew with each boot.
    is_ready = dues <= now.wall_ns
    delayed = (dues + (now.mono_ns - now.wall_ns), requeued, attempts)
    channel.delays.add_all(zip(*(column[~is_ready].tolist() for column in delayed), strict=True))
    finished = np.array(state.finished, np.int64).reshape(-1, 2)
    done = finished[:, 0], finished[:, 1]
    channel.detached = {index for index in state.detached if index in stream.due.pending}
    pending = stream.due.pending_between(state.start, stream.end)
    cancelled = np.array(list(stream.due.cancelled), np.int64)
    elsewhere = np.concatenate((requeued, pending, past_due, cancelled))
    fresh = _indexes_of(_unfinished(channel, done))
    fresh = fresh[~np.isin(fresh, elsewhere)]
    due = past_due[(past_due >= state.start) & (past_due < stream.end)]
    due = due[~np.isin(due, requeued) & ~_within(due, done)]
    indexes = np.concatenate((requeued[is_ready], fresh, due))
    # Attempts so far: `fresh` were with a consumer, `due` with none yet.
    counts = np.repeat([1, 0], [len(fresh), len(due)])
    order = np.argsort(indexes)
    channel.requeued.push_many(
        indexes[order], np.concatenate((attempts[is_ready], counts))[order].astype(np.uint16)
    )
    # Requeued messages ahead of the cursor are in a queue already: it must not deliver them again.
    _skip_ahead(channel, done, requeued[requeued >= channel.cursor])
    channel.reschedule()


def seen_end(state: ChannelState) -> int:
    """The end of everything delivered to a channel; P was there or further.

    The mark of a pause alone may be older: the disk failed when a later mark was written, or a
    power cut lost the record that ended the pause but kept the channel's records.
    """
    finished_end = max((end for _, end in state.finished), default=0)
    requeued_end = max(state.requeued, default=-1) + 1
    return max(state.start, state.cursor, finished_end, requeued_end)


def _unfinished(channel: Channel, done: Ranges) -> Ranges:
    """The stored ranges of [start, cursor) that are not finished according to the ledger."""
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
    """All indexes of the ranges."""
    firsts, ends = ranges
    counts = ends - firsts
    before = np.cumsum(counts) - counts
    return np.repeat(firsts - before, counts) + np.arange(counts.sum())


def _within(indexes: Indexes, ranges: Ranges) -> NDArray[np.bool_]:
    """Which of the indexes are in one of the ranges."""
    firsts, ends = ranges
    if not len(firsts):
        return np.zeros(len(indexes), bool)
    at = np.searchsorted(firsts, indexes, "right") - 1
    return (at >= 0) & (indexes < ends[at])


def _skip_ahead(channel: Channel, done: Ranges, outside: Indexes) -> None:
    """Have the cursor skip finished ranges ahead of it, and the `outside` indexes."""
    firsts, ends = done
    ahead = ends > channel.cursor
    low = np.concatenate((np.maximum(firsts[ahead], channel.cursor), outside))
    high = np.concatenate((ends[ahead], outside + 1))
    if not len(low):
        return
    low, high = np.array(merge_ranges(low, high), np.int64).reshape(-1, 2).T
    log, due = channel.stream.log, channel.stream.due
    # `fresh_count` subtracts the due list by itself, so the skips must not count it again.
    counts = (
        log.ordinals_at(high)
        - log.ordinals_at(low)
        - np.searchsorted(due.skipped, high)
        + np.searchsorted(due.skipped, low)
    )
    channel.skips.add_all(low, high, counts)


def recover_mark(stream: Stream, state: TopicState, *, flows: bool) -> None:
    """Set P, the end of what channels see; `flows`: the topic has channels and is not paused."""
    mark = stream.log.written_end
    # The ledger has P only where it stopped: while messages flow, P follows the log.
    if not flows:
        mark = min(mark, stream.log.first_index if state.mark is None else state.mark)
    stream.end = max([mark, *map(seen_end, state.channels.values())])
    stream.ordinal = stream.log.ordinal_at(stream.end)


def recover_due(stream: Stream, state: TopicState, now: Instant) -> Indexes:
    """Refill a topic's due list; returns the deferred publishes that are due already, ascending.

    A publish that some channel has seen was due, even if the wall clock was set back since.
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
    """Which of these deferred publishes were delivered to or finished by some channel."""
    found = np.zeros(len(indexes), bool)
    for channel in state.channels.values():
        finished = np.array(channel.finished, np.int64).reshape(-1, 2)
        seen = _within(indexes, (finished[:, 0], finished[:, 1]))
        seen |= np.isin(indexes, np.array(list(channel.requeued), np.int64))
        # An administrator decided about these before they were due.
        found |= seen & ~np.isin(indexes, np.array(list(channel.detached), np.int64))
    return found


def state_of(channel: Channel, now: Instant) -> ChannelState:
    """Return a channel's state for a ledger checkpoint."""
    unfinished = channel.unfinished()
    unfinished = unfinished[unfinished < channel.cursor]
    # The finished ranges are the gaps between unfinished messages. The start moves up to the first
    # of those, so that a long history of a channel needs no ranges.
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
        # The noted start may be lower: the channel must not wait for more deferred publishes.
        detached=channel.detached | set(due.pending_between(bounds[0], channel.start).tolist()),
        redriven=dict(channel.redriven),
    )


def topic_state(
    stream: Stream, channels: dict[str, Channel], *, paused: bool, now: Instant
) -> TopicState:
    """Return a topic's state for a ledger checkpoint."""
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
    """Finished ranges ahead of the cursor: skips, and deferred publishes delivered before it.

    Some skipped messages are not finished: those that a start found requeued ahead of the cursor.
    """
    bounds = np.array(channel.skips.bounds(), np.int64).reshape(-1, 2)
    skips = bounds[:, 0], bounds[:, 1]
    unfinished = channel.unfinished()
    waiting = unfinished[_within(unfinished, skips)]
    # A message in the middle of a range ends one part of it and begins the next.
    firsts = np.sort(np.append(skips[0], waiting + 1))
    ends = np.sort(np.append(skips[1], waiting))
    skipped = [
        (first, end)
        for first, end in zip(firsts.tolist(), ends.tolist(), strict=True)
        if first < end
    ]
    if channel.range_epoch:
        return skipped
    due = channel.stream.due.joined_from(channel.cursor, channel.stream.end)
    due += [index for index in channel.detached if index >= channel.cursor]
    done = np.setdiff1d(np.array(due, np.int64), unfinished)
    apart = [(index, index + 1) for index in done[~_within(done, skips)].tolist()]
    return sorted(skipped + apart)


def _requeued(channel: Channel, now: Instant) -> dict[int, tuple[int, int]]:
    """Messages for which the cursor is not enough: with delays, or with a known attempts count."""
    requeued: dict[int, tuple[int, int]] = {}
    flying = channel.in_flight.rows()
    for indexes, attempts in ((flying.indexes, flying.attempts), channel.requeued.all()):
        for index, count in zip(indexes.tolist(), attempts.tolist(), strict=True):
            # Needs no record: a restart counts unfinished messages before the cursor as delivered
            # once.
            is_passed = (
                count == 1 and index < channel.cursor and not channel.stream.due.contains(index)
            )
            # Unrecorded, a restart would take it for a message that is only deferred, or cancelled.
            is_own = index in channel.detached or index in channel.stream.due.cancelled
            if (count and not is_passed) or is_own:
                requeued[index] = (0, count)
    for due_ns, index, count in channel.delays.entries():
        requeued[index] = (now.wall_ns + due_ns - now.mono_ns, count)
    return requeued
