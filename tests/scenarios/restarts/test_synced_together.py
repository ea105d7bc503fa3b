"""A start with many topics syncs their files with one syncfs, as safely as file by file."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sparq.broker.broker import Broker
from sparq.broker.options import BrokerOptions
from sparq.log.disk import DiskError, RealDisk
from sparq.nsqd.open_files import CachingDisk
from sparq.protocol import commands
from sparq.testing import Fault, ManualClock, MemoryDisk, PowerCut
from tests.broker.harness import BrokerHarness
from tests.support.open_files import files_closed_below

TOPICS = 70
SYNCS = frozenset({"sync", "syncdir"})


def killed_broker(disk: MemoryDisk | None = None) -> BrokerHarness:
    """A broker that was killed when each topic had an unsynced message."""
    harness = BrokerHarness(disk, sync_every=2500)
    client = harness.connect()
    for number in range(TOPICS):
        client.say(commands.pub(f"t{number}", b"%d" % number))
        harness.broker.create_channel(f"t{number}", "c", harness.clock.now())
    harness.turn()
    harness.disk.killed()
    harness.disk.trace.clear()
    return harness


def bodies(harness: BrokerHarness) -> list[list[bytes]]:
    """Consume all messages of each topic."""
    return [harness.consumer(f"t{number}", "c", rdy=10).bodies() for number in range(TOPICS)]


EACH: list[list[bytes]] = [[b"%d" % number] for number in range(TOPICS)]


def test_a_start_with_many_topics_syncs_them_at_once() -> None:
    """With 70 topics, a start calls syncfs once and syncs few files; a power cut loses nothing."""
    harness = killed_broker()

    harness.start()

    operations = [operation for operation, _ in harness.disk.trace]
    assert operations.count("syncfs") == 1
    assert sum(operation in SYNCS for operation in operations) < 10
    for seed in range(5):
        assert bodies(BrokerHarness(harness.disk.crash(seed), sync_every=2500)) == EACH


def test_a_start_with_few_topics_does_not_call_syncfs() -> None:
    """A start with few topics syncs their files one by one: syncfs waits for other programs too."""
    harness = BrokerHarness()
    harness.publish("t", b"x")
    harness.disk.trace.clear()

    harness.crash()

    operations = [operation for operation, _ in harness.disk.trace]
    assert "syncfs" not in operations
    assert "sync" in operations


def test_a_power_cut_during_syncfs_loses_nothing_acknowledged() -> None:
    """A power cut during syncfs loses no acknowledged message."""
    harness = killed_broker()
    harness.start(sync_every=1)
    client = harness.connect()
    client.say(b"".join(commands.pub(f"t{number}", b"more") for number in range(TOPICS)))
    assert client.answers() == [b"OK"] * TOPICS
    harness.disk.killed()
    harness.disk.fail(Fault(1, None, frozenset({"syncfs"})))
    with pytest.raises(PowerCut):
        harness.start()

    for seed in range(5):
        found = bodies(BrokerHarness(harness.disk.crash(seed)))
        assert found == [[b"%d" % number, b"more"] for number in range(TOPICS)]


class PartlyBad(MemoryDisk):
    """A disk on which some syncs fail."""

    bad: tuple[tuple[str, str], ...] = ()

    def step(self, operation: str, path: str) -> None:
        """Raise DiskError for the configured operations and parts of paths."""
        super().step(operation, path)
        if any(operation == bad and part in path for bad, part in self.bad):
            raise DiskError(operation, path, errno.EIO)


def test_each_topic_is_synced_alone_if_syncfs_fails() -> None:
    """If syncfs fails, all files are rewritten and synced topic by topic, and nothing is lost.

    After a failed sync the kernel treats lost data as written.
    """
    disk = PartlyBad()
    harness = killed_broker(disk)
    disk.bad = (("syncfs", ""),)

    harness.start()

    assert not [path for path in disk.forgotten() if "/topics/" in path]
    assert [line for line in harness.report if "one by one" in line]
    for seed in range(5):
        assert bodies(BrokerHarness(disk.crash(seed), sync_every=2500)) == EACH


def test_only_the_topic_that_cannot_be_synced_is_refused() -> None:
    """If a single topic's log cannot be synced, only that topic is refused.

    A topic whose ledger cannot be synced writes a checkpoint; all others work as usual.
    """
    disk = PartlyBad()
    harness = killed_broker(disk)
    disk.bad = (("syncfs", ""), ("sync", "/t-t7/000"), ("sync", "/t-t9/ledger"))

    harness.broker = Broker(harness.options, disk, "/data", harness.clock.now(), seed=1)
    report = harness.broker.load(harness.clock.now())

    left_alone = [line for line in harness.broker.notes if "left alone" in line]
    assert len(left_alone) == 1
    assert left_alone[0].startswith("topic t7 cannot be opened")
    assert [line for line in report if line.startswith("topic t9: sync ")]
    assert len(report) == 2
    assert set(harness.broker.topics) == {f"t{number}" for number in range(TOPICS)} - {"t7"}
    disk.bad = ()
    harness.turn()
    for seed in range(5):
        after = BrokerHarness(disk.crash(seed), sync_every=2500)
        assert after.consumer("t9", "c", rdy=10).bodies() == [b"9"]


def test_a_start_on_a_real_disk_syncs_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start with 200 topics makes fewer than 10 syncs, not over 400, even with few open files."""
    opened = RealDisk().file_system(str(tmp_path))
    if opened is None:
        pytest.skip("needs a temporary folder on ext4, XFS or btrfs, and Linux 5.17")
    opened.close()
    syncs: list[int] = []
    monkeypatch.setattr(os, "fdatasync", syncs.append)
    monkeypatch.setattr(os, "fsync", syncs.append)
    clock = ManualClock()
    with files_closed_below(tmp_path):
        names = {f"t{number}" for number in range(200)}
        disk = CachingDisk(64)
        broker = Broker(BrokerOptions(), disk, str(tmp_path), clock.now())
        broker.load(clock.now())
        for name in names:
            broker.create_topic(name, clock.now())
        broker.end_turn(clock.now())
        for count_max, syncs_max in ((200, 10), (64, 10)):
            syncs.clear()
            again = Broker(BrokerOptions(), CachingDisk(count_max), str(tmp_path), clock.now())
            again.load(clock.now())
            assert set(again.topics) == names
            assert len(syncs) < syncs_max
        syncs.clear()
        one_by_one = BrokerOptions(topics_synced_together=1000)
        Broker(one_by_one, CachingDisk(200), str(tmp_path), clock.now()).load(clock.now())
        assert len(syncs) > 400
