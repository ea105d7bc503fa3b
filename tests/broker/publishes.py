"""A helper for tests of refused publishes."""

from __future__ import annotations

from sparq.protocol.frames import BodySlices
from tests.broker.house import House, Ticket


def refusal(house: House, *bodies: bytes, topic: str = "t") -> str:
    """Publish the bodies as one batch; returns the error's text, empty if it succeeds."""
    ticket = Ticket()
    house.broker.publish(topic, BodySlices.of(list(bodies)), house.clock.now(), ticket)
    house.turn()
    (error,) = ticket.answers
    return "" if error is None else error.text
