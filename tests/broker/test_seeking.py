"""A seek's result: its target, the messages delivered again, and the oldest message kept."""

from __future__ import annotations

import errno

import pytest

from sparq.broker.channel import SeekTarget
from sparq.broker.seeking import Landing, Seek
from sparq.protocol import commands
from sparq.protocol.errors import RemoteError
from sparq.testing import Fault
from tests.broker.house import House

FILE_BYTES = 2_000
MINUTE_NS = 60_000_000_000


def seek(house: House, target: SeekTarget) -> Seek:
    """Seek, and run the disk work it needs."""
    found = house.broker.seek("t", "c", target, house.clock.now())
    house.turn()
    return found


def landed(house: House, target: SeekTarget) -> Landing:
    """The landing of a successful seek."""
    landing = seek(house, target).landing
    assert landing is not None
    return landing


@pytest.mark.parametrize("cache_bytes", [1, 1 << 20], ids=["on the disk", "in memory"])
def test_a_seek_tells_where_it_went(cache_bytes: int) -> None:
    """A seek returns the target's index and time, and the oldest message's.

    It also returns the number of messages delivered again, and of all waiting messages.
    """
    house = House(cache_bytes=cache_bytes)
    consumer = house.consumer("t", "c", rdy=100)
    times = []
    for number in range(4):
        times.append(house.clock.wall_ns)
        house.publish("t", b"%d" % number)
        house.advance(60.0)
    messages = consumer.messages()
    consumer.finish(messages)
    consumer.close()
    house.crash()
    first, third = messages[0].index, messages[2].index

    assert landed(house, "earliest") == Landing(first, times[0], 4, 4, first, times[0], False)
    assert landed(house, third) == Landing(third, times[2], 0, 2, first, times[0], False)
    later: SeekTarget = ("time", times[1] + 1)
    assert landed(house, later) == Landing(third, times[2], 0, 2, first, times[0], False)
    before: SeekTarget = ("time", times[0] - MINUTE_NS)
    assert landed(house, before) == Landing(first, times[0], 2, 4, first, times[0], False)
    end = landed(house, "latest")
    assert (end.time_ns, end.again, end.waiting) == (None, 0, 0)
    assert landed(house, third).again == 2


def test_a_seek_tells_that_older_messages_are_gone() -> None:
    """A seek to deleted messages lands on the oldest kept one, and reports `older_are_gone`."""
    house = House(max_bytes_per_file=FILE_BYTES)
    consumer = house.consumer("t", "c", rdy=100)
    for _ in range(30):
        house.publish("t", bytes(300))
        house.advance(60.0)
    consumer.finish(consumer.messages())
    house.pass_time(2.0)
    house.pass_time(2.0)
    kept = house.broker.topics["t"].stream.log.segments()[0]
    landing = landed(house, 0)

    assert landing.older_are_gone
    assert (landing.index, landing.oldest_index) == (kept.first_index, kept.first_index)
    assert landing.time_ns == landing.oldest_time_ns == kept.first_time_ns
    assert landing.again == landing.waiting < 30


def test_a_seek_in_an_empty_topic_lands_nowhere() -> None:
    """In an empty topic a seek has no time and no oldest message, and nothing is gone."""
    house = House()
    house.consumer("t", "c")
    landing = landed(house, "earliest")

    assert (landing.time_ns, landing.again, landing.waiting) == (None, 0, 0)
    assert (landing.oldest_index, landing.oldest_time_ns, landing.older_are_gone) == (
        None,
        None,
        False,
    )


def test_deferred_messages_that_were_not_due_do_not_come_again() -> None:
    """Deferred messages that are not due yet are not counted as delivered again.

    A seek does not change their due time.
    """
    house = House()
    consumer = house.consumer("t", "c", rdy=10)
    house.publish("t", b"later", defer_ms=60_000)
    house.publish("t", b"now")
    consumer.finish(consumer.messages())
    landing = landed(house, "earliest")

    assert (landing.again, landing.waiting) == (1, 1)


def test_a_place_that_cannot_be_read_is_told() -> None:
    """A seek to a time fails with the disk's error if the disk cannot be read.

    The channel does not move.
    """
    house = House(cache_bytes=1)
    house.consumer("t", "c")
    for number in range(20):
        house.publish("t", b"%d" % number * 100)
        house.advance(1.0)
    house.crash()
    house.disk.fail(Fault(1, errno.EIO, frozenset({"open", "read"}), times=1))
    found = seek(house, ("time", house.clock.wall_ns - 5_000_000_000))

    assert (found.landing, found.error is not None) == (None, True)
    assert house.channel("t", "c").depth == 20


@pytest.mark.parametrize("place", ["earliest", "in what is gone"])
def test_what_is_gone_in_the_middle_of_the_log_does_not_wait(place: str) -> None:
    """Messages of a deleted segment in the middle of the log are not in the depth.

    A deferred message keeps the segment before it.
    """
    house = House(max_bytes_per_file=FILE_BYTES)
    consumer = house.consumer("t", "c", rdy=100)
    house.publish("t", *[bytes(300)] * 5, defer_ms=600_000)
    house.publish("t", *[bytes(300)] * 5)
    consumer.finish(consumer.messages())
    house.publish("t", *[bytes(300)] * 5)
    newest = consumer.messages()
    house.pass_time(2.0)
    house.pass_time(2.0)
    firsts = [segment.first_index for segment in house.broker.topics["t"].stream.log.segments()]
    assert len(firsts) == 2
    consumer.close()

    target: SeekTarget = "earliest" if place == "earliest" else newest[0].index - 2
    assert landed(house, target).waiting == 5
    assert house.channel("t", "c").depth == 5
    house.crash()
    assert house.channel("t", "c").depth == 5
    assert len(house.consumer("t", "c", rdy=100).messages()) == 5
    assert house.channel("t", "c").depth == 0


def test_seek_to_each_kind_of_place(house: House) -> None:
    """A seek to an end, an index or a time delivers everything from there again.

    Attempts start at 1.
    """
    consumer = house.consumer("t", "c", rdy=100)
    times = []
    for n in range(4):
        times.append(house.clock.wall_ns)
        house.publish("t", b"%d" % n)
        house.advance(60.0)
    messages = consumer.messages()
    consumer.finish(messages)

    def replayed(target: SeekTarget) -> list[bytes]:
        house.broker.seek_channel("t", "c", target, house.clock.now())
        house.turn()
        found = consumer.messages()
        assert {message.attempts for message in found} <= {1}
        return [message.body for message in found]

    assert replayed("earliest") == [b"0", b"1", b"2", b"3"]
    assert replayed("latest") == []
    assert replayed(messages[2].index) == [b"2", b"3"]
    assert replayed(("time", times[1])) == [b"1", b"2", b"3"]
    assert replayed(("time", times[3] + 1)) == []
    assert replayed(0) == [b"0", b"1", b"2", b"3"]
    assert replayed(1 << 53) == []


def test_a_replay_brings_deferred_publishes_too(house: House) -> None:
    """A replay delivers deferred publishes that were due already immediately.

    Those not due yet are delivered at their due time.
    """
    consumer = house.consumer("t", "c", rdy=100)
    house.publish("t", b"due", defer_ms=1000)
    house.publish("t", b"later", defer_ms=60_000)
    house.publish("t", b"plain")
    house.pass_time(2.0)
    consumer.finish(consumer.messages())
    house.broker.seek_channel("t", "c", "earliest", house.clock.now())
    house.turn()
    assert sorted(consumer.bodies()) == [b"due", b"plain"]

    house.pass_time(60.0)

    assert b"later" in consumer.bodies()


def test_seek_to_a_time_on_the_disk() -> None:
    """A seek to a time that must be looked up on disk moves the channel when it is found."""
    house = House(cache_bytes=1)
    house.consumer("t", "c")
    for n in range(20):
        house.publish("t", b"%d" % n * 100)
        house.advance(1.0)
    house.crash()
    target: SeekTarget = ("time", house.clock.wall_ns - 5_000_000_000)
    house.broker.seek_channel("t", "c", target, house.clock.now())
    house.turn()

    assert house.channel("t", "c").depth == 5


def test_a_held_channel_cannot_be_moved(house: House) -> None:
    """A seek of a channel that a range reader holds is refused."""
    house.publish("t", b"x")
    house.connect().say(commands.attach("t", "c"))

    with pytest.raises(RemoteError):
        house.broker.seek_channel("t", "c", "earliest", house.clock.now())
