"""Histograms of commit and sync durations, for Prometheus.

The histograms are global to the process, as is usual with Prometheus, and are updated by the thread
that did the work. They do not use `prometheus_client`, which would take 50 ms to load at the start.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from typing import Final

from sparq.log.disk import RealFile
from sparq.nsqd.open_files import CachingDisk

_BUCKETS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01),
    *(0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)


class DurationCounts:
    """Counts of durations by bucket.

    Attributes:
        name, text: the metric's name and help text.
        bounds: upper bounds of the buckets, in seconds.
        counts: one count per bucket (not cumulative), and one for durations above all bounds.
        total: the sum of all durations, in seconds.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        self.bounds = _BUCKETS
        self.counts = [0] * (len(_BUCKETS) + 1)
        self.total = 0.0
        self._lock = threading.Lock()

    def observe(self, seconds: float) -> None:
        """Count one duration; may be called from any thread."""
        at = bisect_left(self.bounds, seconds)
        # `+=` is not atomic, and several threads sync.
        with self._lock:
            self.counts[at] += 1
            self.total += seconds


COMMITS: Final = DurationCounts(
    "nsqd_commit_duration_seconds",
    "Time to write one batch of messages, including its sync if one is due",
)
SYNCS: Final = DurationCounts(
    "nsqd_fsync_duration_seconds", "Time of one fdatasync, of a log or a ledger"
)


class MeasuredFile(RealFile):
    """A file that measures its syncs."""

    __slots__ = ()

    def sync(self) -> None:
        """See `File`. Failed syncs are measured, too."""
        began = time.perf_counter()
        try:
            super().sync()
        finally:
            SYNCS.observe(time.perf_counter() - began)


class MeasuredDisk(CachingDisk):
    """The operating system's files, with timed syncs."""

    def _open(self, operation: str, path: str, flags: int) -> RealFile:
        opened = super()._open(operation, path, flags)
        return MeasuredFile(opened.fd, opened.path)
