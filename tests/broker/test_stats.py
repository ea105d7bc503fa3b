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


def test_topics_and_channels_are_selected_by_name(harness: BrokerHarness) -> None:
    """Without a name all are selected, by name; a name that does not exist selects none."""
    harness.consumer("b", "two")
    harness.consumer("b", "one")
    harness.publish("a", b"1")
    broker = harness.broker

    def names(topic: str | None) -> list[str] | None:
        found = stats.selected(broker, topic)
        return None if found is None else [one.name for one in found]

    b = broker.topics["b"]
    assert [["a", "b"], ["a"], None] == [names(each) for each in (None, "a", "c")]
    assert ["one", "two"] == [one.name for one in stats.channels_of(b, None)]
    assert ["two"] == [one.name for one in stats.channels_of(b, "two")]
    assert not stats.channels_of(b, "three")
