"""What NSQ's disk queue guarantees, for a topic's log and a channel's cursor."""

from __future__ import annotations

import json

import pytest

from sparq.protocol import commands, layout
from tests.broker.house import House


@pytest.mark.behaviour("diskqueue.TestDiskQueuePeek")
def test_looking_takes_nothing() -> None:
    """Reading by range leaves the channel's depth and the order of its messages unchanged."""
    house = House()
    house.publish("t", *[b"%d" % number for number in range(10)])
    reader = house.connect()
    reader.say(commands.attach("t", "c"))
    attached = json.loads(reader.answers()[0])
    for _ in range(2):
        reader.say(
            commands.read(
                "t", attached["log"], int(attached["first"]), int(attached["end"]), 1 << 20
            )
        )
        ((kind, data),) = reader.heard()
        assert layout.FRAME_RANGE == kind
        assert all(b"%d" % number in data for number in range(10))
        assert 10 == house.channel("t", "c").depth
    reader.close()

    found = house.consumer("t", "c", rdy=100).bodies()
    assert [b"%d" % number for number in range(10)] == found


@pytest.mark.behaviour("diskqueue.TestDiskQueueEmpty")
def test_emptied_twice_in_the_middle() -> None:
    """A channel can be emptied while it is read, twice; its files are deleted, and it works on."""
    house = House(max_bytes_per_file=2000)
    consumer = house.consumer("t", "c", rdy=3)
    for _ in range(2):
        for number in range(30):
            house.publish("t", b"%d" % number * 100)
        assert 3 == len(consumer.messages())
        assert len(house.broker.topics["t"].stream.log.segments()) > 2
        house.broker.empty_channel("t", "c", house.clock.now())
        house.turn()
        assert 0 == house.channel("t", "c").depth
        consumer.messages()
        house.pass_time(5.0)
        assert len(house.broker.topics["t"].stream.log.segments()) <= 1
    house.restart()
    house.publish("t", b"again")

    assert [b"again"] == house.consumer("t", "c", rdy=3).bodies()


@pytest.mark.behaviour("diskqueue.TestDiskQueueSyncAfterRead")
@pytest.mark.parametrize("seed", range(5))
def test_what_was_read_is_synced_in_time(seed: int) -> None:
    """After the sync timeout, finished messages are not delivered again even after a power cut."""
    house = House(sync_timeout_ns=1_000_000_000)
    consumer = house.consumer("t", "c", rdy=10)
    house.publish("t", *[b"%d" % number for number in range(10)])
    consumer.finish(consumer.messages()[:7])
    house.pass_time(1.0)
    house.pass_time(0.1)
    house.disk = house.disk.crash(seed)
    house.crash()

    found = house.consumer("t", "c", rdy=10).bodies()
    assert [b"7", b"8", b"9"] == sorted(found)
