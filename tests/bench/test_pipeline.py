"""The bench of the pipeline: its clicks and targets, and small runs of each measure."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pyarrow as pa
import pytest
from bench.__main__ import main as command
from bench.pipeline import MEASURES, Bench, main
from bench.pipeline_clicks import Crowd
from bench.pipeline_latency import Seen, Tick, quantile
from bench.pipeline_measures import opened_table
from bench.pipeline_processes import BenchError
from bench.pipeline_running import Running
from bench.pipeline_targets import SUSTAINED_RATIO as RATIO
from bench.pipeline_targets import TARGETS

from bench import pipeline
from sparq.pipeline.enrich import parse_arrow


def failing(_bench: Bench) -> None:
    """A measure that fails."""
    raise BenchError("no water")


def depth(bench: Bench) -> None:
    """A measure with one figure."""
    bench.note(RATIO, "", bench.sized(3_000))


def test_a_crowd_has_the_requested_visitors_and_rate() -> None:
    """All clicks parse; each visitor has 10; a sequence that is continued is the same."""
    lines = list(Crowd(50, 10).lines(500))
    clicks = parse_arrow(pa.table({"body": pa.array(lines, pa.binary())}))
    by_visitor = clicks.group_by("address").aggregate([("path", "count")])

    assert {None} == set(clicks["reason"].to_pylist())
    assert {10} == set(by_visitor["path_count"].to_pylist())
    assert lines[8:] == list(Crowd(50, 10).lines(492, first=8))


def test_a_table_of_many_batches_has_few_files(tmp_path: Path) -> None:
    """Merges keep the number of files small; all rows are there."""
    assert 1 <= opened_table(tmp_path / "table", 200).files <= 40


def test_a_latency_ends_with_the_result_of_the_click() -> None:
    """A latency ends with the total that includes the tick, or a robot's finding, or is inf."""
    ticks = [Tick(10.0, 100, "a"), Tick(10.5, 200), Tick(11.0, 300, "b"), Tick(11.5, 400)]
    seen = Seen([(100, 11.0), (300, 13.0)], {"a": 12.0})

    assert [1.0, 2.5, 2.0, math.inf] == seen.minutes(ticks)
    assert [2.0, math.inf] == seen.findings(ticks)
    assert [2.0, math.inf] == [quantile(seen.minutes(ticks), part) for part in (0.3, 0.99)]


def test_targets_are_graded_by_their_side() -> None:
    """At least, or at most: the target, what must be, and what misses both."""
    least = next(target for target in TARGETS if target.figure == RATIO)
    most = next(each for each in TARGETS if not each.is_least and each.must != each.target)
    values = (most.target, most.must, most.must * 2, math.nan)

    assert ["target met", "must met", "MISSED"] == [least.grade(value) for value in (1.2, 0.9, 0.5)]
    assert ["target met", "must met", "MISSED", "MISSED"] == [most.grade(each) for each in values]


def test_a_measure_that_fails_does_not_stop_the_others(tmp_path: Path, monkeypatch, capfd) -> None:
    """The error is counted and in the JSON file; the others have figures and targets."""
    monkeypatch.setattr(pipeline, "MEASURES", {"sea": failing, "lake": depth, "hill": failing})
    failed = main(tmp_path / "work", 1, 2_000, ["sea", "lake"], tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())

    assert (1, {"sea": "BenchError: no water"}) == (failed, found["failed"])
    assert [2_000] == [figure["median"] for figure in found["figures"]]
    assert f"targets at commit {pipeline.conditions()['commit']}:" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--measures", "parse,snow"], "'snow' is none of parse, sustained"),
        (["--log", "none.log"], r"--log=none\.log is no file"),
    ],
)
def test_a_mistake_is_named(words: list[str], told: str, tmp_path: Path, monkeypatch) -> None:
    """Before anything is measured."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=told):
        command(["--parts", "pipeline", *words])


def test_an_application_that_ends_is_an_error(tmp_path: Path) -> None:
    """The error quotes its output, and is raised without waiting for the timeout."""
    with Running(tmp_path / "work", flags=("--no-such-flag",)) as running:
        assert 10 == running.publish(Crowd(5, 5).lines(10))
        running.start()
        with pytest.raises(BenchError, match="no-such-flag"):
            running.drain()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [name for name in MEASURES if name != "long"])
def test_a_measure_has_figures(name: str, tmp_path: Path) -> None:
    """Each measure of a small run succeeds."""
    assert 0 == main(tmp_path / "work", 1, 2_000, [name], tmp_path / "found.json")
    assert json.loads((tmp_path / "found.json").read_text())["figures"]
