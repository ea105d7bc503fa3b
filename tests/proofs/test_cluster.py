"""Cluster failures: every acknowledged message is handled, and no consumer is stuck."""

from proofs.cluster import BOUNDS, Findings, prove
from proofs.outcome import Plan


def test_a_cluster_with_killed_daemons_loses_nothing() -> None:
    """Daemons are killed and restarted; both consumers reconnect and handle every message."""
    found = prove(Plan(seed=2683, count=2, control=False))

    assert found.held, found
    assert "nsqds ended 0" not in found.figures
    assert "nsqlookupds 0" not in found.figures
    assert "lost 0 · stuck 0" in found.figures


def test_each_finding_fails_the_proof() -> None:
    """An unhandled message, a stuck consumer and a late one are each found."""
    good = Findings(acknowledged=1, missing={"given": 0})
    late = Findings(acknowledged=1, delays={"given": [0.1, BOUNDS["given"] + 0.1], "found": []})

    assert good.holds
    assert good.in_time
    assert not late.in_time
    assert not Findings(acknowledged=1, missing={"given": 0, "found": 1}).holds
    assert not Findings(acknowledged=1, stuck=1).holds
    assert not Findings().holds
