"""A few stories of the state machine, and a control without a guard."""

import pytest
from proofs.model import prove, without
from proofs.outcome import Plan


@pytest.mark.timeout(180)
def test_channels_agree_with_the_model() -> None:
    """Publish, deliver, finish, requeue, touch, expire, pause, seek, crash, trim: no difference."""
    outcome = prove(Plan(seed=20261121, count=12, control=False))

    assert outcome.held, outcome.figures
    assert "counterexamples 0" in outcome.figures


@pytest.mark.timeout(180)
def test_without_due_times_a_counterexample_is_found() -> None:
    """If due times are forgotten at a start, some story delivers a message too early."""
    assert without("due times", 20261121).story
