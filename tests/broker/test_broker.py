"""The broker's interface to nsqd: topics and channels by name, and sessions with output."""

from __future__ import annotations

import pytest

from sparq.protocol import commands
from tests.broker.house import House


def test_sessions_with_output_are_told_once(house: House) -> None:
    """`take_sessions` returns each session with new output once, and no other session."""
    house.broker.take_sessions()
    client, other = house.connect(), house.connect()
    client.say(commands.pub("t", b"x"))

    assert list(house.broker.take_sessions()) == [client.session]
    assert list(house.broker.take_sessions()) == []
    assert not other.heard()


def test_writable_lets_deliveries_go_on(house: House) -> None:
    """`writable` resumes deliveries to a session whose transport was full."""
    consumer = house.consumer("t", "c", rdy=5)
    consumer.session.paused_writing = True
    house.publish("t", b"x")
    consumer.session.paused_writing = False
    house.broker.writable(consumer.session)
    house.turn()

    assert consumer.bodies() == [b"x"]


@pytest.mark.behaviour("TestGetTopic", "TestGetChannel")
def test_a_name_is_one_topic_or_channel(house: House) -> None:
    """A name always refers to the same topic or channel, different names to different ones."""
    first = house.consumer("t", "c")
    again, other = house.consumer("t", "c"), house.consumer("t", "d")
    house.consumer("u", "c")

    topics = house.broker.topics
    one, two = topics["t"].channels["c"], topics["t"].channels["d"]
    assert list(one.sessions.values()) == [first.session, again.session]
    assert list(two.sessions.values()) == [other.session]
    assert topics["t"] is not topics["u"]
