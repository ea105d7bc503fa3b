"""Short runs on a full disk of each kind, and the controls."""

from pathlib import Path

import pytest
from proofs.outcome import Plan

from proofs import full
from tests.support import strace

needs_strace = pytest.mark.skipif(bool(strace.missing()), reason=strace.missing() or "-")
FINISHES = 400


@needs_strace
@pytest.mark.timeout(300)
def test_a_full_disk_loses_nothing() -> None:
    """Acknowledged messages arrive, refused ones do not, and finished ones do not return."""
    outcome = full.prove(Plan(seed=20261121, count=5, control=False))

    if outcome.skipped:
        pytest.skip(outcome.skipped)
    assert outcome.held, outcome.figures


@pytest.mark.timeout(300)
def test_the_proof_finds_a_missing_reserve(tmp_path: Path) -> None:
    """An nsqd that reserves no space for FINs redelivers finished messages."""
    found = full.fill_completely(tmp_path, 20261121, FINISHES, full.NO_RESERVE)

    assert found.redelivered > 0
    assert 0 == found.lost


@pytest.mark.timeout(300)
def test_the_proof_finds_missing_checkpoints(tmp_path: Path) -> None:
    """Without checkpoints, single FINs use up the reserve, and a kill redelivers their messages."""
    found = full.crowd(tmp_path, full.CONTROL, full.NO_CHECKPOINTS)

    assert found.redelivered > 0
    assert 0 == found.missing
