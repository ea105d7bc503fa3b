"""Topics whose messages are not cached."""

from __future__ import annotations

from typing import Any

from sparq.log.inspection import LogInspection
from tests.broker.harness import BrokerHarness


def harness_with_messages(
    count: int, body_size: int, *, every: float, **options: Any
) -> BrokerHarness:
    """A topic with uncached messages of one size at equal time intervals."""
    harness = BrokerHarness(**{"cache_bytes": 1, "max_bytes_per_file": 400_000, **options})
    harness.broker.create_topic("t", harness.clock.now())
    for number in range(count):
        harness.publish("t", b"%06d" % number + b"." * (body_size - 6))
        harness.advance(every)
    return harness


def inspection_of(harness: BrokerHarness) -> LogInspection:
    return harness.broker.topics["t"].stream.log.inspection
