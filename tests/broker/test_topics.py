"""All topics of a data path: opened at start by any threads in any order, and deleted."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sparq.broker.broker import Broker
from sparq.broker.topics import Opening
from sparq.log.disk import RealDisk
from sparq.protocol import commands
from sparq.testing import Fault
from tests.broker.harness import PATH, BrokerHarness
from tests.support.open_files import files_closed_below

TOPICS = 12


def create_topics(harness: BrokerHarness) -> BrokerHarness:
    """Create `TOPICS` topics, each with a channel and two messages."""
    for number in range(TOPICS):
        name = f"t{number:02}"
        harness.broker.create_topic(name, harness.clock.now())
        harness.broker.create_channel(name, "c", harness.clock.now())
        harness.publish(name, b"one of %d" % number, b"two of %d" % number)
    return harness


def bodies_of(harness: BrokerHarness, broker: Broker) -> list[list[bytes]]:
    """The bodies that each topic's consumer gets."""
    harness.broker = broker
    return [
        [message.body for message in harness.consumer(f"t{n:02}", "c", rdy=5).messages()]
        for n in range(TOPICS)
    ]


def backwards(openings: Sequence[Opening]) -> None:
    """Open the topics in reverse order."""
    for opening in reversed(openings):
        opening.run()


def test_a_topic_that_cannot_be_opened_does_not_stop_others() -> None:
    """A topic that cannot be opened is reported and left unchanged; all others are opened."""
    harness = create_topics(BrokerHarness())
    harness.disk.fail(Fault(30, errno.EACCES, frozenset({"open"})))
    broker = Broker(harness.options, harness.disk, PATH, harness.clock.now())
    broker.load(harness.clock.now(), backwards)
    harness.disk.fault = None

    assert TOPICS - 1 == len(broker.topics)
    assert ["left alone"] == [note[note.index("left") :][:10] for note in broker.notes]
    assert "cannot be opened: permission denied" in broker.health()


def test_topics_opened_by_several_threads_keep_their_messages(tmp_path: Path) -> None:
    """Topics opened by several threads keep their own messages.

    The threads share the cache and the reserve.
    """
    harness, disk, path = BrokerHarness(), RealDisk(), str(tmp_path)
    options, clock = harness.options, harness.clock
    harness.broker = Broker(options, disk, path, clock.now())
    harness.broker.load(clock.now())
    create_topics(harness)
    harness.close()

    def in_threads(openings: Sequence[Opening]) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(Opening.run, openings))

    with files_closed_below(tmp_path):
        broker = Broker(options, disk, path, clock.now())
        broker.load(clock.now(), in_threads)
        owners = {topic.stream.log._owner for topic in broker.topics.values()}
        found = bodies_of(harness, broker)

    assert TOPICS == len(owners)
    assert [[b"one of %d" % n, b"two of %d" % n] for n in range(TOPICS)] == found


def test_after_a_start_without_index_files_all_segments_get_one() -> None:
    """After a start without index files all segments get one within 1.5 s.

    The next start scans none of them.
    """
    harness = BrokerHarness(max_bytes_per_file=6_000)
    harness.publish("t", b"first")
    for number in range(40):
        harness.publish("t", b"%d" % number * 900)
    harness.crash()
    segments = harness.broker.topics["t"].stream.log.files
    harness.pass_time(1.5)

    assert len(segments) > 9
    assert all(segment.index_count == len(segment.extents) for segment in segments)
    harness.crash()
    assert all(s.indexed for s in harness.broker.topics["t"].stream.log.files)


@pytest.mark.behaviour("TestDeletes")
def test_deleting_a_topic(harness: BrokerHarness) -> None:
    """Deleting a topic removes its files and disconnects its clients.

    A new topic of the same name starts empty, and with new indexes even if the clock was set back.
    """
    consumer = harness.consumer("t", "c", rdy=10)
    harness.publish("t", b"old")
    (old,) = consumer.messages()
    old_log = harness.topic("t").log
    harness.broker.delete_topic("t", harness.clock.now())
    assert consumer.session.closing
    assert harness.broker.topics == {}
    harness.turn()
    assert not [path for path in harness.disk.paths() if "/t-t/" in path or "/trash/" in path]

    consumer.close()
    harness.clock.wall_ns -= 10_000_000_000
    harness.publish("t", b"new")
    (new,) = harness.consumer("t", "c", rdy=10).messages()

    assert (new.body, new.attempts) == (b"new", 1)
    assert new.index > old.index
    assert harness.topic("t").log != old_log
    harness.crash()
    assert harness.topic("t").message_count == 0


def test_a_deleted_topic_is_not_synced() -> None:
    """A deleted topic's unsynced data is not synced, and health stays OK."""
    harness = BrokerHarness(sync_every=1000)
    harness.consumer("t", "c")
    harness.publish("t", b"x")
    harness.act("delete_topic", "t")

    for _ in range(5):
        harness.pass_time(1.0)

    assert "OK" == harness.broker.health()
    assert not [note for note in harness.broker.notes if "syncing" in note]


def test_a_topic_being_deleted_refuses_publishes(harness: BrokerHarness) -> None:
    """Publishes to a topic that is being deleted, waiting or new, are refused.

    Once its files are removed, the topic can be created again.
    """
    client = harness.connect()
    client.say(commands.pub("t", b"x"))
    client.say(commands.pub("t", b"waits"), turn=False)
    harness.broker.delete_topic("t", harness.clock.now())
    late = harness.connect()
    late.say(commands.mpub("t", [b"late"]), turn=False)
    harness.turn()

    assert client.answers() == [b"OK", b"E_PUB_FAILED PUB failed exiting"]
    assert client.session.closing
    assert late.answers() == [b"E_MPUB_FAILED MPUB failed exiting"]
    assert late.session.closing
    harness.publish("t", b"again")
    assert harness.topic("t").message_count == 1


def test_deleting_waits_for_a_commit_in_flight(harness: BrokerHarness) -> None:
    """A topic's files are removed after its commit in flight, whose publisher gets OK."""
    client = harness.connect()
    client.say(commands.pub("t", b"x"), turn=False)
    tasks = harness.broker.end_turn(harness.clock.now())
    harness.act("delete_topic", "t")
    assert [path for path in harness.disk.paths() if "/t-t/" in path]
    harness.run(tasks)
    harness.turn()

    assert client.answers() == [b"OK"]
    assert not [path for path in harness.disk.paths() if "/t-t/" in path]


def test_a_deleted_topic_leaves_nothing_in_the_cache(harness: BrokerHarness) -> None:
    """A deleted topic's blocks are removed from the cache.

    Otherwise they would displace those of other topics.
    """
    for number in range(20):
        harness.publish(f"t{number}", b"x" * 1000)
    cache = harness.broker._topics._cache
    assert cache.size_bytes > 20_000

    for number in range(20):
        harness.broker.delete_topic(f"t{number}", harness.clock.now())
    harness.turn()

    assert cache.size_bytes == 0
