"""All topics of a data path are opened at the start, whoever runs the works, in whatever order."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sparq.broker.broker import Broker
from sparq.broker.topics import Opening
from sparq.log.disk import RealDisk
from sparq.testing import Fault
from tests.broker.house import PATH, House
from tests.support.open_files import files_closed_below

TOPICS = 12


def furnish(house: House) -> House:
    """Some topics, each with a channel and two messages of its own."""
    for number in range(TOPICS):
        name = f"t{number:02}"
        house.broker.create_topic(name, house.clock.now())
        house.broker.create_channel(name, "c", house.clock.now())
        house.publish(name, b"one of %d" % number, b"two of %d" % number)
    return house


def bodies_of(house: House, broker: Broker) -> list[list[bytes]]:
    """What each topic's consumer gets."""
    house.broker = broker
    return [
        [message.body for message in house.consumer(f"t{n:02}", "c", rdy=5).messages()]
        for n in range(TOPICS)
    ]


def backwards(openings: Sequence[Opening]) -> None:
    """The last topic first."""
    for opening in reversed(openings):
        opening.run()


def test_the_order_in_which_topics_are_read_does_not_matter() -> None:
    """Each keeps its own messages."""
    house = furnish(House())
    broker = Broker(house.options, house.disk, PATH, house.clock.now())
    broker.load(house.clock.now(), backwards)

    expected = [[b"one of %d" % n, b"two of %d" % n] for n in range(TOPICS)]

    assert expected == bodies_of(house, broker)


def test_a_topic_that_cannot_be_opened_stops_no_other() -> None:
    """Also among works that others run: it is named, and left alone."""
    house = furnish(House())
    house.disk.fail(Fault(30, errno.EACCES, frozenset({"open"})))
    broker = Broker(house.options, house.disk, PATH, house.clock.now())
    report = broker.load(house.clock.now(), backwards)
    house.disk.fault = None

    assert TOPICS - 1 == len(broker.topics)
    assert ["left alone"] == [line[line.index("left") : line.index("alone") + 5] for line in report]


def test_threads_read_topics_side_by_side(tmp_path: Path) -> None:
    """What they share, the cache and the reserve, bears it: nobody gets another's messages."""
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
    """A second of nsqd is enough, however many segments there are; the next start scans none."""
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
