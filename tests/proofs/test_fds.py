"""The proof with few open files holds, and its control fails."""

from proofs.fds import TOPICS, prove
from proofs.outcome import Plan


def test_a_limit_of_files_affects_no_connected_client() -> None:
    """A flood affects no client; without free files publishes are refused, then resume."""
    found = prove(Plan(seed=1, count=100))

    assert found.held, found
    assert f"topics written meanwhile {TOPICS}/{TOPICS}" in found.figures
    assert "then resumed" in found.figures
    assert "not shared out" in found.control
