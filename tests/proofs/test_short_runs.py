"""Short runs of the proofs; `make proofs` runs them in full."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path

import pytest
from proofs.operator_day import CHANNELS
from proofs.outcome import Plan

from proofs import simulate
from tests.support.open_files import files_closed_below

SEED = 20261121
RUNS = {
    "bitrot": Plan(SEED, 40),
    "cluster": Plan(2683, 2, control=False),
    "crash": Plan(SEED, 6, control=False),
    "full": Plan(SEED, 240),
    "golden": Plan(1, 1),
    "hostile": Plan(SEED, 1_000),
    "mixed": Plan(SEED, 1, control=False),
    "operator_day": Plan(38, 5 * len(CHANNELS), control=False),
    "power": Plan(SEED, 2),
    "simulate": Plan(SEED, 6, control=False),
    "slow": Plan(1, 320),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", RUNS)
def test_a_short_run_holds(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It finds no violation, and the controls that it includes are noticed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    proof = importlib.import_module(f"proofs.{name}")
    if name == "slow":  # a stop is not timed here: other tests use the machine, too
        monkeypatch.setattr(proof, "STOP_SECONDS_MAX", 60.0)
    if name == "mixed":
        monkeypatch.setattr(proof, "MINUTE_SECONDS", 18.0)
        monkeypatch.setattr(proof, "LATE_SECONDS_MAX", 30.0)  # neither is this

    with files_closed_below(tmp_path):
        outcome = proof.prove(RUNS[name])

    if outcome.skipped:
        pytest.skip(outcome.skipped)
    assert outcome.held, (outcome.figures, outcome.control)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", ["syncs", "order", "the monotonic clock"])
def test_the_simulation_finds_a_missing_guard(name: str) -> None:
    """Without the guard a few runs find violations; `make simulate` checks this for all guards."""
    assert simulate.without(name, 3000)[2] > 0
