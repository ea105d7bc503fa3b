"""The proof with clock jumps holds, and its controls fail."""

import pytest
from proofs.clock import prove
from proofs.outcome import Plan


def test_clock_jumps_redeliver_nothing_and_deliver_nothing_early() -> None:
    """No message is redelivered or early, no id is used twice, no connection breaks."""
    found = prove(Plan(seed=1, count=2))
    if found.skipped:
        pytest.skip(found.skipped)

    assert found.held, found
    assert "jumps 2 · redelivered by jump 0" in found.figures
    assert "given twice 0" in found.figures
