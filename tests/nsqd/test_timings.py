"""Durations are counted in buckets; syncs of nsqd's files are timed, even if they fail."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from sparq.log.disk import DiskError, RealFile
from sparq.nsqd.timings import SYNCS, DurationCounts, MeasuredDisk


def test_a_duration_is_counted_up_to_its_bound() -> None:
    """A bound belongs to its bucket; the last count is for durations above all bounds."""
    counts = DurationCounts("a_seconds", "Help")
    for seconds in (0.0, 0.0001, 0.00011, 5.0, 5.1, 100.0):
        counts.observe(seconds)

    assert [2, 1] == counts.counts[:2]
    assert [1, 2] == counts.counts[-2:]
    assert len(counts.bounds) + 1 == len(counts.counts)
    assert 6 == sum(counts.counts)
    assert 110.10021 == pytest.approx(counts.total)


def test_threads_lose_no_count() -> None:
    """Four threads that count at the same time lose no duration."""
    counts = DurationCounts("a_seconds", "Help")

    def work() -> None:
        for _ in range(2000):
            counts.observe(0.5)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert 8000 == sum(counts.counts)
    assert 4000.0 == counts.total


def test_syncs_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sync is counted, even one that fails, because it may take the longest."""
    before = sum(SYNCS.counts)
    disk = MeasuredDisk()
    file = disk.create(str(tmp_path / "file"))
    file.append([b"x"], 0)
    file.sync()
    assert 1 == sum(SYNCS.counts) - before

    def refuse(self: RealFile) -> None:
        raise DiskError("sync", self.path, 5)

    with monkeypatch.context() as patch:
        patch.setattr(RealFile, "sync", refuse)
        file.append([b"y"], 1)
        with pytest.raises(DiskError):
            file.sync()
    assert 2 == sum(SYNCS.counts) - before
    file.close()
