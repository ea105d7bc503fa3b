"""Topics whose messages are not cached."""

from __future__ import annotations

from typing import Any

from sparq.log.looking import Looking
from tests.broker.house import House


def house_with(count: int, body_size: int, *, every: float, **options: Any) -> House:
    """A topic with uncached messages of one size at equal time intervals."""
    house = House(**{"cache_bytes": 1, "max_bytes_per_file": 400_000, **options})
    house.broker.create_topic("t", house.clock.now())
    for number in range(count):
        house.publish("t", b"%06d" % number + b"." * (body_size - 6))
        house.advance(every)
    return house


def looking_of(house: House) -> Looking:
    return house.broker.topics["t"].stream.log.looking
