"""Limits on the number of topics and channels (SECURITY.md, S-3), and the segment size."""

from __future__ import annotations

import pytest

from sparq.protocol import commands
from sparq.protocol.errors import RemoteError
from tests.broker.harness import BrokerHarness, refusal


def test_max_topics_refuses_new_topics() -> None:
    """With `max_topics` reached, every command that would create a topic is refused.

    Existing topics still work, and deleting one makes room.
    """
    harness = BrokerHarness(max_topics=2)
    harness.publish("a", b"1")
    harness.publish("b", b"1")

    why = "the limit of 2 topics is reached"
    assert f"PUB failed {why}" == refusal(harness, b"x", topic="c")
    with pytest.raises(RemoteError) as error:
        harness.broker.create_topic("c", harness.clock.now())
    assert ("LIMIT_REACHED", 403, why) == (error.value.code, error.value.http_status, why)
    client = harness.connect()
    client.say(commands.pub("c", b"1") + commands.mpub("c", [b"1"]) + commands.dpub("c", 1, b"1"))
    client.say(commands.pub("a", b"1"))
    expected = [f"E_{name}_FAILED {name} failed {why}".encode() for name in ("PUB", "MPUB", "DPUB")]
    assert [*expected, b"OK"] == client.answers()
    client.say(commands.sub("c", "x"))
    assert [f"E_SUB_FAILED SUB failed {why}".encode()] == client.answers()
    harness.act("delete_topic", "b")
    assert "" == refusal(harness, b"x", topic="c")


def test_max_channels_limits_the_channels_of_a_topic() -> None:
    """`max_channels` limits the channels of a topic, also those created for nsqlookupd's answer.

    Channels on disk are kept even if they exceed a lower limit.
    """
    harness = BrokerHarness(max_channels=2, has_lookupd=True)
    harness.broker.create_topic("t", harness.clock.now())
    harness.broker.channels_known("t", ["a", "b", "c"])
    harness.turn()

    assert {"a", "b"} == set(harness.broker.topics["t"].channels)
    assert any("channel t:c was not created" in note for note in harness.broker.notes)
    client = harness.connect()
    client.say(commands.sub("t", "c"))
    why = "the limit of 2 channels is reached"
    assert [f"E_SUB_FAILED SUB failed {why}".encode()] == client.answers()
    with pytest.raises(RemoteError, match=why):
        harness.broker.create_channel("t", "c", harness.clock.now())
    harness.crash(max_channels=1)
    assert {"a", "b"} == set(harness.broker.topics["t"].channels)
    harness.consumer("t", "b")
    assert 1 == len(harness.broker.topics["t"].channels["b"].sessions)
