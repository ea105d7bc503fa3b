"""A few stops of an nsqd under load, and the controls."""

import pytest
from proofs.outcome import Plan
from proofs.term import IMMEDIATE_STOP, LATE_FINISH, attempt

from proofs import term


@pytest.mark.timeout(180)
def test_a_stop_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two SIGTERMs under load: all acknowledged messages arrive, and the backlog is complete.

    The time of a stop is not checked here, because other tests may keep the machine busy.
    """
    monkeypatch.setattr(term, "LIMIT_SECONDS", 60.0)
    monkeypatch.setattr(term, "BACKLOG_BYTES_OF_STOP", 8 << 20)

    outcome = term.prove(Plan(seed=20261121, count=2, control=False))

    assert outcome.held, outcome.figures
    assert "kept 64 of 64 messages" in outcome.figures


@pytest.mark.timeout(180)
def test_the_proof_finds_an_immediate_stop() -> None:
    """An nsqd that exits immediately, with writes after their OKs, loses messages."""
    verdict, _ = attempt(seed=20261121, stops=2, module=IMMEDIATE_STOP)

    assert verdict.lost > 0, verdict.line()


@pytest.mark.timeout(180)
def test_the_proof_finds_a_late_finish() -> None:
    """With FINs written late, the same check finds finished messages that return."""
    verdict, _ = attempt(seed=20261121, stops=2, module=LATE_FINISH)

    assert verdict.returned > 0, verdict.line()
