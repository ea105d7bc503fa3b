"""Topics: the end of visible messages P, channels, and ephemeral topics."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sparq.protocol import commands
from sparq.protocol.errors import RemoteError
from tests.broker.house import House


def changes(house: House) -> list[tuple[str, str, str | None]]:
    """Return and clear the list of created and deleted topics and channels."""
    found = list(house.broker.changes)
    house.broker.changes.clear()
    return found


def test_the_first_channel_gets_what_had_gathered(house: House) -> None:
    """Decision 8: the first channel gets the messages published before it existed.

    A later channel gets only those after its creation.
    """
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
    """A paused topic's channels get no new messages until it resumes.

    A channel created meanwhile gets them as well.
    """
    consumer = house.consumer("t", "a", rdy=10)
    house.broker.pause_topic("t", True, house.clock.now())
    house.publish("t", b"1")
    assert (consumer.bodies(), house.topic("t").depth) == ([], 1)
    late = house.consumer("t", "b", rdy=10)

    house.broker.pause_topic("t", False, house.clock.now())
    house.turn()

    assert (consumer.bodies(), late.bodies()) == ([b"1"], [b"1"])


def test_a_new_topic_waits_for_the_lookups_channels() -> None:
    """A new topic delivers nothing until nsqlookupd has named its channels.

    The first message then reaches all of them. Ephemeral ones are not created.
    """
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
    """A new topic waits at most 5 s for nsqlookupd.

    A topic from before a restart does not wait.
    """
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
    """Emptying a topic drops only what no channel sees, including deferred publishes."""
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
    """Deleting a channel disconnects its clients and no others."""
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
    """Unknown topics and channels get NSQ's error codes."""
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
    """Creating an existing topic or channel changes nothing."""
    now = house.clock.now()
    house.broker.create_topic("t", now)
    house.publish("t", b"x")
    house.broker.create_topic("t", now)
    house.broker.create_channel("t", "c", now)
    house.broker.create_channel("t", "c", now)
    house.turn()

    assert (house.channel("t", "c").depth, house.topic("t").message_count) == (1, 1)


def test_administration_twice_changes_nothing(house: House) -> None:
    """Pausing a paused topic or channel, or emptying an empty one, changes nothing."""
    now = house.clock.now()
    house.consumer("t", "c")
    for _ in range(2):
        house.broker.pause_topic("t", True, now)
        house.broker.pause_channel("t", "c", True, now)
        house.broker.empty_topic("t", now)
        house.turn()

    assert (house.topic("t").paused, house.channel("t", "c").paused) == (True, True)


# Ephemeral topics


def test_an_ephemeral_topic(house: House) -> None:
    """An ephemeral topic works without files.

    It is deleted with its last channel.
    """
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
    """An ephemeral topic without channels keeps the first `mem_queue_size` messages.

    Publishers of dropped messages get OK.
    """
    house = House(mem_queue_size=5)
    house.publish("t#ephemeral", *[b"%d" % n for n in range(4)])
    house.publish("t#ephemeral", *[b"%d" % n for n in range(4, 8)])
    assert house.topic("t#ephemeral").depth == 5

    house.publish("t#ephemeral", b"8")

    assert house.consumer("t#ephemeral", "c", rdy=10).bodies() == [b"0", b"1", b"2", b"3", b"4"]


def test_an_ephemeral_topic_is_bounded_in_bytes() -> None:
    """Above `ephemeral_bytes_max` new messages are dropped; finished ones make room."""
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
