"""Channels: compared with a model under random operations, emptied, and ephemeral."""

from __future__ import annotations

import pytest

from sparq.protocol import commands
from tests.broker.channel_model import Channels
from tests.broker.house import House

TestChannels = Channels.TestCase
"""Each message has the state that the model expects; the model allows each delivery."""


@pytest.mark.behaviour("TestChannelEmpty", "TestChannelEmptyConsumer")
def test_emptying_a_channel(house: House) -> None:
    """Emptying a channel drops waiting, in-flight, delayed and deferred messages.

    The consumers' windows open again, and a late FIN gets E_FIN_FAILED.
    """
    consumer = house.consumer("t", "c", rdy=3)
    house.publish("t", b"deferred", defer_ms=1000)
    house.publish("t", *[b"%d" % n for n in range(10)])
    messages = consumer.messages()
    consumer.say(commands.req(messages[0].id, 1000))
    consumer.answers()
    house.broker.empty_channel("t", "c", house.clock.now())
    house.turn()
    channel = house.channel("t", "c")
    assert (channel.depth, channel.in_flight_count, channel.deferred_count) == (0, 0, 0)
    assert consumer.session.in_flight_count == 0

    consumer.messages()
    consumer.finish(messages[1:2])
    assert consumer.answers() == [b"E_FIN_FAILED FIN %b failed ID not in flight" % messages[1].id]
    house.pass_time(5.0)
    house.publish("t", b"new")
    assert consumer.bodies() == [b"new"]
    house.crash()
    assert house.channel("t", "c").depth == 1


def test_an_ephemeral_channel_goes_with_its_last_consumer(house: House) -> None:
    """An ephemeral channel is deleted when its last consumer leaves; the topic stays."""
    one, two = (house.consumer("t", "c#ephemeral", rdy=1) for _ in range(2))
    house.publish("t", b"x")
    one.close()
    assert "c#ephemeral" in house.broker.topics["t"].channels
    two.close()
    assert house.broker.topics["t"].channels == {}
    house.crash()
    assert house.broker.topics["t"].channels == {}


@pytest.mark.parametrize("topic", ["t", "t#ephemeral"])
@pytest.mark.parametrize("what", ["channel", "topic"])
def test_a_consumer_of_a_deleted_ephemeral_channel_takes_nothing_with_it(
    house: House, topic: str, what: str
) -> None:
    """A consumer of a deleted ephemeral channel does not delete a new channel of the same name.

    It disconnects after the new channel exists; the new channel keeps its messages.
    """
    name = "c#ephemeral"
    old = house.consumer(topic, name)
    now = house.clock.now()
    if what == "channel":
        house.broker.delete_channel(topic, name, now)
    else:
        house.broker.delete_topic(topic, now)
    house.turn()
    house.consumer(topic, name)
    house.publish(topic, b"x")
    old.close()

    assert house.channel(topic, name).depth == 1


def test_an_ephemeral_channel_is_gone_after_a_crash(house: House) -> None:
    """A crash deletes an ephemeral channel but keeps a durable one."""
    house.consumer("t", "c#ephemeral")
    house.consumer("t", "d")
    house.crash()

    assert set(house.broker.topics["t"].channels) == {"d"}


def test_an_ephemeral_channel_is_bounded() -> None:
    """Decision 16: an ephemeral channel holds at most `mem_queue_size` unread messages.

    Newer messages are dropped.
    """
    house = House(mem_queue_size=10)
    consumer = house.consumer("t", "c#ephemeral")
    for n in range(0, 40, 4):
        house.publish("t", *[b"%d" % (n + at) for at in range(4)])
    assert house.channel("t", "c#ephemeral").depth == 10

    consumer.say(commands.rdy(4))
    messages = consumer.messages()
    house.publish("t", b"40", b"41", b"42", b"43", b"44", b"45")
    consumer.say(commands.rdy(100))
    messages += consumer.messages()

    assert [int(m.body) for m in messages] == [*range(10), 40, 41, 42, 43]
    assert house.channel("t", "c#ephemeral").depth == 0


def test_a_queue_size_of_zero_is_a_rendezvous() -> None:
    """With `mem_queue_size` 0 only messages that a consumer is ready for are delivered."""
    house = House(mem_queue_size=0)
    consumer = house.consumer("t", "c#ephemeral")
    house.publish("t", b"1")
    consumer.say(commands.rdy(1))
    house.publish("t", b"2", b"3")

    assert consumer.bodies() == [b"2"]
