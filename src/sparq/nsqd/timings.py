"""How long the disk takes: histograms of commits and syncs, for Prometheus.

They belong to the process, as Prometheus has it, and are observed in whichever thread did the work.
"""

from __future__ import annotations

import time
from typing import Final

from prometheus_client import Histogram

from sparq.daemon.exposition import process_registry
from sparq.log.disk import RealFile
from sparq.nsqd.open_files import KeepingDisk

REGISTRY: Final = process_registry()

_BUCKETS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01),
    *(0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)

COMMITS: Final = Histogram(
    "nsqd_commit_duration_seconds",
    "Time to write one batch of messages, and to sync it where the policy says so",
    buckets=_BUCKETS,
    registry=REGISTRY,
)
SYNCS: Final = Histogram(
    "nsqd_fsync_duration_seconds",
    "Time of one fdatasync, of a log or a ledger",
    buckets=_BUCKETS,
    registry=REGISTRY,
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
