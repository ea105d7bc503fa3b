"""Disks that fail: publishes are refused and say why, finishes never are, and it passes."""

from __future__ import annotations

import errno

import pytest

from sparq.log.disk import DiskError
from sparq.protocol import commands
from sparq.testing import Fault, MemoryDisk
from tests.broker.house import House


@pytest.fixture
def house() -> House:
    """A broker with an empty data path."""
    return House()


def test_a_refused_publish_keeps_its_connection(house: House) -> None:
    """Decision 18: E_PUB_FAILED says the disk's reason, nothing is stored, the client goes on."""
    client = house.connect()
    client.say(commands.pub("t", b"before"))
    assert client.answers() == [b"OK"]
    house.disk.fail(Fault(1, errno.ENOSPC, frozenset({"write", "create"}), times=9))
    client.say(
        commands.pub("t", b"1") * 2 + commands.mpub("t", [b"2"]) + commands.dpub("t", 5, b"3")
    )
    reason = b"no space left on device"
    assert client.answers() == [
        b"E_PUB_FAILED PUB failed " + reason,
        b"E_PUB_FAILED PUB failed " + reason,
        b"E_MPUB_FAILED MPUB failed " + reason,
        b"E_DPUB_FAILED DPUB failed " + reason,
    ]
    assert not client.session.closing
    assert house.broker.health() == "NOK - no space left on device"
    assert house.broker.notes

    house.disk.fault = None
    client.say(commands.pub("t", b"after"))

    assert client.answers() == [b"OK"]
    assert house.broker.health() == "OK"
    assert house.consumer("t", "c", rdy=10).bodies() == [b"before", b"after"]


def test_no_ok_for_what_a_failed_sync_may_have_lost(house: House) -> None:
    """P8: after a failed sync the batch is written again elsewhere, or refused; never both lost
    and acknowledged."""
    for seed in range(10):
        house = House()
        client = house.connect()
        client.say(commands.pub("t", b"first"))
        client.answers()
        house.disk.fail(Fault(1, errno.EIO, frozenset({"sync"}), times=1 + seed % 3))
        client.say(commands.pub("t", b"doubtful"))
        (answer,) = client.answers()
        house.disk.fault = None
        house.disk = house.disk.crash(seed)
        house.crash()
        bodies = house.consumer("t", "c", rdy=10).bodies()

        assert bodies[0] == b"first"
        assert answer != b"OK" or bodies == [b"first", b"doubtful"]


def test_finishes_are_kept_though_the_ledger_cannot_be_written(house: House) -> None:
    """A FIN is never refused; it is written when the disk takes writes again."""
    consumer = house.consumer("t", "c", rdy=10)
    house.publish("t", b"1", b"2", b"3")
    messages = consumer.messages()
    consumer.answers()
    house.disk.fail(Fault(1, errno.EIO, frozenset({"write"}), times=5))
    consumer.finish(messages[:2])
    assert consumer.answers() == []
    assert house.channel("t", "c").in_flight_count == 1
    assert house.broker.health() != "OK"

    house.disk.fault = None
    house.pass_time(1.0)
    assert house.broker.health() == "OK"
    house.crash()

    assert house.consumer("t", "c", rdy=10).bodies() == [b"3"]


def test_a_topic_that_cannot_be_made(house: House) -> None:
    """Publish and SUB are told the reason; later the same name works."""
    house.disk.fail(Fault(1, errno.ENOSPC, frozenset({"mkdir", "create"}), times=9))
    producer, consumer = house.connect(), house.connect()
    producer.say(commands.pub("t", b"x"))
    consumer.say(commands.sub("t", "c"))
    assert producer.answers() == [b"E_PUB_FAILED PUB failed no space left on device"]
    assert consumer.answers() == [b"E_SUB_FAILED SUB failed no space left on device"]
    assert (producer.session.closing, consumer.session.closing) == (False, True)

    house.disk.fault = None
    producer.say(commands.pub("t", b"y"))

    assert producer.answers() == [b"OK"]


def test_a_failed_read_is_tried_again(house: House) -> None:
    """EIO on a read delivers nothing wrong and loses nothing: a second later it is tried again."""
    house = House(cache_bytes=1)
    for n in range(10):
        house.publish("t", b"%d" % n)
    house.crash()
    house.disk.fail(Fault(1, errno.EIO, frozenset({"read", "open"}), times=1))
    consumer = house.consumer("t", "c", rdy=100)
    assert consumer.bodies() == []

    house.pass_time(1.1)

    assert consumer.bodies() == [b"%d" % n for n in range(10)]


def test_a_damaged_batch_costs_itself_alone() -> None:
    """Decision 19: a corrupt byte loses one batch, counted; all others are delivered."""
    house = House(cache_bytes=1)
    for n in range(6):
        house.publish("t", *[b"%d-%d" % (n, at) for at in range(3)])
    (path,) = [path for path in house.disk.paths() if path.endswith(".log")]
    data = house.disk.data(path)
    data[data.index(b"3-1")] ^= 1
    house.crash()
    consumer = house.consumer("t", "c", rdy=100)
    bodies = consumer.bodies()

    assert bodies == [b"%d-%d" % (n, at) for n in (0, 1, 2, 4, 5) for at in range(3)]
    assert house.topic("t").damaged_messages == 3
    assert house.channel("t", "c").depth == 0


def test_a_full_disk_takes_finishes() -> None:
    """P7: with no space left publishes are refused, and every finish is recorded."""
    disk = MemoryDisk(capacity_bytes=2 << 20)
    house = House(disk)
    consumer = house.consumer("t", "c", rdy=2500)
    producer = house.connect()
    stored = 0
    while True:
        producer.say(commands.mpub("t", [b"x" * 200] * 50))
        if producer.answers() != [b"OK"]:
            break
        stored += 50
    assert stored > 1000
    while messages := consumer.messages():
        for message in messages[::10]:
            consumer.finish([message])
        consumer.finish([message for at, message in enumerate(messages) if at % 10])
    assert (b"E_PUB" in b"".join(consumer.answers()), house.channel("t", "c").depth) == (False, 0)
    house.crash()

    assert house.channel("t", "c").depth == 0


class PartlyForbidden(MemoryDisk):
    """A disk on which one folder's files may not be opened."""

    forbidden = "none"

    def step(self, operation: str, path: str) -> None:
        """Refuse to open what is forbidden."""
        super().step(operation, path)
        if operation == "open" and self.forbidden in path:
            raise DiskError(operation, path, errno.EACCES)


def test_a_topic_that_cannot_be_opened_is_left_alone() -> None:
    """It is reported, its name is refused, the others work, its files stay."""
    disk = PartlyForbidden()
    house = House(disk)
    house.publish("bad", b"x")
    house.publish("good", b"y")
    files = [path for path in disk.paths() if "/t-bad/" in path]
    disk.forbidden = "/t-bad/"
    house.crash()
    assert any("bad" in line for line in house.report)

    client = house.connect()
    client.say(commands.pub("good", b"z") + commands.pub("bad", b"z"))

    ok, refused = client.answers()
    assert ok == b"OK"
    assert refused.startswith(b"E_PUB_FAILED PUB failed open")
    assert [path for path in disk.paths() if "/t-bad/" in path] == files
    disk.forbidden = "none"
    house.crash()
    assert house.consumer("bad", "c", rdy=1).bodies() == [b"x"]
