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
from tests.broker.house import PATH, House
from tests.support.open_files import files_closed_below

TOPICS = 12


def furnish(house: House) -> House:
    """Create `TOPICS` topics, each with a channel and two messages."""
    for number in range(TOPICS):
        name = f"t{number:02}"
        house.broker.create_topic(name, house.clock.now())
        house.broker.create_channel(name, "c", house.clock.now())
        house.publish(name, b"one of %d" % number, b"two of %d" % number)
    return house


def bodies_of(house: House, broker: Broker) -> list[list[bytes]]:
    """The bodies that each topic's consumer gets."""
    house.broker = broker
    return [
        [message.body for message in house.consumer(f"t{n:02}", "c", rdy=5).messages()]
        for n in range(TOPICS)
    ]


def backwards(openings: Sequence[Opening]) -> None:
    """Open the topics in reverse order."""
    for opening in reversed(openings):
        opening.run()


def test_the_order_in_which_topics_are_read_does_not_matter() -> None:
    """Topics opened in reverse order keep their own messages."""
    house = furnish(House())
    broker = Broker(house.options, house.disk, PATH, house.clock.now())
    broker.load(house.clock.now(), backwards)

    expected = [[b"one of %d" % n, b"two of %d" % n] for n in range(TOPICS)]

    assert expected == bodies_of(house, broker)


def test_a_topic_that_cannot_be_opened_stops_no_other() -> None:
    """A topic that cannot be opened is reported and left unchanged; all others are opened."""
    house = furnish(House())
    house.disk.fail(Fault(30, errno.EACCES, frozenset({"open"})))
    broker = Broker(house.options, house.disk, PATH, house.clock.now())
    report = broker.load(house.clock.now(), backwards)
    house.disk.fault = None

    assert TOPICS - 1 == len(broker.topics)
    assert ["left alone"] == [line[line.index("left") : line.index("alone") + 5] for line in report]


def test_threads_read_topics_side_by_side(tmp_path: Path) -> None:
    """Topics opened by several threads keep their own messages.

    The threads share the cache and the reserve.
    """
    house, disk, path = House(), RealDisk(), str(tmp_path)
    options, clock = house.options, house.clock
    house.broker = Broker(options, disk, path, clock.now())
    house.broker.load(clock.now())
    furnish(house)
    house.close()

    def in_threads(openings: Sequence[Opening]) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(Opening.run, openings))

    with files_closed_below(tmp_path):
        broker = Broker(options, disk, path, clock.now())
        broker.load(clock.now(), in_threads)
        owners = {topic.stream.log._owner for topic in broker.topics.values()}
        found = bodies_of(house, broker)

    assert TOPICS == len(owners)
    assert [[b"one of %d" % n, b"two of %d" % n] for n in range(TOPICS)] == found


def test_after_a_start_without_index_files_all_get_one_at_once() -> None:
    """After a start without index files all segments get one within 1.5 s.

    The next start scans none of them.
    """
    house = House(max_bytes_per_file=6_000)
    house.publish("t", b"first")
    for number in range(40):
        house.publish("t", b"%d" % number * 900)
    house.crash()
    segments = house.broker.topics["t"].stream.log._index.segments
    house.pass_time(1.5)

    assert len(segments) > 9
    assert all(segment.index_count == len(segment.extents) for segment in segments)
    house.crash()
    assert all(s.indexed for s in house.broker.topics["t"].stream.log._index.segments)


@pytest.mark.behaviour("TestDeletes")
def test_deleting_a_topic(house: House) -> None:
    """Deleting a topic removes its files and disconnects its clients.

    A new topic of the same name starts empty, and with new indexes even if the clock was set back.
    """
    consumer = house.consumer("t", "c", rdy=10)
    house.publish("t", b"old")
    (old,) = consumer.messages()
    old_log = house.topic("t").log
    house.broker.delete_topic("t", house.clock.now())
    assert consumer.session.closing
    assert house.broker.topics == {}
    house.turn()
    assert not [path for path in house.disk.paths() if "/t-t/" in path or "/trash/" in path]

    consumer.close()
    house.clock.wall_ns -= 10_000_000_000
    house.publish("t", b"new")
    (new,) = house.consumer("t", "c", rdy=10).messages()

    assert (new.body, new.attempts) == (b"new", 1)
    assert new.index > old.index
    assert house.topic("t").log != old_log
    house.crash()
    assert house.topic("t").message_count == 0


def test_timers_of_a_deleted_topic_find_nothing(house: House) -> None:
    """A deleted topic's pending ledger sync does not disturb the turns of other topics."""
    consumer = house.consumer("t", "c", rdy=10)
    house.publish("t", b"x")
    consumer.finish(consumer.messages())
    house.pass_time(1.0)
    house.broker.delete_topic("t", house.clock.now())
    house.turn()

    house.pass_time(1.5)
    house.publish("other", b"y")

    assert 1 == house.topic("other").message_count


def test_a_deleted_topic_is_not_synced() -> None:
    """A deleted topic's unsynced data is not synced, and health stays OK."""
    house = House(sync_every=1000)
    house.consumer("t", "c")
    house.publish("t", b"x")
    house.broker.delete_topic("t", house.clock.now())
    house.turn()

    for _ in range(5):
        house.pass_time(1.0)

    assert "OK" == house.broker.health()
    assert not [note for note in house.broker.notes if "syncing" in note]


def test_a_topic_on_its_way_out_refuses_publishes(house: House) -> None:
    """Publishes to a topic that is being deleted, waiting or new, are refused.

    Once its files are removed, the topic can be created again.
    """
    client = house.connect()
    client.say(commands.pub("t", b"x"))
    client.say(commands.pub("t", b"waits"), turn=False)
    house.broker.delete_topic("t", house.clock.now())
    late = house.connect()
    late.say(commands.mpub("t", [b"late"]), turn=False)
    house.turn()

    assert client.answers() == [b"OK", b"E_PUB_FAILED PUB failed exiting"]
    assert late.answers() == [b"E_MPUB_FAILED MPUB failed exiting"]
    assert late.session.closing
    house.publish("t", b"again")
    assert house.topic("t").message_count == 1


def test_deleting_waits_for_a_commit_in_flight(house: House) -> None:
    """A topic's files are removed after its commit in flight, whose publisher gets OK."""
    client = house.connect()
    client.say(commands.pub("t", b"x"), turn=False)
    tasks = house.broker.end_turn(house.clock.now())
    house.broker.delete_topic("t", house.clock.now())
    house.turn()
    assert [path for path in house.disk.paths() if "/t-t/" in path]
    for task in tasks:
        task.work.run()
        house.broker.finish(task, house.clock.now())
    house.turn()

    assert client.answers() == [b"OK"]
    assert not [path for path in house.disk.paths() if "/t-t/" in path]


def test_a_deleted_topic_leaves_nothing_in_the_cache(house: House) -> None:
    """A deleted topic's blocks are removed from the cache.

    Otherwise they would displace those of other topics.
    """
    for number in range(20):
        house.publish(f"t{number}", b"x" * 1000)
    cache = house.broker._topics._cache
    assert cache.size_bytes > 20_000

    for number in range(20):
        house.broker.delete_topic(f"t{number}", house.clock.now())
    house.turn()

    assert cache.size_bytes == 0
