"""Starting and ending drains on a disk that fails."""

from __future__ import annotations

from sparq.broker.drain_file import NONE, Drain, Draining
from sparq.protocol.errors import RemoteError
from sparq.testing import Fault
from tests.broker.house import BEGIN_WALL_NS, House, Ticket


def change(house: House, wanted: Draining) -> RemoteError | None:
    """Change the drains; returns the error, or None."""
    ticket = Ticket()
    house.broker.drains.change(lambda _now: wanted, ticket)
    house.turn()
    (answer,) = ticket.answers
    return answer


def test_an_end_that_is_answered_is_on_the_disk() -> None:
    """Ending a drain survives a power cut once it is answered with OK.

    This holds even if an earlier attempt deleted the file but failed to sync its directory.
    """
    house = House()
    assert change(house, Draining(Drain(BEGIN_WALL_NS, "me"), {})) is None
    house.disk.fail(Fault(1, operations=frozenset(["syncdir"])))
    assert change(house, NONE) is not None
    assert house.broker.drains.is_on
    assert change(house, NONE) is None
    for seed in range(20):
        again = House(house.disk.crash(seed))
        assert not again.broker.drains.is_on
