"""The proof with a bad network and lost nsqlookupds holds, and its control fails."""

from proofs.net import prove
from proofs.outcome import Plan


def test_a_bad_network_loses_nothing() -> None:
    """All clients reconnect, all acknowledged messages are delivered, new topics are found."""
    found = prove(Plan(seed=1, count=24))

    assert found.held, found
    assert "cuts 24 (6 kinds)" in found.figures
    assert "stuck clients 0" in found.figures
