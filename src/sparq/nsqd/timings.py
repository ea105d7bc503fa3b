"""How long the disk takes: histograms of commits and syncs, for Prometheus.

They belong to the process, as Prometheus has it, and are observed in whichever thread did the work.
They are counted here, and not by `prometheus_client`: that takes 50 ms to load at the start.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from typing import Final

from sparq.log.disk import RealFile
from sparq.nsqd.open_files import KeepingDisk

_BUCKETS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01),
    *(0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)


class Histogram:
    """Counts of durations by bucket.

    Attributes:
        name, text: of the metric.
        bounds: upper bounds of the buckets, in seconds.
        counts: a count for each bucket alone; one more for what is beyond all bounds.
        total: the sum of all durations, in seconds.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        self.bounds = _BUCKETS
        self.counts = [0] * (len(_BUCKETS) + 1)
        self.total = 0.0
        self._lock = threading.Lock()

    def observe(self, seconds: float) -> None:
        """Count one duration; from any thread."""
        at = bisect_left(self.bounds, seconds)
        with self._lock:
            self.counts[at] += 1
            self.total += seconds


COMMITS: Final = Histogram(
    "nsqd_commit_duration_seconds",
    "Time to write one batch of messages, and to sync it where the policy says so",
)
SYNCS: Final = Histogram(
    "nsqd_fsync_duration_seconds", "Time of one fdatasync, of a log or a ledger"
)


class MeasuredFile(RealFile):
    """A file whose syncs are timed."""

    __slots__ = ()

    def sync(self) -> None:
        """See `File`. A sync that fails took its time, too."""
        began = time.perf_counter()
        try:
            super().sync()
        finally:
            SYNCS.observe(time.perf_counter() - began)


class MeasuredDisk(KeepingDisk):
    """The operating system's files, with timed syncs."""

    def _open(self, operation: str, path: str, flags: int) -> RealFile:
        opened = super()._open(operation, path, flags)
        return MeasuredFile(opened._fd, opened.path)
