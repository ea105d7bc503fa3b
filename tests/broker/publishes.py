"""A helper for tests of refused publishes."""

from __future__ import annotations

from sparq.protocol.frames import BodySlices
from tests.broker.harness import BrokerHarness, Ticket


def refusal(harness: BrokerHarness, *bodies: bytes, topic: str = "t") -> str:
    """Publish the bodies as one batch; returns the error's text, empty if it succeeds."""
    ticket = Ticket()
    harness.broker.publish(topic, BodySlices.of(list(bodies)), harness.clock.now(), ticket)
    harness.turn()
    (error,) = ticket.answers
    return "" if error is None else error.text
