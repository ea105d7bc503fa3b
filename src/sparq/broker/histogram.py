"""How long messages waited for their first delivery: counts per bucket, for Prometheus.

One observation stands for a whole run of messages, so that a delivery of 2,500 costs what one does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

DELIVERY_BOUNDS_NS: Final = tuple(
    round(seconds * 1_000_000_000)
    for seconds in (
        *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
        *(1, 2.5, 5, 10, 30, 60, 300, 1800, 3600, 21600, 86400),
    )
)
"""From the turn of a loop to a backlog of a day."""


class Histogram:
    """Counts of what took at most so long, and beyond all bounds.

    Attributes:
        bounds_ns: the upper ends of the buckets, ascending.
        counts: of each bucket alone, and one more for what is beyond.
        total_ns: the sum of all.
    """

    def __init__(self, bounds_ns: Sequence[int] = DELIVERY_BOUNDS_NS) -> None:
        self.bounds_ns = bounds_ns
        self.counts = [0] * (len(bounds_ns) + 1)
        self.total_ns = 0

    def observe(self, took_ns: int, count: int) -> None:
        """So many took so long; a clock that was set back counts as no time."""
        took_ns = max(0, took_ns)
        self.counts[bisect_left(self.bounds_ns, took_ns)] += count
        self.total_ns += took_ns * count
