"""NSQ's ways to lose messages, tried on sparq's nsqd; and controls of the scenarios."""

from pathlib import Path

import pytest
from proofs.loss_scenarios import EXHIBITS, Exhibit, Loss, Needs, visit
from proofs.outcome import Plan
from proofs.specimens import Maker, maker

from proofs import museum


@pytest.mark.timeout(180)
@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.number)
def test_ours_does_not_lose_what_nsq_loses(exhibit: Exhibit) -> None:
    """sparq's nsqd loses no message in any of the scenarios."""
    try:
        loss = visit(exhibit, maker())
    except Needs as needs:
        pytest.skip(str(needs))

    assert loss.lost == 0, loss.text


@pytest.mark.timeout(180)
def test_without_go_the_control_is_ours_with_a_guard_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Go's nsqd the figures say so, and sparq's control loses a message in one scenario."""
    monkeypatch.delenv("NSQD_GO", raising=False)

    outcome = museum.prove(Plan(seed=1, count=1))

    assert outcome.held, (outcome.figures, outcome.control)
    assert "NSQD_GO names none" in outcome.figures
    assert "lost by kill -9" in outcome.control


def test_a_loss_on_ours_fails_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """One scenario with a loss fails the proof; scenarios that cannot run are counted."""

    def loses(_make: Maker, _folder: Path) -> Loss:
        return Loss(1, "1 message lost")

    def lacks(_make: Maker, _folder: Path) -> Loss:
        raise Needs("needs a full moon")

    def keeps(_make: Maker, _folder: Path) -> Loss:
        return Loss(0, "none lost")

    kept, lost, lacking = (Exhibit("L", "", "", show) for show in (keeps, loses, lacks))

    monkeypatch.setattr(museum, "EXHIBITS", (kept, lost))
    assert not museum.prove(Plan(seed=1, count=2, control=False)).held
    monkeypatch.setattr(museum, "EXHIBITS", (kept, lacking))
    outcome = museum.prove(Plan(seed=1, count=2, control=False))
    assert outcome.held
    assert "NSQ loss modes: 1 · on ours 0 · not shown here 1" == outcome.figures
