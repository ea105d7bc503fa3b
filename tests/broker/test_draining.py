"""Drains on a disk that fails, in a broker that is driven by hand."""

from __future__ import annotations

from sparq.broker.drain_file import NONE, Drain, Draining
from sparq.protocol.errors import RemoteError
from sparq.testing import Fault
from tests.broker.house import BEGIN_WALL_NS, House, Ticket


def change(house: House, wanted: Draining) -> RemoteError | None:
    """Have these drains hold; returns why not."""
    ticket = Ticket()
    house.broker.drains.change(lambda _now: wanted, ticket)
    house.turn()
    (answer,) = ticket.answers
    return answer


def test_an_end_that_is_answered_is_on_the_disk() -> None:
    """Also where the file had gone with an earlier try, whose sync has failed."""
    house = House()
    assert change(house, Draining(Drain(BEGIN_WALL_NS, "me"), {})) is None
    house.disk.fail(Fault(1, operations=frozenset(["syncdir"])))
    assert change(house, NONE) is not None
    assert house.broker.drains.is_on
    assert change(house, NONE) is None
    for seed in range(20):
        again = House(house.disk.crash(seed))
        assert not again.broker.drains.is_on
