"""Message latency from publish to FIN or first delivery, and the lag of a channel.

`LatencyWindow` computes NSQ's rolling percentiles for a channel. It has two halves: samples go into
the newer one, which replaces the older one when half of the window's time has passed.

1. Memory is bounded: a half is one array of counts, however many messages there are, and exists
   only once it has a sample. Neighboring bins differ by 2 %, so a percentile is off by 1 %.
2. A run of FINs costs one logarithm over an array.
3. Windows are merged by adding their counts: a topic is the sum of its channels.

`Histogram` counts the waits for the first delivery, for Prometheus. One observation covers a whole
run of messages, so that a run of 2,500 costs the same as a single one.

`KnownAges` computes the age of the oldest waiting message, and the time until the channel is empty.
Both use only memory, since monitoring requests them repeatedly for thousands of channels.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from sparq.options.units import SECOND
from sparq.protocol.go_json import number

if TYPE_CHECKING:
    from sparq.log.inspection import LogInspection
    from sparq.protocol.instant import Instant


Counts = NDArray[np.int64]

UNIT_NS: Final = 1000
"""Shorter times are recorded as this: clocks are not more precise."""

LONGEST_NS: Final = 366 * 86_400 * 1_000_000_000
# Not NSQ's targeted sketch: fixed bins are added as arrays, have a bounded size, and windows of
# several channels merge exactly.
GROWTH: Final = 1.02
_SCALE: Final = 1 / math.log(GROWTH)
BINS: Final = math.ceil(math.log(LONGEST_NS / UNIT_NS) * _SCALE) + 1


@dataclass(slots=True)
class Latency:
    """Number of samples in the window; in configured order, each `quantile` with its `value` (ns).

    `percentiles` is None if none are configured: NSQ's empty form.
    """

    count: int = 0
    percentiles: list[dict[str, float]] | None = None


OFF: Final = Latency()


def bins_of(latencies_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bin of each sample: the first whose upper end is not below it."""
    units = np.clip(latencies_ns, UNIT_NS, LONGEST_NS) / UNIT_NS
    return np.ceil(np.log(units) * _SCALE).astype(np.int64)


def value_of(position: int) -> int:
    """The latency (ns) that a bin represents: the relative error is equal at both of its ends."""
    return round(UNIT_NS * 2 * GROWTH**position / (GROWTH + 1)) if position else UNIT_NS


class LatencyWindow:
    """One channel's samples of the last `window_ns`, accurate to half of that."""

    def __init__(self, quantiles: Sequence[float], window_ns: int) -> None:
        self.quantiles = quantiles
        self._half_ns = max(1, window_ns // 2)
        self._older: Counts | None = None
        self._newer: Counts | None = None
        self._turns_ns = 0

    def add(self, latencies_ns: NDArray[np.int64], mono_ns: int) -> None:
        """Add the samples of a run."""
        if not len(latencies_ns):
            return
        self._turn(mono_ns)
        if self._newer is None:
            self._newer = np.zeros(BINS, np.int64)
        self._newer += np.bincount(bins_of(latencies_ns), minlength=BINS)

    def counts(self, mono_ns: int) -> list[Counts]:
        """The counts in the window now."""
        self._turn(mono_ns)
        return [half for half in (self._older, self._newer) if half is not None]

    def _turn(self, mono_ns: int) -> None:
        if mono_ns < self._turns_ns:
            return
        # After a whole window without samples, both halves are outdated.
        late = mono_ns >= self._turns_ns + self._half_ns
        self._older = None if late else self._newer
        self._newer = None
        self._turns_ns = (mono_ns if late else self._turns_ns) + self._half_ns


def merged(windows: Iterable[LatencyWindow], quantiles: Sequence[float], mono_ns: int) -> Latency:
    """The percentiles over all windows together."""
    halves = [half for window in windows for half in window.counts(mono_ns)]
    if not halves:
        return Latency(0, [_percentile(quantile, 0) for quantile in quantiles])
    ranks = np.cumsum(sum(halves[1:], halves[0]))
    count = int(ranks[-1])
    found = []
    for quantile in quantiles:
        rank = max(1, math.ceil(count * quantile))
        found.append(_percentile(quantile, value_of(int(np.searchsorted(ranks, rank)))))
    return Latency(count, found)


def _percentile(quantile: float, value_ns: int) -> dict[str, float]:
    return {"quantile": number(quantile), "value": value_ns}


DELIVERY_BOUNDS_NS: Final = tuple(
    round(seconds * 1_000_000_000)
    for seconds in (
        *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
        *(1, 2.5, 5, 10, 30, 60, 300, 1800, 3600, 21600, 86400),
    )
)
"""From the duration of one event loop turn to a backlog of a day."""


class Histogram:
    """Counts durations by bucket, with one more bucket beyond all bounds.

    Attributes:
        bounds_ns: the upper bounds of the buckets, ascending.
        counts: the count of each bucket alone; the last one is for longer durations.
        total_ns: the sum of all durations.
    """

    def __init__(self, bounds_ns: Sequence[int] = DELIVERY_BOUNDS_NS) -> None:
        self.bounds_ns = bounds_ns
        self.counts = [0] * (len(bounds_ns) + 1)
        self.total_ns = 0

    def observe(self, took_ns: int, count: int) -> None:
        """Add `count` equal durations; a negative one (clock set back) counts as 0."""
        took_ns = max(0, took_ns)
        self.counts[bisect_left(self.bounds_ns, took_ns)] += count
        self.total_ns += took_ns * count


TREND_NS: Final = 15 * SECOND
"""A depth is compared with one that is at least this old, if there is one."""

TREND_MIN_NS: Final = SECOND
"""A depth younger than this is not compared."""

TREND_MAX_NS: Final = 60 * SECOND
"""A depth older than this is discarded."""


class KnownAges:
    """Values from earlier checks of a channel: its depths, and one message's publish time."""

    __slots__ = ("_known", "_newer", "_older")

    def __init__(self) -> None:
        self._older = self._newer = (0, -1)
        self._known = (-1, 0)

    def oldest_waiting_ns(
        self, index: int | None, inspection: LogInspection, now: Instant
    ) -> int | None:
        """The age of the oldest waiting message in ns; None: unknown, or no message waits.

        If its own publish time is not in memory, that of the newest message in its extent is used.

        Args:
            index: that message's index; None: no message waits.
            inspection: view of the topic's log.
            now: the current time; the wall clock counts.
        """
        if index is None:
            return None
        if index != self._known[0]:
            known = inspection.known_time(index)
            if known is None:
                return None
            if not known[1]:
                return max(0, now.wall_ns - known[0])
            self._known = index, known[0]
        return max(0, now.wall_ns - self._known[1])

    def clear_ns(self, depth: int, now: Instant) -> int | None:
        """Time (ns) until the depth is 0 if it keeps falling at its recent rate; None: unknown."""
        since = now.mono_ns - self._newer[0]
        if self._newer[1] < 0 or since > TREND_MAX_NS:
            self._older = self._newer = now.mono_ns, depth
        elif since >= TREND_NS:
            self._older, self._newer = self._newer, (now.mono_ns, depth)
        if not depth:
            return 0
        before_ns, before = self._older
        span = now.mono_ns - before_ns
        if span < TREND_MIN_NS or before <= depth:
            return None
        return depth * span // (before - depth)
