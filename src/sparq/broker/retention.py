"""How long a log keeps what no channel needs any more, and how far a channel may fall behind.

Both work on whole files, as deleting does; a file is as old as its newest message.

1. Retention only keeps. What a channel still needs stays anyway, and two options together keep what
   either of them would.
2. A lag limit takes from a channel what its cursor has not reached, oldest first, so that a channel
   which nobody reads (a stopped query, decision 32) does not fill the disk. What is in flight,
   requeued or deferred stays: it pins its own file only.
3. The file that is being written to is neither deleted nor taken from a channel.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparq.broker.options import BrokerOptions
from sparq.log.log import SegmentInfo
from sparq.protocol.instant import Instant


def expired(
    unneeded: Sequence[SegmentInfo],
    segments: Sequence[SegmentInfo],
    options: BrokerOptions,
    now: Instant,
) -> list[SegmentInfo]:
    """Of the files that no channel needs those that retention does not keep either.

    Args:
        unneeded: files of `segments`, ascending.
        segments: all files of the log, ascending.
        options: `retention_bytes` and `retention_time_ns`; 0: keep nothing for that reason.
        now: the wall clock decides, since publish times are of the wall clock.
    """
    keep_bytes, keep_ns = options.retention_bytes, options.retention_time_ns
    if not keep_bytes and not keep_ns:
        return list(unneeded)
    newer = _newer_bytes(segments)
    return [
        segment
        for segment in unneeded
        if newer[segment.path] >= keep_bytes and now.wall_ns - segment.last_time_ns >= keep_ns
    ]


def lag_floor(segments: Sequence[SegmentInfo], options: BrokerOptions, now: Instant) -> int:
    """The index before which no channel may have anything unread; 0: no limit is reached.

    Args:
        segments: all files of the log, ascending.
        options: `max_channel_lag_bytes` and `max_channel_lag_time_ns`; 0: no limit.
        now: the wall clock decides.
    """
    most_bytes, most_ns = options.max_channel_lag_bytes, options.max_channel_lag_time_ns
    if not most_bytes and not most_ns:
        return 0
    newer = _newer_bytes(segments)
    floor = 0
    for segment in segments:
        too_far = most_bytes and newer[segment.path] + segment.size_bytes > most_bytes
        too_old = most_ns and now.wall_ns - segment.last_time_ns > most_ns
        if segment.sealed and (too_far or too_old):
            floor = segment.end_index
    return floor


def _newer_bytes(segments: Sequence[SegmentInfo]) -> dict[str, int]:
    """What the files behind each file take in all."""
    newer: dict[str, int] = {}
    total = 0
    for segment in reversed(segments):
        newer[segment.path] = total
        total += segment.size_bytes
    return newer
