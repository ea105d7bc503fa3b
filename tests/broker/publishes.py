"""What tests of refused publishes ask a broker."""

from __future__ import annotations

from sparq.protocol.frames import BodySlices
from tests.broker.house import House, Ticket


def refusal(house: House, *bodies: bytes, topic: str = "t") -> str:
    """Publish, all or none; why it was refused, empty if it was not."""
    ticket = Ticket()
    house.broker.publish(topic, BodySlices.of(list(bodies)), house.clock.now(), ticket)
    house.turn()
    (error,) = ticket.answers
    return "" if error is None else error.text
