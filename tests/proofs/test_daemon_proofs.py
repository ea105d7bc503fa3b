"""Short runs of the proofs about running daemons, their clients and their operators."""

from __future__ import annotations

from types import ModuleType

import pytest
from proofs.operator_day import CHANNELS
from proofs.outcome import Plan

from proofs import clock, cluster, fds, hostile, kill, mixed, net, operator_day, slow, term
from tests.proofs.short import Runs, holds, name_of

SEED = 20261121
RUNS: Runs = {
    clock: Plan(1, 1),
    cluster: Plan(2683, 2, control=False),
    fds: Plan(1, 100),
    hostile: Plan(SEED, 1_000),
    kill: Plan(SEED, 3),
    net: Plan(1, 24),
    operator_day: Plan(38, 5 * len(CHANNELS), control=False),
    slow: Plan(1, 320),
    term: Plan(SEED, 2, control=False),
}
MIXED_SECONDS = 18.0


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten what a plan does not; a stop is not timed here: other tests use the machine, too."""
    monkeypatch.setattr(slow, "ROUNDS", 1)
    monkeypatch.setattr(term, "LIMIT_SECONDS", 60.0)
    monkeypatch.setattr(term, "BACKLOG_BYTES_OF_STOP", 8 << 20)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("proof", RUNS, ids=name_of)
def test_a_short_run_holds(proof: ModuleType) -> None:
    """Nothing is lost, stuck, late or allowed to the wrong caller."""
    holds(proof, RUNS[proof])


@pytest.mark.timeout(240)
def test_a_short_mixed_run_loses_nothing_and_nothing_grows() -> None:
    """Despite deleted topics and kills, acknowledged messages arrive and nothing grows."""
    steady, killed = mixed.attempt(seed=20261122, seconds=MIXED_SECONDS)

    assert steady.is_right, [steady.line(), *steady.lost]
    assert killed.is_right, [killed.line(), *killed.lost]
    assert steady.is_flat, steady.line()
