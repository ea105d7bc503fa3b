"""Limits on the number of topics and channels (SECURITY.md, S-3), and the segment size."""

from __future__ import annotations

import pytest

from sparq.broker.options import FILE_BYTES_MIN, FILES_OF_FULL_TOPIC, file_bytes
from sparq.protocol import commands
from sparq.protocol.errors import RemoteError
from tests.broker.house import House
from tests.broker.publishes import refusal


def test_topics() -> None:
    """With `max_topics` reached, every command that would create a topic is refused.

    Existing topics still work, and deleting one makes room.
    """
    house = House(max_topics=2)
    house.publish("a", b"1")
    house.publish("b", b"1")

    why = "the limit of 2 topics is reached"
    assert f"PUB failed {why}" == refusal(house, b"x", topic="c")
    with pytest.raises(RemoteError) as error:
        house.broker.create_topic("c", house.clock.now())
    assert ("LIMIT_REACHED", 403, why) == (error.value.code, error.value.http_status, why)
    client = house.connect()
    client.say(commands.pub("c", b"1") + commands.mpub("c", [b"1"]) + commands.dpub("c", 1, b"1"))
    client.say(commands.pub("a", b"1"))
    expected = [f"E_{name}_FAILED {name} failed {why}".encode() for name in ("PUB", "MPUB", "DPUB")]
    assert [*expected, b"OK"] == client.answers()
    client.say(commands.sub("c", "x"))
    assert [f"E_SUB_FAILED SUB failed {why}".encode()] == client.answers()
    house.broker.delete_topic("b", house.clock.now())
    house.turn()
    assert "" == refusal(house, b"x", topic="c")


def test_channels() -> None:
    """`max_channels` limits the channels of a topic, also those created for nsqlookupd's answer.

    Channels on disk are kept even if they exceed a lower limit.
    """
    house = House(max_channels=2, has_lookupd=True)
    house.broker.create_topic("t", house.clock.now())
    house.broker.channels_known("t", ["a", "b", "c"], house.clock.now())
    house.turn()

    assert {"a", "b"} == set(house.broker.topics["t"].channels)
    assert any("channel t:c was not created" in note for note in house.broker.notes)
    client = house.connect()
    client.say(commands.sub("t", "c"))
    why = "the limit of 2 channels is reached"
    assert [f"E_SUB_FAILED SUB failed {why}".encode()] == client.answers()
    with pytest.raises(RemoteError, match=why):
        house.broker.create_channel("t", "c", house.clock.now())
    house.crash(max_channels=1)
    assert {"a", "b"} == set(house.broker.topics["t"].channels)
    house.consumer("t", "b")
    assert 1 == len(house.broker.topics["t"].channels["b"].sessions)


def test_the_size_of_files() -> None:
    """A size limit makes a topic's segments smaller, since only whole segments are deleted."""
    limit = 100 << 20
    assert limit == file_bytes(limit, 0)
    assert limit == file_bytes(limit, limit * FILES_OF_FULL_TOPIC)
    assert limit // FILES_OF_FULL_TOPIC == file_bytes(limit, limit)
    assert FILE_BYTES_MIN == file_bytes(limit, 1)
    assert 100 == file_bytes(100, 1)
