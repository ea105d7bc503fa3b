"""Health when the disk fails, and detection of free space after a full disk."""

from __future__ import annotations

import errno

import pytest

from sparq.broker.health import Health, Trouble
from sparq.log.disk import DiskError
from sparq.log.log import CLOCK_TEXT, USED_UP_TEXT
from sparq.protocol import commands
from sparq.protocol.instant import CLOCK_END_NS
from sparq.testing import Fault, MemoryDisk
from tests.broker.harness import BrokerHarness


def test_a_lasting_failure_is_logged_once() -> None:
    """A lasting failure is logged once, and health gives its reason."""
    health = Health()
    full = DiskError("write", "/x", errno.ENOSPC)
    health.fail(Trouble.PUBLISH, "t", "first", full)
    health.fail(Trouble.PUBLISH, "t", "second", full)
    health.fail(Trouble.PUBLISH, "u", "third", full)

    assert health.notes == ["first"]
    assert health.text(None) == "NOK - no space left on device"
    health.recover(Trouble.PUBLISH, "t")
    assert health.is_full
    health.recover(Trouble.PUBLISH, "u")
    assert (health.text(None), health.is_full) == ("OK", False)


def test_a_failure_lasts_until_the_same_operation_succeeds() -> None:
    """A ledger or another topic that can be written does not hide that publishes are refused."""
    harness = BrokerHarness()
    harness.consumer("t", "c", rdy=9)
    harness.publish("t", b"x")
    producer = harness.connect()
    harness.disk.fail(Fault(1, errno.EIO, frozenset({"sync"}), times=10**6))
    producer.say(commands.pub("t", b"y"))
    assert producer.answers() == [b"E_PUB_FAILED PUB failed input/output error"]
    client = harness.clients[0]
    client.say(commands.fin(client.messages()[0].id))
    producer.say(commands.pub("e#ephemeral", b"z"))
    harness.pass_time(9)

    assert harness.broker.health() == "NOK - input/output error"


def test_a_publish_refused_between_probes_keeps_health_bad() -> None:
    """Health stays bad while publishers are refused, even if probes of the disk succeed."""
    health = Health()
    error = DiskError("sync", "/x", errno.EIO)
    for _ in range(5):
        health.fail(Trouble.PUBLISH, "t", "refused", error)
        health.probed()
    assert health.text(None) == "NOK - input/output error"
    health.probed()
    assert health.text(None) == "OK"


YEAR_2070_NS = 3_155_760_000 * 10**9
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
    for _ in range(2):
        harness.pass_time(1.1)

    assert harness.broker.health() == "OK"
    assert "the disk has space again" in harness.broker.notes


@pytest.mark.behaviour("TestSetHealth")
def test_health_recovers_with_a_publish_or_after_probes_of_the_disk() -> None:
    """A publish that is stored ends a failure at once; without publishers, the disk is probed."""
    harness = BrokerHarness()
    harness.consumer("t", "c")
    producer = harness.connect()
    for recovers in (lambda: harness.publish("t", b"y"), lambda: harness.pass_time(1.1)):
        harness.disk.fail(Fault(1, errno.EIO, frozenset({"write"}), times=1))
        producer.say(commands.pub("t", b"x"))
        assert producer.answers() == [b"E_PUB_FAILED PUB failed input/output error"]
        harness.disk.fail(Fault(1, errno.EIO, frozenset({"sync"}), times=10**6))
        harness.pass_time(5)
        assert harness.broker.health() == "NOK - input/output error"
        harness.disk.fault = None
        harness.pass_time(1.1)
        assert harness.broker.health() == "NOK - input/output error"

        recovers()

        assert harness.broker.health() == "OK"
    assert "the disk works again" in harness.broker.notes


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


@pytest.mark.parametrize("wrong_at_start", [False, True])
def test_a_clock_past_the_last_message_id_refuses_publishes(*, wrong_at_start: bool) -> None:
    """A wall clock past July 2061 refuses publishes with one reason, and fails health.

    Consumers continue. Once the clock is right again, publishes work, also to topics that were
    opened meanwhile.
    """
    harness = BrokerHarness()
    harness.consumer("old", "c")
    harness.publish("old", b"1")
    right_ns, harness.clock.wall_ns = harness.clock.wall_ns, YEAR_2070_NS
    if wrong_at_start:
        harness.restart()
    harness.pass_time(1.1)
    assert harness.broker.health() == f"NOK - {CLOCK_TEXT}"
    assert len([note for note in harness.broker.notes if CLOCK_TEXT in note]) == 1
    producer = harness.connect()
    for topic in ("old", "new", "memory#ephemeral"):
        producer.say(commands.pub(topic, b"2"))
        assert producer.answers() == [b"E_PUB_FAILED PUB failed " + CLOCK_TEXT.encode()]
    client = harness.consumer("old", "c", rdy=1)
    assert client.bodies() == [b"1"]
    harness.pass_time(5)
    assert harness.broker.health() == f"NOK - {CLOCK_TEXT}"

    harness.clock.wall_ns = right_ns
    harness.pass_time(1.1)
    harness.publish("old", b"3")
    harness.publish("new", b"4")
    harness.publish("memory#ephemeral", b"5")
    harness.pass_time(1.1)
    harness.pass_time(1.1)
    assert harness.broker.health() == "OK"
    harness.restart()
    assert harness.consumer("new", "c", rdy=1).bodies() == [b"4"]


def test_a_topic_whose_message_ids_have_run_out_refuses_publishes() -> None:
    """If a wrong clock has used a topic's last ids, its publishes are refused; others work."""
    harness = BrokerHarness()
    right_ns, harness.clock.wall_ns = harness.clock.wall_ns, CLOCK_END_NS - 64 * 9
    harness.publish("t", *[b"x"] * 8)
    harness.clock.wall_ns = right_ns
    producer = harness.connect()
    producer.say(commands.mpub("t", [b"y"] * 9))
    assert producer.answers() == [b"E_MPUB_FAILED MPUB failed " + USED_UP_TEXT.encode()]
    assert harness.consumer("t", "c", rdy=9).bodies() == [b"x"] * 8
    harness.publish("u", b"z")
