"""A few simulated runs, and the guards without which they fail."""

from dataclasses import asdict

import pytest
from proofs.outcome import Plan
from proofs.simulate import prove, simulate, without
from proofs.simulate_parts.full_disk import FullDisk
from proofs.simulate_parts.guards import GUARDS
from proofs.simulate_parts.truth import Tally

RUNS = 6


@pytest.mark.timeout(180)
def test_simulated_runs_keep_the_promises() -> None:
    """Crashes, power cuts, disk errors, clock jumps: no message lost, invented or corrupt."""
    outcome = prove(Plan(seed=20261121, count=RUNS, control=False))

    assert outcome.held, outcome.figures
    assert f"seeds {RUNS} · " in outcome.figures


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", [2, 9])
def test_a_full_disk_keeps_the_promises(seed: int) -> None:
    """Messages of many topics that are finished one by one do not return after kills."""
    tally = FullDisk(seed).run()

    assert tally.delivered > 1000
    assert not tally.wrong


@pytest.mark.parametrize("seed", [2093732960, 2093732990])
def test_ledgers_alone_do_not_keep_a_small_disk_full(seed: int) -> None:
    """When all messages are finished, every topic accepts messages again.

    The disk then holds only ledgers that are no longer written. With these two seeds topics were
    stuck.
    """
    assert 0 == FullDisk(seed).run().stuck


def test_a_run_is_repeated_by_its_seed() -> None:
    """The same seed gives equal counts."""
    assert simulate(77) == simulate(77)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", ["syncs", "order", "room for ledgers", "deleting"])
def test_the_simulation_finds_a_missing_guard(name: str) -> None:
    """Without the guard a few runs find violations; `make simulate` checks this for all guards."""
    _, _, found = without(name, 3000)

    assert found > 0


def test_every_finding_has_a_guard() -> None:
    """Two counts have none: no guard prevents ghosts, and a broken run needs none."""
    counted = list(asdict(Tally()))
    findings = set(counted[counted.index("lost") : -1])

    assert {"ghosts", "broken"} == findings - {guard.finds for guard in GUARDS}
