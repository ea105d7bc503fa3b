"""Stats of topics, channels and clients, and their filters."""

from __future__ import annotations

from sparq.broker import stats
from sparq.protocol import commands
from tests.broker.harness import BrokerHarness


def test_a_client_that_published_is_a_producer(harness: BrokerHarness) -> None:
    """Producers are listed with their number of messages per topic."""
    harness.connect().say(commands.mpub("a", [b"1", b"2"]) + commands.pub("b", b"3"))

    (producer,) = (one for one in harness.broker.sessions.values() if one.pub_counts)

    counts = stats.of_client(producer, None).pub_counts
    assert counts is not None
    assert [(c.topic, c.count) for c in counts] == [("a", 2), ("b", 1)]
    assert harness.topic("a").message_bytes == 2
