"""Channels: compared with a model under random operations, emptied, and ephemeral."""

from __future__ import annotations

import pytest

from sparq.protocol import commands
from tests.broker.channel_model import Channels
from tests.broker.harness import BrokerHarness

TestChannels = Channels.TestCase
"""Each message has the state that the model expects; the model allows each delivery."""


@pytest.mark.behaviour("TestChannelEmpty", "TestChannelEmptyConsumer")
def test_emptying_a_channel(harness: BrokerHarness) -> None:
    """Emptying a channel drops waiting, in-flight, delayed and deferred messages.

    The consumers' windows open again, and a late FIN gets E_FIN_FAILED.
    """
    consumer = harness.consumer("t", "c", rdy=3)
    harness.publish("t", b"deferred", defer_ms=1000)
    harness.publish("t", *[b"%d" % n for n in range(10)])
    messages = consumer.messages()
    consumer.say(commands.req(messages[0].id, 1000))
    consumer.answers()
    harness.act("empty_channel", "t", "c")
    channel = harness.channel("t", "c")
    assert (channel.depth, channel.in_flight_count, channel.deferred_count) == (0, 0, 0)
    assert consumer.session.in_flight_count == 0

    consumer.messages()
    consumer.finish(messages[1:2])
    assert consumer.answers() == [b"E_FIN_FAILED FIN %b failed ID not in flight" % messages[1].id]
    harness.pass_time(5.0)
    harness.publish("t", b"new")
    assert consumer.bodies() == [b"new"]
    harness.crash()
    assert harness.channel("t", "c").depth == 1


def test_an_ephemeral_channel_is_deleted_with_its_last_consumer(harness: BrokerHarness) -> None:
    """An ephemeral channel is deleted when its last consumer leaves; the topic stays."""
    one, two = (harness.consumer("t", "c#ephemeral", rdy=1) for _ in range(2))
    harness.publish("t", b"x")
    one.close()
    assert "c#ephemeral" in harness.broker.topics["t"].channels
    two.close()
    assert harness.broker.topics["t"].channels == {}
    harness.crash()
    assert harness.broker.topics["t"].channels == {}


@pytest.mark.parametrize("topic", ["t", "t#ephemeral"])
@pytest.mark.parametrize("what", ["channel", "topic"])
def test_a_consumer_of_a_deleted_ephemeral_channel_does_not_delete_a_new_one(
    harness: BrokerHarness, topic: str, what: str
) -> None:
    """A consumer of a deleted ephemeral channel does not delete a new channel of the same name.

    It disconnects after the new channel exists; the new channel keeps its messages.
    """
    name = "c#ephemeral"
    old = harness.consumer(topic, name)
    now = harness.clock.now()
    if what == "channel":
        harness.broker.delete_channel(topic, name, now)
    else:
        harness.broker.delete_topic(topic, now)
    harness.turn()
    harness.consumer(topic, name)
    harness.publish(topic, b"x")
    old.close()

    assert harness.channel(topic, name).depth == 1


def test_an_ephemeral_channel_is_gone_after_a_crash(harness: BrokerHarness) -> None:
    """A crash deletes an ephemeral channel but keeps a durable one."""
    harness.consumer("t", "c#ephemeral")
    harness.consumer("t", "d")
    harness.crash()

    assert set(harness.broker.topics["t"].channels) == {"d"}


def test_an_ephemeral_channel_is_bounded() -> None:
    """An ephemeral channel holds at most `mem_queue_size` unread messages.

    Newer messages are dropped.
    """
    harness = BrokerHarness(mem_queue_size=10)
    consumer = harness.consumer("t", "c#ephemeral")
    for n in range(0, 40, 4):
        harness.publish("t", *[b"%d" % (n + at) for at in range(4)])
    assert harness.channel("t", "c#ephemeral").depth == 10

    consumer.say(commands.rdy(4))
    messages = consumer.messages()
    harness.publish("t", b"40", b"41", b"42", b"43", b"44", b"45")
    consumer.say(commands.rdy(100))
    messages += consumer.messages()

    assert [int(m.body) for m in messages] == [*range(10), 40, 41, 42, 43]
    assert harness.channel("t", "c#ephemeral").depth == 0


def test_with_queue_size_zero_only_ready_consumers_get_messages() -> None:
    """With `mem_queue_size` 0 only messages that a consumer is ready for are delivered."""
    harness = BrokerHarness(mem_queue_size=0)
    consumer = harness.consumer("t", "c#ephemeral")
    harness.publish("t", b"1")
    consumer.say(commands.rdy(1))
    harness.publish("t", b"2", b"3")

    assert consumer.bodies() == [b"2"]
