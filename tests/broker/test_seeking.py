"""A seek's result: its target, the messages delivered again, and the oldest message kept."""

from __future__ import annotations

import errno

import pytest

from sparq.broker.channel import SeekTarget
from sparq.broker.seeking import Landing, Seek
from sparq.protocol import commands
from sparq.protocol.errors import RemoteError
from sparq.testing import Fault
from tests.broker.dead_letters import requeue
from tests.broker.harness import BrokerHarness

FILE_BYTES = 2_000
MINUTE_NS = 60_000_000_000


def seek(harness: BrokerHarness, target: SeekTarget) -> Seek:
    """Seek, and run the disk work it needs."""
    found = harness.broker.seek("t", "c", target, harness.clock.now())
    harness.turn()
    return found


def landing_of(harness: BrokerHarness, target: SeekTarget) -> Landing:
    """The landing of a successful seek."""
    landing = seek(harness, target).landing
    assert landing is not None
    return landing


@pytest.mark.parametrize("cache_bytes", [1, 1 << 20], ids=["on the disk", "in memory"])
def test_a_seek_returns_its_landing_and_the_counts(cache_bytes: int) -> None:
    """A seek returns the target's index and time, and the oldest message's.

    It also returns the number of messages delivered again, and of all waiting messages.
    """
    harness = BrokerHarness(cache_bytes=cache_bytes)
    consumer = harness.consumer("t", "c", rdy=100)
    times = []
    for number in range(4):
        times.append(harness.clock.wall_ns)
        harness.publish("t", b"%d" % number)
        harness.advance(60.0)
    messages = consumer.messages()
    consumer.finish(messages)
    consumer.close()
    harness.crash()
    first, third = messages[0].index, messages[2].index

    assert landing_of(harness, "earliest") == Landing(
        first, times[0], 4, 4, 0, first, times[0], False
    )
    assert landing_of(harness, third) == Landing(third, times[2], 0, 2, 2, first, times[0], False)
    later: SeekTarget = ("time", times[1] + 1)
    assert landing_of(harness, later) == Landing(third, times[2], 0, 2, 0, first, times[0], False)
    before: SeekTarget = ("time", times[0] - MINUTE_NS)
    assert landing_of(harness, before) == Landing(first, times[0], 2, 4, 0, first, times[0], False)
    end = landing_of(harness, "latest")
    assert (end.time_ns, end.again, end.waiting) == (None, 0, 0)
    assert landing_of(harness, third).again == 2


def test_a_seek_to_deleted_messages_reports_older_are_gone() -> None:
    """A seek to deleted messages lands on the oldest kept one, and reports `older_are_gone`."""
    harness = BrokerHarness(max_bytes_per_file=FILE_BYTES)
    consumer = harness.consumer("t", "c", rdy=100)
    for _ in range(30):
        harness.publish("t", bytes(300))
        harness.advance(60.0)
    consumer.finish(consumer.messages())
    harness.pass_time(2.0)
    harness.pass_time(2.0)
    kept = harness.broker.topics["t"].stream.log.segments()[0]
    landing = landing_of(harness, 0)

    assert landing.older_are_gone
    assert (landing.index, landing.oldest_index) == (kept.first_index, kept.first_index)
    assert landing.time_ns == landing.oldest_time_ns == kept.first_time_ns
    assert landing.again == landing.waiting < 30


def test_a_seek_in_an_empty_topic_has_no_time() -> None:
    """In an empty topic a seek has no time and no oldest message, and nothing is gone."""
    harness = BrokerHarness()
    harness.consumer("t", "c")
    landing = landing_of(harness, "earliest")

    assert (landing.time_ns, landing.again, landing.waiting) == (None, 0, 0)
    assert (landing.oldest_index, landing.oldest_time_ns, landing.older_are_gone) == (
        None,
        None,
        False,
    )


def test_a_seek_does_not_count_deferred_messages_that_are_not_due() -> None:
    """Deferred messages that are not due yet are not counted as delivered again.

    A seek does not change their due time.
    """
    harness = BrokerHarness()
    consumer = harness.consumer("t", "c", rdy=10)
    harness.publish("t", b"later", defer_ms=60_000)
    harness.publish("t", b"now")
    consumer.finish(consumer.messages())
    landing = landing_of(harness, "earliest")

    assert (landing.again, landing.waiting) == (1, 1)


def test_a_seek_counts_the_messages_that_it_skips() -> None:
    """`skipped` has the unfinished messages before the place: waiting, in flight, deferred."""
    harness = BrokerHarness()
    consumer = harness.consumer("t", "c", rdy=4)
    harness.publish("t", *(b"%d" % number for number in range(8)))
    messages = consumer.messages()
    assert len(messages) == 4
    consumer.finish([messages[1]])
    requeue(consumer, [messages[0]], 60_000)
    consumer.say(commands.rdy(0))
    consumer.messages()
    harness.publish("t", b"later", defer_ms=60_000)
    channel = harness.broker.topics["t"].channels["c"]
    of = channel.deferred_count(), len(channel.in_flight.indexes())
    assert of[0] == 2

    def tried(place: SeekTarget) -> int:
        seek = harness.broker.seek("t", "c", place, harness.clock.now(), dry_run=True)
        assert seek.landing is not None
        return seek.landing.skipped

    total = sum(of) + channel.depth()
    assert total == 8  # one of nine is finished
    assert (tried("earliest"), tried(messages[0].index)) == (0, 0)
    assert (tried(messages[1].index), tried(messages[2].index)) == (1, 1)
    assert tried(messages[3].index) == 2
    assert tried("latest") == total


def test_a_seek_fails_if_the_disk_cannot_be_read() -> None:
    """A seek to a time fails with the disk's error if the disk cannot be read.

    The channel does not move.
    """
    harness = BrokerHarness(cache_bytes=1)
    harness.consumer("t", "c")
    for number in range(20):
        harness.publish("t", b"%d" % number * 100)
        harness.advance(1.0)
    harness.crash()
    harness.disk.fail(Fault(1, errno.EIO, frozenset({"open", "read"}), times=1))
    found = seek(harness, ("time", harness.clock.wall_ns - 5_000_000_000))

    assert (found.landing, found.error is not None) == (None, True)
    assert harness.channel("t", "c").depth == 20


@pytest.mark.parametrize("place", ["earliest", "in what is gone"])
def test_messages_deleted_in_the_middle_of_the_log_are_not_in_the_depth(place: str) -> None:
    """Messages of a deleted segment in the middle of the log are not in the depth.

    A deferred message keeps the segment before it.
    """
    harness = BrokerHarness(max_bytes_per_file=FILE_BYTES)
    consumer = harness.consumer("t", "c", rdy=100)
    harness.publish("t", *[bytes(300)] * 5, defer_ms=600_000)
    harness.publish("t", *[bytes(300)] * 5)
    consumer.finish(consumer.messages())
    harness.publish("t", *[bytes(300)] * 5)
    newest = consumer.messages()
    harness.pass_time(2.0)
    harness.pass_time(2.0)
    firsts = [segment.first_index for segment in harness.broker.topics["t"].stream.log.segments()]
    assert len(firsts) == 2
    consumer.close()

    target: SeekTarget = "earliest" if place == "earliest" else newest[0].index - 2
    assert landing_of(harness, target).waiting == 5
    assert harness.channel("t", "c").depth == 5
    harness.crash()
    assert harness.channel("t", "c").depth == 5
    assert len(harness.consumer("t", "c", rdy=100).messages()) == 5
    assert harness.channel("t", "c").depth == 0


def test_a_seek_of_a_range_readers_channel_is_refused(harness: BrokerHarness) -> None:
    """A seek of a channel that a range reader holds is refused."""
    harness.publish("t", b"x")
    harness.connect().say(commands.attach("t", "c"))

    with pytest.raises(RemoteError):
        harness.broker.seek("t", "c", "earliest", harness.clock.now())
