"""Topics: the mark P, their channels, and ephemeral topics."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sparq.protocol import commands
from sparq.protocol.errors import RemoteError
from tests.broker.house import House


def changes(house: House) -> list[tuple[str, str, str | None]]:
    """What was created and deleted since last asked."""
    found = list(house.broker.changes)
    house.broker.changes.clear()
    return found


def test_the_first_channel_gets_what_had_gathered(house: House) -> None:
    """And each later channel what comes after it (decision 8)."""
    house.publish("t", b"1", b"2")
    assert (house.topic("t").depth, house.topic("t").message_count) == (2, 2)

    first = house.consumer("t", "a", rdy=10)
    second = house.consumer("t", "b", rdy=10)
    house.publish("t", b"3")

    assert first.bodies() == [b"1", b"2", b"3"]
    assert second.bodies() == [b"3"]
    assert house.topic("t").depth == 0


@pytest.mark.behaviour("TestPause")
def test_a_paused_topic_keeps_what_comes(house: House) -> None:
    """Channels go on with what they have; a channel made meanwhile starts at the mark."""
    consumer = house.consumer("t", "a", rdy=10)
    house.broker.pause_topic("t", True, house.clock.now())
    house.publish("t", b"1")
    assert (consumer.bodies(), house.topic("t").depth) == ([], 1)
    late = house.consumer("t", "b", rdy=10)

    house.broker.pause_topic("t", False, house.clock.now())
    house.turn()

    assert (consumer.bodies(), late.bodies()) == ([b"1"], [b"1"])


def test_a_new_topic_waits_for_the_lookups_channels() -> None:
    """The first message reaches channels that exist elsewhere; ephemeral ones are not made."""
    house = House(has_lookupd=True)
    consumer = house.consumer("t", "mine", rdy=10)
    house.publish("t", b"1")
    assert consumer.bodies() == []
    assert changes(house) == [("created", "t", None), ("created", "t", "mine")]

    names = ["mine", "other", "x#ephemeral"]
    house.broker.channels_known("t", names, house.clock.now())
    house.turn()

    assert consumer.bodies() == [b"1"]
    assert house.channel("t", "other").depth == 1
    assert changes(house) == [("created", "t", "other")]
    house.broker.channels_known("t", ["later"], house.clock.now())
    assert set(house.broker.topics["t"].channels) == {"mine", "other"}


def test_a_lookup_that_does_not_answer_holds_nobody_for_long() -> None:
    """After five seconds the topic flows without it; a topic of before does not wait at all."""
    house = House(has_lookupd=True)
    consumer = house.consumer("t", "c", rdy=10)
    house.publish("t", b"1")
    house.pass_time(4.9)
    assert consumer.bodies() == []
    house.pass_time(0.1)
    assert consumer.bodies() == [b"1"]

    house.restart()
    consumer = house.consumer("t", "c", rdy=10)
    house.publish("t", b"2")
    assert b"2" in consumer.bodies()


def test_emptying_a_topic_leaves_its_channels(house: House) -> None:
    """Only what no channel sees goes, also deferred publishes among it."""
    consumer = house.consumer("t", "c")
    house.publish("t", b"1")
    house.broker.pause_topic("t", True, house.clock.now())
    house.publish("t", b"2", b"3")
    house.publish("t", b"4", defer_ms=10)
    house.broker.empty_topic("t", house.clock.now())
    house.broker.pause_topic("t", False, house.clock.now())
    house.pass_time(1.0)
    assert (house.topic("t").depth, house.channel("t", "c").depth) == (0, 1)

    consumer.say(commands.rdy(10))
    house.publish("t", b"5")

    assert consumer.bodies() == [b"1", b"5"]


def test_deleting_a_channel_ends_its_connections(house: House) -> None:
    """Its clients are disconnected; the others go on."""
    mine, other = house.consumer("t", "c", rdy=1), house.consumer("t", "d", rdy=1)
    house.publish("t", b"x")
    changes(house)
    house.broker.delete_channel("t", "c", house.clock.now())
    house.turn()
    assert (mine.session.closing, other.session.closing) == (True, False)
    assert changes(house) == [("deleted", "t", "c")]

    mine.close()
    house.pass_time(100.0)

    assert set(house.broker.topics["t"].channels) == {"d"}


def test_unknown_names(house: House) -> None:
    """What is not there is told with NSQ's codes."""
    now = house.clock.now()
    house.publish("t", b"x")
    acts: list[tuple[Callable[[], None], str]] = [
        (lambda: house.broker.delete_topic("nope", now), "TOPIC_NOT_FOUND"),
        (lambda: house.broker.empty_topic("nope", now), "TOPIC_NOT_FOUND"),
        (lambda: house.broker.pause_topic("nope", True, now), "TOPIC_NOT_FOUND"),
        (lambda: house.broker.create_channel("nope", "c", now), "TOPIC_NOT_FOUND"),
        (lambda: house.broker.delete_channel("t", "nope", now), "CHANNEL_NOT_FOUND"),
        (lambda: house.broker.empty_channel("t", "nope", now), "CHANNEL_NOT_FOUND"),
        (lambda: house.broker.pause_channel("t", "nope", True, now), "CHANNEL_NOT_FOUND"),
        (lambda: house.broker.seek_channel("t", "nope", "latest", now), "CHANNEL_NOT_FOUND"),
    ]
    for act, code in acts:
        with pytest.raises(RemoteError) as caught:
            act()
        assert caught.value.code == code


def test_creating_is_idempotent(house: House) -> None:
    """A topic or a channel that is there stays as it is."""
    now = house.clock.now()
    house.broker.create_topic("t", now)
    house.publish("t", b"x")
    house.broker.create_topic("t", now)
    house.broker.create_channel("t", "c", now)
    house.broker.create_channel("t", "c", now)
    house.turn()

    assert (house.channel("t", "c").depth, house.topic("t").message_count) == (1, 1)


def test_administration_twice_changes_nothing(house: House) -> None:
    """Pausing what is paused, emptying what is empty."""
    now = house.clock.now()
    house.consumer("t", "c")
    for _ in range(2):
        house.broker.pause_topic("t", True, now)
        house.broker.pause_channel("t", "c", True, now)
        house.broker.empty_topic("t", now)
        house.turn()

    assert (house.topic("t").paused, house.channel("t", "c").paused) == (True, True)


# Ephemeral ones


def test_an_ephemeral_topic(house: House) -> None:
    """It works like any other, in memory: no file, and gone with its last channel."""
    files = house.disk.paths()
    consumer = house.consumer("t#ephemeral", "c", rdy=10)
    producer = house.connect()
    producer.say(commands.mpub("t#ephemeral", [b"1", b"2"]))
    messages = consumer.messages()
    assert ([m.body for m in messages], producer.answers()) == ([b"1", b"2"], [b"OK"])
    consumer.say(commands.req(messages[0].id, 0))
    assert [m.attempts for m in consumer.messages()] == [2]
    assert house.disk.paths() == files

    consumer.close()

    assert house.broker.topics == {}
    assert changes(house)[-2:] == [
        ("deleted", "t#ephemeral", "c"),
        ("deleted", "t#ephemeral", None),
    ]


def test_an_ephemeral_topic_without_a_channel_is_bounded() -> None:
    """It keeps the first mem-queue-size messages; the publisher gets its OK all the same."""
    house = House(mem_queue_size=5)
    house.publish("t#ephemeral", *[b"%d" % n for n in range(4)])
    house.publish("t#ephemeral", *[b"%d" % n for n in range(4, 8)])
    assert house.topic("t#ephemeral").depth == 5

    house.publish("t#ephemeral", b"8")

    assert house.consumer("t#ephemeral", "c", rdy=10).bodies() == [b"0", b"1", b"2", b"3", b"4"]


def test_an_ephemeral_topic_is_bounded_in_bytes() -> None:
    """Beyond its bytes new messages are dropped; finished ones make room."""
    house = House(ephemeral_bytes_max=4 << 20)
    consumer = house.consumer("t#ephemeral", "c")
    for _ in range(12):
        house.publish("t#ephemeral", b"x" * (1 << 20))
    assert 3 <= house.channel("t#ephemeral", "c").depth <= 5

    consumer.say(commands.rdy(100))
    while messages := consumer.messages():
        consumer.finish(messages)
    house.publish("t#ephemeral", b"y" * 100)

    assert consumer.bodies() == [b"y" * 100]
