"""Health when the disk fails, and detection of free space after a full disk."""

from __future__ import annotations

import errno

import pytest

from sparq.broker.health import Health
from sparq.log.disk import DiskError
from sparq.protocol import commands
from sparq.testing import Fault, MemoryDisk
from tests.broker.harness import BrokerHarness


def test_a_lasting_failure_is_logged_once() -> None:
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


def fill(harness: BrokerHarness) -> int:
    """Publish until even one byte is refused; returns the number of bytes stored."""
    producer = harness.connect()
    stored = 0
    for count, size in ((50, 2000), (1, 2000), (1, 200), (1, 1)):
        while True:
            producer.say(commands.mpub("t", [b"x" * size] * count))
            if producer.answers() != [b"OK"]:
                break
            stored += count * size
    return stored


def test_health_is_nok_while_the_disk_is_full() -> None:
    """Health is NOK while the disk has no space for a large publish.

    It becomes OK within seconds once there is space for one, even if nobody publishes.
    """
    disk = MemoryDisk(capacity_bytes=20 * MIB)
    harness = BrokerHarness(disk)
    harness.consumer("t", "c")
    assert fill(harness) > 10 * MIB
    assert harness.broker.health().startswith("NOK - no space left on device; ")
    for capacity in (20 * MIB, 23 * MIB):
        disk.capacity_bytes = capacity
        harness.pass_time(3)
        assert harness.broker.health().startswith("NOK - no space left on device; ")

    disk.capacity_bytes = 30 * MIB
    harness.pass_time(1.1)

    assert harness.broker.health() == "OK"
    assert "the disk has space again" in harness.broker.notes


@pytest.mark.behaviour("TestSetHealth")
def test_after_a_write_error_only_a_successful_publish_restores_health() -> None:
    """After a write error health is NOK until a publish succeeds: free space proves nothing."""
    harness = BrokerHarness()
    harness.consumer("t", "c")
    harness.disk.fail(Fault(1, errno.EIO, frozenset({"write"}), times=1))
    producer = harness.connect()
    producer.say(commands.pub("t", b"x"))
    assert producer.answers() == [b"E_PUB_FAILED PUB failed input/output error"]
    harness.pass_time(5)
    assert harness.broker.health() == "NOK - input/output error"

    harness.publish("t", b"y")

    assert harness.broker.health() == "OK"


def test_the_reserve_survives_restarts_on_a_full_disk() -> None:
    """Restarts on a full disk do not give the reserve's space to publishers.

    Only the unused part of one reserve step, which the ledgers had begun to use, may be lost.
    """
    disk = MemoryDisk(capacity_bytes=8 * MIB)
    harness = BrokerHarness(disk)
    harness.consumer("t", "c")
    fill(harness)
    (path,) = [path for path in disk.paths() if path.endswith("reserve")]
    reserved = len(disk.data(path))
    for _ in range(3):
        harness.crash()
        for number in range(8):
            harness.consumer(f"t{number}", "c")
            for _ in range(100):
                harness.connect().say(commands.pub("t", b"x" * 2000))
    stored = sum(len(disk.data(path)) for path in disk.paths() if path.endswith(".log"))
    assert 0.9 * MIB < reserved <= MIB
    assert stored < 8 * MIB - reserved + 128 * KIB


def test_a_topic_can_be_deleted_on_a_full_disk() -> None:
    """Deleting a topic on a full disk frees its space, and its name can be used again."""
    harness = BrokerHarness(MemoryDisk(capacity_bytes=8 * MIB))
    harness.consumer("t", "c")
    first = fill(harness)

    harness.broker.delete_topic("t", harness.clock.now())
    harness.turn()

    harness.consumer("t", "c")
    assert fill(harness) > first * 0.9
