"""The proof with consumers that never read holds, and its control fails."""

import pytest
from proofs.outcome import Plan

from proofs import slow


def test_consumers_that_never_read_use_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """nsqd's memory stays below its bound, they are disconnected, and nothing is lost."""
    monkeypatch.setattr(slow, "ROUNDS", 1)
    found = slow.prove(Plan(seed=1, count=320))

    assert found.held, found
    assert "still there 81,920/81,920" in found.figures
    assert "without a pause" in found.control
