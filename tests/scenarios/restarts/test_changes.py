"""An answered change of a topic or channel survives a power cut (ARCHITECTURE.md's table)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.broker.harness import BrokerHarness

SEEDS = range(20)
"""How much of the unsynced data a power cut keeps is random."""


def prepared(*, paused: bool = False) -> BrokerHarness:
    """Start a broker whose channel `t/c` has finished two of four messages, all of it synced."""
    harness = BrokerHarness()
    consumer = harness.consumer("t", "c", rdy=2)
    harness.publish("t", b"1", b"2", b"3", b"4")
    consumer.say(b"RDY 0\n")
    consumer.finish(consumer.messages())
    consumer.close()
    harness.broker.pause_topic("t", paused, harness.clock.now())
    harness.broker.pause_channel("t", "c", paused, harness.clock.now())
    harness.turn()
    return harness


def change(harness: BrokerHarness, name: str, *arguments: object) -> None:
    """Apply a change and check that the HTTP API would answer it now."""
    getattr(harness.broker, name)(*arguments, harness.clock.now())
    harness.turn()
    assert harness.broker.not_durable_reason("t") is None


def channels(harness: BrokerHarness) -> dict[str, list[str]]:
    """The names of all topics, with those of their channels."""
    return {name: sorted(topic.channels) for name, topic in harness.broker.topics.items()}


Check = Callable[[BrokerHarness], bool]

CHANGES: dict[str, tuple[tuple[object, ...], Check]] = {
    "create_topic": (("new",), lambda now: channels(now) == {"t": ["c"], "new": []}),
    "delete_topic": (("t",), lambda now: channels(now) == {}),
    "create_channel": (("t", "new"), lambda now: channels(now) == {"t": ["c", "new"]}),
    "delete_channel": (("t", "c"), lambda now: channels(now) == {"t": []}),
    "pause_topic": (("t", True), lambda now: now.topic("t").paused),
    "pause_channel": (("t", "c", True), lambda now: now.channel("t", "c").paused),
    "empty_channel": (("t", "c"), lambda now: now.channel("t", "c").depth == 0),
    "seek": (
        ("t", "c", "earliest"),
        lambda now: now.channel("t", "c").depth == 4,
    ),
}
"""The change -> its arguments and what is true after it."""


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_survives_a_power_cut(name: str) -> None:
    """After a power cut that follows its answer, the change is still in effect."""
    arguments, holds = CHANGES[name]
    for seed in SEEDS:
        harness = prepared()
        assert not holds(harness)
        change(harness, name, *arguments)
        harness.disk = harness.disk.crash(seed)
        harness.crash()

        assert holds(harness), seed


def test_an_unpause_survives_a_power_cut() -> None:
    """Topic and channel deliver again after a power cut that follows the answers."""
    for seed in SEEDS:
        harness = prepared(paused=True)
        change(harness, "pause_topic", "t", False)
        change(harness, "pause_channel", "t", "c", False)
        harness.disk = harness.disk.crash(seed)
        harness.crash()

        assert harness.consumer("t", "c", rdy=9).bodies() == [b"3", b"4"]


def test_an_emptied_topic_stays_empty_after_a_power_cut() -> None:
    """Messages dropped from a topic without a channel do not return to its first channel."""
    for seed in SEEDS:
        harness = BrokerHarness()
        harness.publish("t", b"1", b"2")
        change(harness, "empty_topic", "t")
        harness.disk = harness.disk.crash(seed)
        harness.crash()

        assert harness.consumer("t", "c", rdy=9).bodies() == []
