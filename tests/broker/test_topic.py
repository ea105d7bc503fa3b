"""Topics: the end of visible messages P, channels, and ephemeral topics."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sparq.protocol import commands
from sparq.protocol.errors import RemoteError
from tests.broker.harness import BrokerHarness


def changes(harness: BrokerHarness) -> list[tuple[str, str, str | None]]:
    """Return and clear the list of created and deleted topics and channels."""
    found = list(harness.broker.changes)
    harness.broker.changes.clear()
    return found


def test_the_first_channel_gets_earlier_messages(harness: BrokerHarness) -> None:
    """The first channel gets the messages published before it existed.

    A later channel gets only those after its creation.
    """
    harness.publish("t", b"1", b"2")
    assert (harness.topic("t").depth, harness.topic("t").message_count) == (2, 2)

    first = harness.consumer("t", "a", rdy=10)
    second = harness.consumer("t", "b", rdy=10)
    harness.publish("t", b"3")

    assert first.bodies() == [b"1", b"2", b"3"]
    assert second.bodies() == [b"3"]
    assert harness.topic("t").depth == 0


@pytest.mark.behaviour("TestPause")
def test_a_paused_topic_holds_back_new_messages(harness: BrokerHarness) -> None:
    """A paused topic's channels get no new messages until it resumes.

    A channel created meanwhile gets them as well.
    """
    consumer = harness.consumer("t", "a", rdy=10)
    harness.broker.pause_topic("t", True, harness.clock.now())
    harness.publish("t", b"1")
    assert (consumer.bodies(), harness.topic("t").depth) == ([], 1)
    late = harness.consumer("t", "b", rdy=10)

    harness.act("pause_topic", "t", False)

    assert (consumer.bodies(), late.bodies()) == ([b"1"], [b"1"])


def test_a_new_topic_waits_for_the_channels_of_nsqlookupd() -> None:
    """A new topic delivers nothing until nsqlookupd has named its channels.

    The first message then reaches all of them. Ephemeral ones are not created.
    """
    harness = BrokerHarness(has_lookupd=True)
    consumer = harness.consumer("t", "mine", rdy=10)
    harness.publish("t", b"1")
    assert consumer.bodies() == []
    assert changes(harness) == [("created", "t", None), ("created", "t", "mine")]

    names = ["mine", "other", "x#ephemeral"]
    harness.broker.channels_known("t", names)
    harness.turn()

    assert consumer.bodies() == [b"1"]
    assert harness.channel("t", "other").depth == 1
    assert changes(harness) == [("created", "t", "other")]
    harness.broker.channels_known("t", ["later"])
    assert set(harness.broker.topics["t"].channels) == {"mine", "other"}


def test_a_new_topic_waits_at_most_five_seconds_for_nsqlookupd() -> None:
    """A new topic waits at most 5 s for nsqlookupd.

    A topic from before a restart does not wait.
    """
    harness = BrokerHarness(has_lookupd=True)
    consumer = harness.consumer("t", "c", rdy=10)
    harness.publish("t", b"1")
    harness.pass_time(4.9)
    assert consumer.bodies() == []
    harness.pass_time(0.1)
    assert consumer.bodies() == [b"1"]

    harness.restart()
    consumer = harness.consumer("t", "c", rdy=10)
    harness.publish("t", b"2")
    assert b"2" in consumer.bodies()


def test_deleting_a_channel_ends_its_connections(harness: BrokerHarness) -> None:
    """Deleting a channel disconnects its clients and no others."""
    mine, other = harness.consumer("t", "c", rdy=1), harness.consumer("t", "d", rdy=1)
    harness.publish("t", b"x")
    changes(harness)
    harness.act("delete_channel", "t", "c")
    assert (mine.session.closing, other.session.closing) == (True, False)
    assert changes(harness) == [("deleted", "t", "c")]

    mine.close()
    harness.pass_time(100.0)

    assert set(harness.broker.topics["t"].channels) == {"d"}


def test_unknown_topics_and_channels_get_nsqs_errors(harness: BrokerHarness) -> None:
    """Unknown topics and channels get NSQ's error codes."""
    now = harness.clock.now()
    harness.publish("t", b"x")
    acts: list[tuple[Callable[[], None], str]] = [
        (lambda: harness.broker.delete_topic("nope", now), "TOPIC_NOT_FOUND"),
        (lambda: harness.broker.empty_topic("nope", now), "TOPIC_NOT_FOUND"),
        (lambda: harness.broker.pause_topic("nope", True, now), "TOPIC_NOT_FOUND"),
        (lambda: harness.broker.create_channel("nope", "c", now), "TOPIC_NOT_FOUND"),
        (lambda: harness.broker.delete_channel("t", "nope", now), "CHANNEL_NOT_FOUND"),
        (lambda: harness.broker.empty_channel("t", "nope", now), "CHANNEL_NOT_FOUND"),
        (lambda: harness.broker.pause_channel("t", "nope", True, now), "CHANNEL_NOT_FOUND"),
        (lambda: harness.broker.seek("t", "nope", "latest", now), "CHANNEL_NOT_FOUND"),
    ]
    for act, code in acts:
        with pytest.raises(RemoteError) as caught:
            act()
        assert caught.value.code == code


# Ephemeral topics


def test_an_ephemeral_topic_works_without_files(harness: BrokerHarness) -> None:
    """An ephemeral topic works without files.

    It is deleted with its last channel.
    """
    files = harness.disk.paths()
    consumer = harness.consumer("t#ephemeral", "c", rdy=10)
    producer = harness.connect()
    producer.say(commands.mpub("t#ephemeral", [b"1", b"2"]))
    messages = consumer.messages()
    assert ([m.body for m in messages], producer.answers()) == ([b"1", b"2"], [b"OK"])
    consumer.say(commands.req(messages[0].id, 0))
    assert [m.attempts for m in consumer.messages()] == [2]
    assert harness.disk.paths() == files

    consumer.close()

    assert harness.broker.topics == {}
    assert changes(harness)[-2:] == [
        ("deleted", "t#ephemeral", "c"),
        ("deleted", "t#ephemeral", None),
    ]


def test_an_ephemeral_topic_without_a_channel_is_bounded() -> None:
    """An ephemeral topic without channels keeps the first `mem_queue_size` messages.

    Publishers of dropped messages get OK.
    """
    harness = BrokerHarness(mem_queue_size=5)
    harness.publish("t#ephemeral", *[b"%d" % n for n in range(4)])
    harness.publish("t#ephemeral", *[b"%d" % n for n in range(4, 8)])
    assert harness.topic("t#ephemeral").depth == 5

    harness.publish("t#ephemeral", b"8")

    assert harness.consumer("t#ephemeral", "c", rdy=10).bodies() == [b"0", b"1", b"2", b"3", b"4"]


def test_an_ephemeral_topic_is_bounded_in_bytes() -> None:
    """Above `ephemeral_bytes_max` new messages are dropped; finished ones make room."""
    harness = BrokerHarness(ephemeral_bytes_max=4 << 20)
    consumer = harness.consumer("t#ephemeral", "c")
    for _ in range(12):
        harness.publish("t#ephemeral", b"x" * (1 << 20))
    assert 3 <= harness.channel("t#ephemeral", "c").depth <= 5

    consumer.say(commands.rdy(100))
    while messages := consumer.messages():
        consumer.finish(messages)
    harness.publish("t#ephemeral", b"y" * 100)

    assert consumer.bodies() == [b"y" * 100]
