"""The bench of the pipeline: its clicks and targets, and small runs of each measure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench.pipeline import MEASURES, Bench, main
from bench.pipeline_processes import BenchError
from bench.pipeline_targets import SUSTAINED_RATIO as RATIO

from bench import pipeline


def failing(_bench: Bench) -> None:
    """A measure that fails."""
    raise BenchError("no water")


def depth(bench: Bench) -> None:
    """A measure with one figure."""
    bench.note(RATIO, "", bench.sized(3_000))


def test_a_measure_that_fails_does_not_stop_the_others(tmp_path: Path, monkeypatch, capfd) -> None:
    """The error is counted and in the JSON file; the others have figures and targets."""
    monkeypatch.setattr(pipeline, "MEASURES", {"sea": failing, "lake": depth, "hill": failing})
    failed = main(tmp_path / "work", 1, 2_000, ["sea", "lake"], tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())

    assert (1, {"sea": "BenchError: no water"}) == (failed, found["failed"])
    assert [2_000] == [figure["median"] for figure in found["figures"]]
    assert f"targets at commit {pipeline.conditions()['commit']}:" in capfd.readouterr().out


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [name for name in MEASURES if name != "long"])
def test_a_measure_has_figures(name: str, tmp_path: Path) -> None:
    """Each measure of a small run succeeds."""
    assert 0 == main(tmp_path / "work", 1, 2_000, [name], tmp_path / "found.json")
    assert json.loads((tmp_path / "found.json").read_text())["figures"]
