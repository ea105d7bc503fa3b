"""The pipeline benchmark with small runs of the real pipeline: each measure has its figures."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.pipeline_clicks import Crowd, day_file
from bench.pipeline_latency import latency
from bench.pipeline_measures import batch_seconds, make_run, memory, sustained
from bench.pipeline_processes import BenchError
from bench.pipeline_running import QUERIES, Running

CLICKS = 2_000


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_the_three_queries_have_a_rate(tmp_path: Path) -> None:
    """The rate from two nsqds to the last click is at least the rate that includes the start."""
    rates = sustained(tmp_path / "work", day_file(tmp_path, CLICKS), CLICKS)

    assert 0 < rates.whole <= rates.sustained


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_a_run_is_timed_to_its_report(tmp_path: Path) -> None:
    """The first click is archived before the report is written."""
    took = make_run(tmp_path / "work", CLICKS)

    assert 0 < took.first < took.report


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_the_drivers_memory_excludes_the_executors(tmp_path: Path) -> None:
    """On a standalone cluster the driver's process tree does not include the executors."""
    found = memory(tmp_path / "work", CLICKS, 200)

    assert 5 < found.java_live
    assert 20 < found.python
    assert found.java_live + found.python < found.peak


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_batches_are_timed_with_all_visitors_open(tmp_path: Path) -> None:
    """Each probe after the warm-up has a time."""
    took = batch_seconds(tmp_path / "work", 1_000, 1, 2)

    assert 2 == len(took)
    assert 0 < min(took)


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_every_click_and_robot_has_a_latency(tmp_path: Path) -> None:
    """Each 0.1 s tick of two seconds has a latency to its minute, each robot one to its finding."""
    found = latency(tmp_path / "work", 2.0)

    assert [20, 2] == [len(found.minutes), len(found.findings)]
    assert 0 < min(found.minutes) <= max(found.minutes) < 60
    assert 0 < min(found.findings) <= max(found.findings) < 60


def test_every_query_has_all_published_clicks(tmp_path: Path) -> None:
    """Each query's channels have all published clicks, summed over the nsqds."""
    with Running(tmp_path / "work", nsqds=2) as running:
        running.publish(Crowd(5, 5).lines(1_234))
        depths = running.depths()

    assert dict.fromkeys(QUERIES, 1_234) == depths


def test_an_application_that_ends_is_an_error(tmp_path: Path) -> None:
    """The error quotes its output, and is raised without waiting for the timeout."""
    with Running(tmp_path / "work", flags=("--no-such-flag",)) as running:
        running.publish(Crowd(5, 5).lines(10))
        running.start()
        with pytest.raises(BenchError, match="no-such-flag"):
            running.drain()
