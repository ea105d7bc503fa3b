"""Starting and ending drains on a disk that fails."""

from __future__ import annotations

from sparq.broker.drain_file import NONE, Drain, Draining
from sparq.protocol.errors import RemoteError
from sparq.testing import Fault
from tests.broker.harness import BEGIN_WALL_NS, BrokerHarness, Ticket


def change(harness: BrokerHarness, wanted: Draining) -> RemoteError | None:
    """Change the drains; returns the error, or None."""
    ticket = Ticket()
    harness.broker.drains.change(lambda _now: wanted, ticket)
    harness.turn()
    (answer,) = ticket.answers
    return answer


def test_an_acknowledged_end_of_a_drain_survives_a_power_cut() -> None:
    """Ending a drain survives a power cut once it is answered with OK.

    This holds even if an earlier attempt deleted the file but failed to sync its directory.
    """
    harness = BrokerHarness()
    assert change(harness, Draining(Drain(BEGIN_WALL_NS, "me"), {})) is None
    harness.disk.fail(Fault(1, operations=frozenset(["syncdir"])))
    assert change(harness, NONE) is not None
    assert harness.broker.drains.is_on
    assert change(harness, NONE) is None
    for seed in range(20):
        again = BrokerHarness(harness.disk.crash(seed))
        assert not again.broker.drains.is_on
