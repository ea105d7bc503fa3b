"""Short runs of the proofs about files: damage, crashes, full disks, models of the broker."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import ModuleType

import pytest
from proofs.equal import PAIRS
from proofs.outcome import Plan
from proofs.simulate_parts.full_disk import FullDisk

from proofs import bitrot, crash, equal, full, golden, ioerror, model, museum, power, simulate
from tests.proofs.short import Runs, holds, name_of
from tests.support.open_files import files_closed_below

SEED = 20261121
RUNS: Runs = {
    bitrot: Plan(SEED, 40),
    crash: Plan(SEED, 6, control=False),
    equal: Plan(SEED, 40 * len(PAIRS)),
    full: Plan(SEED, 3, control=False),
    ioerror: Plan(SEED, 6, control=False),
    model: Plan(SEED, 8, control=False),
    museum: Plan(1, 1),
    power: Plan(SEED, 2),
    simulate: Plan(SEED, 6, control=False),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("proof", RUNS, ids=name_of)
def test_a_short_run_holds(proof: ModuleType) -> None:
    """No acknowledged message is lost, and none is invented, corrupt or finished and back."""
    holds(proof, RUNS[proof])


def test_every_golden_data_path_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This version reads every golden data path; a reader of the newest format only would not."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with files_closed_below(tmp_path):
        holds(golden, Plan(1, 1))


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", ["syncs", "order"])
def test_the_simulation_finds_a_missing_guard(name: str) -> None:
    """Without the guard a few runs find violations; `make simulate` checks this for all guards."""
    assert simulate.without(name, 3000)[2] > 0


@pytest.mark.parametrize("seed", [2, 2093732960, 2093732990])
def test_a_full_disk_keeps_the_promises(seed: int) -> None:
    """Finished messages do not return after kills, and every topic accepts messages again.

    With the last two seeds topics were stuck once, since ledgers alone kept the disk full.
    """
    tally = FullDisk(seed).run()

    assert not tally.wrong
    assert 0 == tally.stuck
