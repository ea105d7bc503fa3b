"""A limit on open files: those closed to keep it are opened again, and no data is lost."""

import contextlib
import errno
import os
import resource
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from sparq.log.disk import DiskError, RealFile
from sparq.nsqd.open_files import (
    SYNCS,
    CachedFile,
    CachedFileSystem,
    CachingDisk,
    DurationCounts,
)


def open_count() -> int:
    """The number of files that this process has open."""
    return len(os.listdir("/proc/self/fd"))


def run_in_own_process(test: Callable[[Path], None], folder: Path) -> None:
    """Run a test in a separate process, which may run out of files.

    In the main test process, other threads would run out of files, too: Py4J's, which accepts
    connections for Spark's `foreachBatch`, would end for good, and later queries would hang.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        process.submit(test, folder).result()


def open_the_last_file() -> None:
    """Lower the limit on open files and use it up: this process cannot open another file."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
    with contextlib.suppress(OSError):
        while True:
            os.open("/dev/null", os.O_RDONLY)


def create_files(disk: CachingDisk, folder: Path, count: int) -> list[CachedFile]:
    return [disk.create(f"{folder}/{number}") for number in range(count)]


def test_open_files_stay_within_the_limit(tmp_path: Path) -> None:
    """At most 3 of 20 files are open; all can be written, read, synced, cut and reserved."""
    disk = CachingDisk(3)
    before = open_count()
    files = create_files(disk, tmp_path, 20)
    for round_number in range(3):
        for file in files:
            file.append([b"%d" % round_number], round_number)
            file.sync()
            assert open_count() - before <= 3

    assert [b"012"] * 20 == [file.pread(9, 0) for file in files]
    for file in files:
        file.truncate(1)
        file.reserve(2)
    assert [2] * 20 == [file.size() for file in files]
    assert 3 == len(disk._by_use) == open_count() - before
    for file in files:
        file.close()
    assert 0 == len(disk._by_use) == open_count() - before


def test_recently_used_files_stay_open(tmp_path: Path) -> None:
    """A file that is used all the time is never closed and reopened."""
    disk = CachingDisk(2)
    busy, *others = create_files(disk, tmp_path, 5)
    for file in (busy, *others):
        file.sync()
    busy.size()
    opened = busy.opened
    for other in others:
        busy.append([b"x"], busy.size())
        busy.sync()
        other.append([b"x"], 0)
        other.sync()

    assert busy.opened is opened
    assert 2 == len(disk._by_use)


def test_synced_files_are_closed_before_unsynced_ones(tmp_path: Path) -> None:
    """A synced file is closed before an unsynced one, even if it was used more recently."""
    disk = CachingDisk(2)
    dirty, clean = create_files(disk, tmp_path, 2)
    dirty.append([b"x"], 0)
    clean.append([b"x"], 0)
    clean.sync()

    disk.create(f"{tmp_path}/one more")

    assert dirty.opened is not None
    assert clean.opened is None


def test_an_unsynced_file_is_synced_before_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing syncs a file; its next sync does nothing, or raises once if that one failed."""
    disk = CachingDisk(1)
    synced: list[str] = []
    fails = False

    def sync(file: RealFile) -> None:
        synced.append(file.path)
        if fails:
            raise DiskError("sync", file.path, errno.EIO)

    monkeypatch.setattr(RealFile, "sync", sync)
    first = disk.create(f"{tmp_path}/1")
    first.append([b"x"], 0)
    second = disk.create(f"{tmp_path}/2")
    first.sync()
    assert [first.path] == synced

    first.append([b"y"], 1)
    synced.clear()
    fails = True
    second.append([b"x"], 0)
    assert [first.path] == synced
    fails = False
    with pytest.raises(DiskError) as caught:
        first.sync()
    assert ("sync", errno.EIO) == (caught.value.operation, caught.value.number)
    first.sync()
    assert b"xy" == first.pread(9, 0)


def test_data_of_a_killed_process_is_synced_by_the_next_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An existing file that was closed before its first sync is synced by its next sync."""
    disk = CachingDisk(1)
    synced: list[str] = []
    monkeypatch.setattr(RealFile, "sync", lambda file: synced.append(file.path))
    for name in ("found", "other"):
        (tmp_path / name).write_bytes(b"unsynced")
    found = disk.open(f"{tmp_path}/found")
    disk.open(f"{tmp_path}/other").size()
    found.sync()

    assert found.path in synced


def test_a_replaced_file_is_not_touched(tmp_path: Path) -> None:
    """A file replaced while it was closed raises ESTALE; the new file is not touched."""
    disk = CachingDisk(1)
    first, _second = create_files(disk, tmp_path, 2)
    os.rename(first.path, f"{tmp_path}/elsewhere")
    Path(first.path).write_bytes(b"another")

    for use in (lambda: first.append([b"x"], 0), lambda: first.pread(1, 0), first.size):
        with pytest.raises(DiskError) as caught:
            use()
        assert errno.ESTALE == caught.value.number
    assert b"another" == Path(first.path).read_bytes()


def test_a_closed_file_stays_closed(tmp_path: Path) -> None:
    """Using a closed file raises EBADF; closing it twice is allowed."""
    disk = CachingDisk(1)
    file = disk.create(f"{tmp_path}/1")
    file.close()
    file.close()

    for use in (lambda: file.append([b"x"], 0), file.sync, file.size):
        with pytest.raises(DiskError) as caught:
            use()
        assert errno.EBADF == caught.value.number


def test_without_free_descriptors_a_kept_file_is_closed(tmp_path: Path) -> None:
    """Creating files, and syncing and listing a folder, work with two files left to open."""
    run_in_own_process(use_files_with_two_descriptors, tmp_path)


def use_files_with_two_descriptors(folder: Path) -> None:
    open_the_last_file()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    disk = CachingDisk()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft + 2, hard))
    files = create_files(disk, folder, 4)
    for file in files:
        file.append([b"x"], 0)
        file.sync()
    disk.sync_directory(str(folder))

    assert ["0", "1", "2", "3"] == disk.listdir(str(folder))
    assert 2 >= len(disk._by_use)


def test_without_files_to_close_the_systems_error_is_raised(tmp_path: Path) -> None:
    """If no file can be opened, DiskError has EMFILE: too many open files."""
    run_in_own_process(use_files_without_descriptors, tmp_path)


def use_files_without_descriptors(folder: Path) -> None:
    open_the_last_file()
    disk = CachingDisk()
    for attempt in (
        lambda: disk.create(f"{folder}/1"),
        lambda: disk.sync_directory(str(folder)),
    ):
        with pytest.raises(DiskError) as caught:
            attempt()
        assert errno.EMFILE == caught.value.number
        assert "too many open files" in str(caught.value)


def test_threads_share_few_files(tmp_path: Path) -> None:
    """Appends, reads and syncs of six threads work, though only two files may be open."""
    disk = CachingDisk(2)
    files = create_files(disk, tmp_path, 6)
    wrong: list[BaseException] = []

    def work(file: CachedFile) -> None:
        try:
            for number in range(200):
                file.append([b"%03d" % number], 3 * number)
                assert b"%03d" % number == file.pread(3, 3 * number)
                if number % 10 == 0:
                    file.sync()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(file,)) for file in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [] == wrong
    assert [600] * 6 == [file.size() for file in files]
    assert 2 == len(disk._by_use)


def test_files_closed_before_a_file_system_sync_are_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sync of the file system covers files closed to keep the limit.

    Files that are written after it are synced one by one again.
    """
    disk = CachingDisk(1)
    file_system = disk.file_system(str(tmp_path))
    if file_system is None:
        pytest.skip("needs a temporary folder whose file system is synced as a whole")
    syncs: list[int] = []
    monkeypatch.setattr(os, "fdatasync", syncs.append)
    files = [disk.create(f"{tmp_path}/{number}") for number in range(4)]
    for file in files:
        file.append([b"x"], 0)
    assert not syncs

    file_system.sync()
    file_system.close()

    assert not syncs
    assert not files[-1].dirty
    files[0].append([b"y"], 1)
    files[1].append([b"y"], 1)
    assert len(syncs) == 1


class FailingFileSystem:
    """A file system whose sync fails."""

    def covers(self, _folder: str) -> bool:
        return True

    def sync(self) -> None:
        raise DiskError("sync", "/", errno.EIO)

    def close(self) -> None:
        pass


def test_after_a_failed_sync_of_the_file_system_each_file_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is raised; the next sync of each file, open or closed, syncs that file."""
    disk = CachingDisk(2)
    file_system = CachedFileSystem(disk, FailingFileSystem())
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(os.fstat(fd).st_ino))
    files = create_files(disk, tmp_path, 4)
    for file in files:
        file.append([b"x"], 0)
    assert [False, False, True, True] == [file.opened is not None for file in files]

    with pytest.raises(DiskError) as caught:
        file_system.sync()
    file_system.close()
    assert ("sync", errno.EIO) == (caught.value.operation, caught.value.number)
    assert [] == synced
    for file in files:
        file.sync()

    assert {os.stat(file.path).st_ino for file in files} == set(synced)
    assert 4 == len(synced)


def test_a_duration_is_counted_up_to_its_bound() -> None:
    """A bound belongs to its bucket; the last count is for durations above all bounds."""
    counts = DurationCounts("a_seconds", "Help")
    for seconds in (0.0, 0.0001, 0.00011, 5.0, 5.1, 100.0):
        counts.observe(seconds)

    assert [2, 1] == counts.counts[:2]
    assert [1, 2] == counts.counts[-2:]
    assert len(counts.bounds) + 1 == len(counts.counts)
    assert 6 == sum(counts.counts)
    assert 110.10021 == pytest.approx(counts.total)


def test_syncs_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sync is counted, even one that fails, because it may take the longest."""
    before = sum(SYNCS.counts)
    disk = CachingDisk()
    file = disk.create(str(tmp_path / "file"))
    file.append([b"x"], 0)
    file.sync()
    assert 1 == sum(SYNCS.counts) - before

    def refuse(self: RealFile) -> None:
        raise DiskError("sync", self.path, 5)

    with monkeypatch.context() as patch:
        patch.setattr(RealFile, "sync", refuse)
        file.append([b"y"], 1)
        with pytest.raises(DiskError):
            file.sync()
    assert 2 == sum(SYNCS.counts) - before
    file.close()
