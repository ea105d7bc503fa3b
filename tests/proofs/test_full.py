"""A disk that is full in each way, a little of it, and the control, as part of every test run."""

from pathlib import Path

import pytest
from proofs.outcome import Plan

from proofs import full
from tests.support import strace

needs_strace = pytest.mark.skipif(bool(strace.lack()), reason=strace.lack() or "-")
FINISHES = 400


@needs_strace
@pytest.mark.timeout(300)
def test_a_full_disk_costs_nothing() -> None:
    """What is acknowledged comes, what is refused does not, what is finished stays finished."""
    outcome = full.prove(Plan(seed=20261121, count=5, control=False))

    if outcome.skipped:
        pytest.skip(outcome.skipped)
    assert outcome.held, outcome.figures


@pytest.mark.timeout(300)
def test_the_proof_finds_that_nothing_is_kept_back(tmp_path: Path) -> None:
    """An nsqd that keeps no space for what is finished is seen to bring it back."""
    found = full.brim(tmp_path, 20261121, FINISHES, full.NO_RESERVE)

    assert found.redelivered > 0
    assert 0 == found.lost


@pytest.mark.timeout(300)
def test_the_proof_finds_that_no_checkpoint_makes_room(tmp_path: Path) -> None:
    """Without checkpoints single FINs use the reserve up, and a kill brings messages back."""
    found = full.crowd(tmp_path, full.SMALL, full.NO_CHECKPOINTS)

    assert found.redelivered > 0
    assert 0 == found.missing
