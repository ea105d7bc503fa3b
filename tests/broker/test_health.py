"""Health when the disk fails, and detection of free space after a full disk."""

from __future__ import annotations

import errno

import pytest

from sparq.broker.health import Health
from sparq.log.disk import DiskError
from sparq.protocol import commands
from sparq.testing import Fault, MemoryDisk
from tests.broker.house import House


def test_a_failure_that_lasts_is_noted_once() -> None:
    """A lasting failure is logged once, and health gives its reason."""
    health = Health()
    full = DiskError("write", "/x", errno.ENOSPC)
    health.fail("first", full)
    health.fail("second", full)

    assert (health.failure, health.notes) == ("no space left on device", ["first"])
    assert health.text(None) == "NOK - no space left on device"
    health.recover()
    assert (health.text(None), health.is_full) == ("OK", False)


KIB, MIB = 1 << 10, 1 << 20


def fill(house: House) -> int:
    """Publish until even one byte is refused; returns the number of bytes stored."""
    producer = house.connect()
    stored = 0
    for count, size in ((50, 2000), (1, 2000), (1, 200), (1, 1)):
        while True:
            producer.say(commands.mpub("t", [b"x" * size] * count))
            if producer.answers() != [b"OK"]:
                break
            stored += count * size
    return stored


def test_health_follows_the_space() -> None:
    """Health is NOK while the disk has no space for a large publish.

    It becomes OK within seconds once there is space for one, even if nobody publishes.
    """
    disk = MemoryDisk(capacity_bytes=20 * MIB)
    house = House(disk)
    house.consumer("t", "c")
    assert fill(house) > 10 * MIB
    assert house.broker.health().startswith("NOK - no space left on device; ")
    for capacity in (20 * MIB, 23 * MIB):
        disk.capacity_bytes = capacity
        house.pass_time(3)
        assert house.broker.health().startswith("NOK - no space left on device; ")

    disk.capacity_bytes = 30 * MIB
    house.pass_time(1.1)

    assert house.broker.health() == "OK"
    assert "the disk has space again" in house.broker.notes


@pytest.mark.behaviour("TestSetHealth")
def test_other_failures_are_ended_by_a_success_only() -> None:
    """After a write error health is NOK until a publish succeeds: free space proves nothing."""
    house = House()
    house.consumer("t", "c")
    house.disk.fail(Fault(1, errno.EIO, frozenset({"write"}), times=1))
    producer = house.connect()
    producer.say(commands.pub("t", b"x"))
    assert producer.answers() == [b"E_PUB_FAILED PUB failed input/output error"]
    house.pass_time(5)
    assert house.broker.health() == "NOK - input/output error"

    house.publish("t", b"y")

    assert house.broker.health() == "OK"


def test_the_reserve_outlives_starts_on_a_full_disk() -> None:
    """Restarts on a full disk do not give the reserve's space to publishers.

    Only the unused part of one reserve step, which the ledgers had begun to use, may be lost.
    """
    disk = MemoryDisk(capacity_bytes=8 * MIB)
    house = House(disk)
    house.consumer("t", "c")
    fill(house)
    (path,) = [path for path in disk.paths() if path.endswith("reserve")]
    reserved = len(disk.data(path))
    for _ in range(3):
        house.crash()
        for number in range(8):
            house.consumer(f"t{number}", "c")
            for _ in range(100):
                house.connect().say(commands.pub("t", b"x" * 2000))
    stored = sum(len(disk.data(path)) for path in disk.paths() if path.endswith(".log"))
    assert 0.9 * MIB < reserved <= MIB
    assert stored < 8 * MIB - reserved + 128 * KIB


def test_a_topic_can_be_deleted_on_a_full_disk() -> None:
    """Deleting a topic on a full disk frees its space, and its name can be used again."""
    house = House(MemoryDisk(capacity_bytes=8 * MIB))
    house.consumer("t", "c")
    first = fill(house)

    house.broker.delete_topic("t", house.clock.now())
    house.turn()

    house.consumer("t", "c")
    assert fill(house) > first * 0.9
