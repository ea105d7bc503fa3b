"""Benchmarks against another commit: which nsqd runs which source, and when a line is slower."""

import shutil
from pathlib import Path

import pytest
from bench.against import ROOT, Ratios, compare, contestants, line, main
from bench.generator import Figures
from bench.peers.nsq import Sparq
from bench.results import Cell, Result

needs_git = pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="needs a checkout of git"
)


def result_of(new: list[float], old: list[float], control: list[float]) -> Result:
    """Return a line whose rounds have these rates, at one microsecond of CPU per message."""
    result = Result("line", False)
    for key, rates in (("new", new), ("old", old), ("control", control)):
        rounds = [Figures(rate, 1.0, rate * 1e-6, 0.5) for rate in rates]
        result.cells[key] = Cell(key, rounds)
    return result


def test_a_line_has_the_median_of_the_rounds_ratios() -> None:
    """A round that is slow for all three nsqds does not change the result."""
    text, lost_nothing = line(result_of([99, 9, 98], [100, 10, 100], [101, 10, 100]))

    assert text.split() == ["line", "0.980", "1.000", "1.000", "1.000"]
    assert lost_nothing


def test_a_line_is_slower_beyond_the_limit_and_the_control() -> None:
    """A line is SLOWER if it lost more than the control, whose loss is due to the machine."""
    lost, lost_nothing = line(result_of([90, 90], [100, 100], [100, 100]))

    assert lost.endswith("SLOWER")
    assert not lost_nothing
    assert line(result_of([90, 90], [100, 100], [91, 91]))[1]


@pytest.mark.parametrize(
    ("ratios", "larger", "smaller"),
    [
        (Ratios(1.02, 1.0), False, False),
        (Ratios(1.04, 1.0), True, False),
        (Ratios(1.04, 1.02), False, False),
        (Ratios(0.96, 1.0), False, True),
        (Ratios(0.96, 0.98), False, False),
    ],
)
def test_the_limit_is_three_percent(ratios: Ratios, *, larger: bool, smaller: bool) -> None:
    """A ratio must differ by over 3 % from 1, and from the control's ratio."""
    assert ratios.is_beyond(1) == larger
    assert ratios.is_beyond(-1) == smaller


def test_each_nsqd_runs_its_own_source(tmp_path: Path) -> None:
    """One nsqd runs this checkout's source, the other two run the other commit's."""
    made = [each.make(tmp_path / each.key) for each in contestants(tmp_path / "old", Sparq)]

    assert [peer.program.environment["PYTHONPATH"] for peer in made] == [
        str(ROOT / "src"),
        str(tmp_path / "old"),
        str(tmp_path / "old"),
    ]


def test_extra_flags_go_only_to_this_checkouts_nsqd(tmp_path: Path) -> None:
    """Extra flags go only to this checkout's nsqd, to measure options that are off by default."""
    found = contestants(tmp_path / "old", Sparq, ["--max-attempts=5"])

    assert [True, False, False] == [
        "--max-attempts=5" in each.make(tmp_path / each.key).program.command for each in found
    ]


@needs_git
def test_a_small_run_compares_with_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line is measured with one round per nsqd; the ratios' values are not checked."""
    monkeypatch.chdir(tmp_path)

    compare("HEAD", only="PUB, pipelined, 1 KiB", rounds=1, seconds=0.1)

    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == ["rate", "control", "CPU", "control"]
    assert all(float(ratio) > 0 for ratio in row.removeprefix("PUB, pipelined, 1 KiB").split()[:4])
    assert not list(tmp_path.iterdir())


@needs_git
def test_an_unknown_commit_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program exits with status 2, measures nothing and leaves no files."""
    monkeypatch.chdir(tmp_path)

    assert main(["no-such-commit"]) == 2
    assert "no-such-commit" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
