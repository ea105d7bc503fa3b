"""A short run of the kill proof and its controls."""

import pytest
from proofs.checker import lost_commands
from proofs.kill import LATE_COMMIT, LATE_FINISH, attempt

KILLS = 3


@pytest.mark.timeout(180)
def test_nothing_acknowledged_is_lost_by_kill_9() -> None:
    """Three kills under load: all acknowledged messages arrive, no answered FIN is undone."""
    verdict, proof = attempt(seed=20261121, kills=KILLS)

    assert proof.history.kills >= KILLS
    assert verdict.acknowledged > 0
    assert verdict.holds, "\n".join([verdict.line(), *lost_commands(proof.history)])


@pytest.mark.timeout(180)
def test_the_proof_finds_a_late_commit() -> None:
    """With the write after the OK, the same check finds lost messages."""
    verdict, _ = attempt(seed=20261121, kills=KILLS, module=LATE_COMMIT)

    assert verdict.lost > 0, verdict.line()


@pytest.mark.timeout(180)
def test_the_proof_finds_a_late_finish() -> None:
    """With FINs written late, the same check finds finished messages that return."""
    verdict, _ = attempt(seed=20261121, kills=KILLS, module=LATE_FINISH)

    assert verdict.returned > 0, verdict.line()
    assert 0 == verdict.lost, verdict.line()
