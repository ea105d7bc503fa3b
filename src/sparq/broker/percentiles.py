"""End-to-end latency of a channel: how long messages took from their publish to their FIN.

NSQ's rolling percentiles (reference: semantics.md 9): a window of two halves; samples go into the
newer one, which takes the place of the older when half the window's time has passed.

1. Memory is bounded: a half is one array of counts, however many messages there were, and exists
   only once it has a sample. Neighbouring bins differ by 2 %, so a percentile is off by 1 %.
2. A run of FINs is one logarithm over an array; below 16 samples plain code gives the same bins.
3. Windows merge by adding counts: a topic is the sum of its channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]

UNIT_NS: Final = 1000
"""What is quicker than this is told as this: clocks are no better."""

LONGEST_NS: Final = 366 * 86_400 * 1_000_000_000
GROWTH: Final = 1.02
_SCALE: Final = 1 / math.log(GROWTH)
BINS: Final = math.ceil(math.log(LONGEST_NS / UNIT_NS) * _SCALE) + 1
FEW: Final = 16


@dataclass(slots=True)
class Latency:
    """Samples in the window and, in the configured order, `quantile` with `value` in ns.

    `percentiles` is None when none are configured: NSQ's empty form.
    """

    count: int = 0
    percentiles: list[dict[str, float]] | None = None


OFF: Final = Latency()


def bin_of(latency_ns: int) -> int:
    """The bin of one sample: the smallest that does not end before it."""
    units = min(max(latency_ns, UNIT_NS), LONGEST_NS) / UNIT_NS
    return math.ceil(math.log(units) * _SCALE)


def bins_of(latencies_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bins of a run of samples."""
    units = np.clip(latencies_ns, UNIT_NS, LONGEST_NS) / UNIT_NS
    return np.ceil(np.log(units) * _SCALE).astype(np.int64)


def value_of(position: int) -> int:
    """The latency in ns that a bin stands for: off by the same share at both of its ends."""
    return round(UNIT_NS * 2 * GROWTH**position / (GROWTH + 1)) if position else UNIT_NS


class Window:
    """The samples of one channel in the last `window_ns`, to within half of it."""

    def __init__(self, quantiles: Sequence[float], window_ns: int) -> None:
        self.quantiles = quantiles
        self._half_ns = max(1, window_ns // 2)
        self._older: Counts | None = None
        self._newer: Counts | None = None
        self._turns_ns = 0

    def add(self, latencies_ns: NDArray[np.int64], mono_ns: int) -> None:
        """Take the samples of a run in."""
        if not len(latencies_ns):
            return
        self._turn(mono_ns)
        if self._newer is None:
            self._newer = np.zeros(BINS, np.int64)
        if len(latencies_ns) < FEW:
            for latency_ns in latencies_ns.tolist():
                self._newer[bin_of(latency_ns)] += 1
        else:
            self._newer += np.bincount(bins_of(latencies_ns), minlength=BINS)

    def counts(self, mono_ns: int) -> list[Counts]:
        """What is in the window now."""
        self._turn(mono_ns)
        return [half for half in (self._older, self._newer) if half is not None]

    def _turn(self, mono_ns: int) -> None:
        if mono_ns < self._turns_ns:
            return
        # Without a sample for a whole window, both halves are of the past.
        late = mono_ns >= self._turns_ns + self._half_ns
        self._older = None if late else self._newer
        self._newer = None
        self._turns_ns = (mono_ns if late else self._turns_ns) + self._half_ns


def merged(windows: Iterable[Window], quantiles: Sequence[float], mono_ns: int) -> Latency:
    """The percentiles of all windows together."""
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
    return {"quantile": quantile, "value": value_ns}
