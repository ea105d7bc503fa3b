"""The limits on what clients make: topics, channels, bytes of a topic (SECURITY.md, S-3)."""

from __future__ import annotations

import pytest

from sparq.broker.options import FILE_BYTES_MIN, FILES_OF_FULL_TOPIC, file_bytes
from sparq.protocol import commands
from sparq.protocol.errors import RemoteError
from sparq.protocol.frames import BodySlices
from tests.broker.house import House, Ticket

BODY = b"x" * 20_000
TOPIC_BYTES = 400_000


def refused(house: House, topic: str, body: bytes = BODY) -> str:
    """Publish as HTTP does; why it was refused, "" if it was not."""
    ticket = Ticket()
    house.broker.publish(topic, BodySlices.of([body]), house.clock.now(), ticket)
    house.turn()
    (error,) = ticket.answers
    return "" if error is None else error.text


def fill(house: House, topic: str) -> int:
    """Publish until it is refused; how many messages were taken."""
    count = 0
    while not refused(house, topic):
        count += 1
        assert count < 1000
    return count


def test_topics() -> None:
    """One more than may be is refused wherever it would be made; those that are there work on."""
    house = House(max_topics=2)
    house.publish("a", b"1")
    house.publish("b", b"1")

    why = "the limit of 2 topics is reached"
    assert f"PUB failed {why}" == refused(house, "c")
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
    assert "" == refused(house, "c")


def test_channels() -> None:
    """Of one topic; those that nsqlookupd knows of count too, and those on the disk stay."""
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


def test_bytes_of_a_topic_without_a_channel() -> None:
    """Nobody has finished anything: it fills, never beyond its limit, and others do not."""
    house = House(max_topic_bytes=TOPIC_BYTES)

    count = fill(house, "t")
    size = house.broker.topics["t"].stream.log.size_bytes
    assert TOPIC_BYTES // 2 < count * len(BODY) < size <= TOPIC_BYTES * 1.1
    assert count == fill(house, "u")
    why = f"the limit of {TOPIC_BYTES} bytes for topic t is reached"
    client = house.connect()
    client.say(commands.pub("t", BODY) + commands.pub("t#ephemeral", BODY))
    assert [f"E_PUB_FAILED PUB failed {why}".encode(), b"OK"] == client.answers()
    house.crash()
    assert f"PUB failed {why}" == refused(house, "t")


def test_what_is_finished_makes_room() -> None:
    """Bit by bit, also what lies in the file that is being written to."""
    house = House(max_topic_bytes=TOPIC_BYTES)
    consumer = house.consumer("t", "c", rdy=100)
    for _ in range(3):
        fill(house, "t")
        consumer.finish(consumer.messages())
        house.pass_time(5)
        assert "" == refused(house, "t", BODY * 18)
        consumer.finish(consumer.messages())
        house.pass_time(5)


def test_what_waits_for_the_disk_counts() -> None:
    """Many publishes of one turn are together no more than the limit."""
    house = House(max_topic_bytes=TOPIC_BYTES)
    ticket = Ticket()
    for _ in range(100):
        house.broker.publish("t", BodySlices.of([BODY]), house.clock.now(), ticket)
    house.turn()

    stored = ticket.answers.count(None)
    assert 100 == len(ticket.answers)
    assert TOPIC_BYTES // 2 < stored * len(BODY) <= TOPIC_BYTES
    assert stored == house.broker.topics["t"].message_count


def test_the_size_of_files() -> None:
    """A topic of limited size has several, else nothing of it could go."""
    limit = 100 << 20
    assert limit == file_bytes(limit, 0)
    assert limit == file_bytes(limit, limit * FILES_OF_FULL_TOPIC)
    assert limit // FILES_OF_FULL_TOPIC == file_bytes(limit, limit)
    assert FILE_BYTES_MIN == file_bytes(limit, 1)
    assert 100 == file_bytes(100, 1)
