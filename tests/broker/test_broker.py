"""The broker's interface to nsqd: topics and channels by name, and sessions with output."""

from __future__ import annotations

import pytest

from sparq.protocol import commands
from tests.broker.harness import BrokerHarness


def test_sessions_with_output_are_returned_once(harness: BrokerHarness) -> None:
    """`take_sessions` returns each session with new output once, and no other session."""
    harness.broker.take_sessions()
    client, other = harness.connect(), harness.connect()
    client.say(commands.pub("t", b"x"))

    assert list(harness.broker.take_sessions()) == [client.session]
    assert list(harness.broker.take_sessions()) == []
    assert not other.take_frames()


@pytest.mark.behaviour("TestGetTopic", "TestGetChannel")
def test_a_name_always_refers_to_the_same_topic_or_channel(harness: BrokerHarness) -> None:
    """A name always refers to the same topic or channel, different names to different ones."""
    first = harness.consumer("t", "c")
    again, other = harness.consumer("t", "c"), harness.consumer("t", "d")
    harness.consumer("u", "c")

    topics = harness.broker.topics
    one, two = topics["t"].channels["c"], topics["t"].channels["d"]
    assert list(one.sessions.values()) == [first.session, again.session]
    assert list(two.sessions.values()) == [other.session]
    assert topics["t"] is not topics["u"]
