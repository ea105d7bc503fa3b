"""NSQ's ways to lose messages, tried on sparq's nsqd; and controls of the scenarios."""

from pathlib import Path

import pytest
from proofs.loss_scenarios import SCENARIOS, Loss, Needs, Scenario, run_scenario
from proofs.outcome import Plan
from proofs.scenario_daemons import Maker, maker

from proofs import museum


@pytest.mark.timeout(180)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.number)
def test_sparq_loses_nothing_in_any_scenario(scenario: Scenario) -> None:
    """sparq's nsqd loses no message in any of the scenarios."""
    try:
        loss = run_scenario(scenario, maker())
    except Needs as needs:
        pytest.skip(str(needs))

    assert loss.lost == 0, loss.text


@pytest.mark.timeout(180)
def test_without_go_the_control_is_sparq_with_late_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Go's nsqd the figures say so, and sparq's control loses a message in one scenario."""
    monkeypatch.delenv("NSQD_GO", raising=False)

    outcome = museum.prove(Plan(seed=1, count=1))

    assert outcome.held, (outcome.figures, outcome.control)
    assert "NSQD_GO names none" in outcome.figures
    assert "lost by kill -9" in outcome.control


def test_a_loss_on_sparq_fails_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """One scenario with a loss fails the proof; scenarios that cannot run are counted."""

    def loses(_make: Maker, _folder: Path) -> Loss:
        return Loss(1, "1 message lost")

    def lacks(_make: Maker, _folder: Path) -> Loss:
        raise Needs("needs a full moon")

    def keeps(_make: Maker, _folder: Path) -> Loss:
        return Loss(0, "none lost")

    kept, lost, lacking = (Scenario("L", "", "", show) for show in (keeps, loses, lacks))

    monkeypatch.setattr(museum, "SCENARIOS", (kept, lost))
    assert not museum.prove(Plan(seed=1, count=2, control=False)).held
    monkeypatch.setattr(museum, "SCENARIOS", (kept, lacking))
    outcome = museum.prove(Plan(seed=1, count=2, control=False))
    assert outcome.held
    assert "NSQ loss modes: 1 · on ours 0 · not shown here 1" == outcome.figures
