"""The fakes: a disk that loses unsynced data and fails on request, and a clock set by hand."""

import errno

import pytest

from sparq.log.disk import DiskError
from sparq.testing import Fault, ManualClock, MemoryDisk, PowerCut


def folder() -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_directory("/d")
    disk.sync_directory("")
    return disk


def test_power_cut_keeps_what_was_synced_and_any_of_the_rest() -> None:
    """Over 60 seeds: synced sectors always survive, others sometimes; no other data appears."""
    disk = folder()
    file = disk.create("/d/x")
    file.append([b"a" * 1024], 0)
    file.sync()
    disk.sync_directory("/d")
    file.append([b"b" * 1024], 1024)
    seen = {bytes(disk.crash(seed).data("/d/x")) for seed in range(60)}

    synced, sector, nothing = b"a" * 1024, b"b" * 512, bytes(512)
    assert {synced, synced + sector * 2, synced + nothing + sector} <= seen
    assert all(content.startswith(synced) and len(content) in (1024, 2048) for content in seen)


def test_names_need_a_sync_of_their_folder() -> None:
    """A power cut may remove a synced file, or undo a rename, until the folder is synced."""
    disk = folder()
    disk.create("/d/x").sync()
    assert {tuple(disk.crash(seed).paths()) for seed in range(20)} == {(), ("/d/x",)}
    disk.sync_directory("/d")
    disk.rename("/d/x", "/d/y")
    assert {tuple(disk.crash(seed).paths()) for seed in range(20)} == {("/d/x",), ("/d/y",)}
    disk.unlink("/d/y")
    disk.sync_directory("/d")
    assert disk.crash(1).paths() == []


def test_failed_sync_is_a_trap() -> None:
    """After a failed sync the next one succeeds, but the data is still not on the disk."""
    disk = folder()
    file = disk.create("/d/x")
    file.sync()
    disk.sync_directory("/d")
    file.append([b"lost"], 0)
    assert [] == disk.forgotten()
    disk.fail(Fault(1, errno.EIO, frozenset({"sync"})))
    with pytest.raises(DiskError):
        file.sync()
    file.sync()

    assert file.pread(9, 0) == b"lost"
    assert ["/d/x"] == disk.forgotten()
    assert all(b"lost" not in disk.crash(seed).data("/d/x") for seed in range(20))


def test_faults_come_when_told() -> None:
    """A fault hits the Nth operation of a kind, `times` times; a failed write may write a part."""
    disk = folder()
    file = disk.create("/d/x")
    disk.fail(Fault(2, errno.ENOSPC, frozenset({"write", "truncate"}), times=2, part=0.5))
    file.append([b"good"], 0)
    with pytest.raises(DiskError) as caught:
        file.append([b"half"], 4)
    assert (caught.value.restored, bytes(disk.data("/d/x"))) == (False, b"goodha")
    file.append([b"!!"], 4)
    assert bytes(disk.data("/d/x")) == b"good!!"
    disk.fail(Fault(1, None))
    for _ in range(2):
        with pytest.raises(PowerCut):
            file.sync()
    assert 2 == disk.failed_count


def test_capacity() -> None:
    """A full disk refuses whole writes, and accepts them after another file was truncated."""
    disk = MemoryDisk(capacity_bytes=1_000)
    disk.make_directory("/d")
    one, two = disk.create("/d/1"), disk.create("/d/2")
    one.reserve(900)
    with pytest.raises(DiskError, match="no space left on device"):
        two.append([b"x" * 200], 0)
    assert (two.size(), disk.free_bytes("/d"), disk.failed_count) == (0, 100, 1)
    one.truncate(100)
    two.append([b"x" * 200], 0)


def test_errors_of_a_disk() -> None:
    """Operations that fail on a real disk raise DiskError."""
    disk = folder()
    disk.create("/d/x")
    held = disk.lock("/d/lock")
    refused = [
        lambda: disk.create("/d/x"),
        lambda: disk.create("/nowhere/x"),
        lambda: disk.open("/d/y"),
        lambda: disk.listdir("/nowhere"),
        lambda: disk.unlink("/d/y"),
        lambda: disk.rename("/d/y", "/d/z"),
        lambda: disk.remove_directory("/d"),
        lambda: disk.lock("/d/lock"),
    ]
    for call in refused:
        with pytest.raises(DiskError):
            call()
    held.close()
    disk.lock("/d/lock")
    disk.make_directory("/a/b")
    disk.remove_directory("/a/b")
    assert disk.listdir("/d") == ["lock", "x"]


def test_clock_stands_still() -> None:
    """Time passes only with `advance`; the wall clock can be set to any value."""
    clock = ManualClock(wall_ns=100, mono_ns=7)
    assert clock.now() == (100, 7)
    assert clock.advance(5) == (105, 12)
    clock.wall_ns = 3
    assert clock.now() == (3, 12)


def test_all_of_a_disk_can_be_synced_at_once() -> None:
    """After syncfs a power cut loses nothing; after a failed one all unsynced data is lost."""
    disk = MemoryDisk()
    disk.make_directory("/a")
    file = disk.create("/a/f")
    file.append([b"one"], 0)
    whole = disk.file_system("/a")
    assert whole.covers("/a")
    assert not whole.covers("/b")
    whole.sync()
    for seed in range(9):
        assert disk.crash(seed).data("/a/f") == b"one"
    file.append([b"two"], 3)
    disk.fail(Fault(1, operations=frozenset({"syncfs"})))
    with pytest.raises(DiskError, match="syncfs /a"):
        whole.sync()
    whole.sync()
    assert disk.forgotten() == ["/a/f"]
    assert all(b"two" not in disk.crash(seed).data("/a/f") for seed in range(9))
