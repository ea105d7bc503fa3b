"""The real disk: file permissions, error messages, incomplete reads and writes."""

import errno
import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparq.log.disk import (
    PAGE_BYTES,
    PAGE_TRIES,
    WRITE_AGAIN_BYTES,
    DiskError,
    ReadOnlyDisk,
    RealDisk,
    ensure_directory,
    read_bytes,
    write_again,
)
from sparq.nsqd.open_files import CachingDisk
from sparq.testing import MemoryDisk, MemoryFile


@pytest.fixture(params=["any number of files", "one file at a time"])
def disk(request: pytest.FixtureRequest) -> RealDisk:
    return RealDisk() if request.param == "any number of files" else CachingDisk(1)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_and_folders(disk: RealDisk, tmp_path: Path) -> None:
    """Each operation works as the log uses it; only the owner has access."""
    folder = tmp_path / "a" / "b"
    ensure_directory(disk, str(folder))
    ensure_directory(disk, str(folder))
    file = disk.create(f"{folder}/x")
    file.append([b"one", bytearray(b"two"), memoryview(b"three")], 0)
    file.append([b"four"], 11)
    file.sync()
    assert (file.pread(5, 3), file.pread(99, 11), file.size()) == (b"twoth", b"four", 15)
    file.truncate(3)
    file.reserve(4096)
    assert (file.size(), file.path) == (4096, f"{folder}/x")
    file.close()
    file.close()
    disk.rename(f"{folder}/x", f"{folder}/y")
    disk.sync_directory(str(folder))
    assert (disk.listdir(str(folder)), disk.exists(f"{folder}/x")) == (["y"], False)
    assert (mode(folder), mode(folder / "y")) == (0o700, 0o600)
    assert disk.free_bytes(str(folder)) > 0
    disk.unlink(f"{folder}/y")
    disk.remove_directory(str(folder))
    assert not folder.exists()


def test_every_failure_is_a_disk_error(disk: RealDisk, tmp_path: Path) -> None:
    """Every operating system error is a DiskError that names the operation, path and reason."""
    gone = f"{tmp_path}/gone/x"
    calls = [
        ("open", disk.open),
        ("create", disk.create),
        ("list", disk.listdir),
        ("unlink", disk.unlink),
        ("rmdir", disk.remove_directory),
        ("sync", disk.sync_directory),
        ("stat", disk.free_bytes),
        ("lock", disk.lock),
        ("rename", lambda path: disk.rename(path, path + "y")),
    ]
    for operation, call in calls:
        with pytest.raises(DiskError) as caught:
            call(gone)
        assert str(caught.value) == f"{operation} {gone}: no such file or directory"
        assert caught.value.is_missing
        assert not caught.value.is_full
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match=r"mkdir .*: not a directory"):
        disk.make_directory(f"{tmp_path}/file/x")


def test_operations_on_a_closed_file_raise_disk_error(disk: RealDisk, tmp_path: Path) -> None:
    """A closed file refuses each operation by name; a write that was not undone says so."""
    file = disk.create(f"{tmp_path}/x")
    file.close()
    calls = [
        ("write", lambda: file.append([b"x"], 0)),
        ("read", lambda: file.pread(1, 0)),
        ("sync", file.sync),
        ("truncate", lambda: file.truncate(0)),
        ("reserve", lambda: file.reserve(8)),
        ("stat", file.size),
    ]
    for operation, call in calls:
        with pytest.raises(DiskError, match=f"{operation} .*: bad file descriptor") as caught:
            call()
        assert caught.value.restored == (operation != "write")


def test_a_locked_folder_that_moves_is_used_and_reported(disk: RealDisk, tmp_path: Path) -> None:
    """Its files are found through the lock wherever it is, but it is no longer in its place."""
    place, elsewhere, beside = tmp_path / "data", tmp_path / "elsewhere", tmp_path / "data-2"
    place.mkdir()
    held = disk.lock(str(place))
    disk.keep_to(held)
    disk.check_place(str(place))
    disk.check_place(str(beside))
    place.rename(elsewhere)
    beside.mkdir()

    disk.make_directory(f"{place}/topics")
    disk.make_directory(f"{place}/topics")
    disk.create(f"{place}/topics/x").close()
    disk.create(f"{beside}/y").close()

    assert ["topics"] == disk.listdir(str(place))
    assert (elsewhere / "topics" / "x").exists()
    assert (beside / "y").exists()
    with pytest.raises(DiskError, match=r"mkdir .*: file exists"):
        disk.make_directory(f"{place}/topics/x")
    with pytest.raises(DiskError, match=r"find .*: the data path was moved, deleted or replaced"):
        disk.check_place(str(place))
    held.close()


def test_freed_space_is_awaited_without_an_error(disk: RealDisk, tmp_path: Path) -> None:
    """`settle` waits for the file system of a folder; a folder that is gone costs nothing."""
    disk.settle(str(tmp_path))
    disk.settle(f"{tmp_path}/missing")


def test_links_are_not_followed(disk: RealDisk, tmp_path: Path) -> None:
    """Opening a symbolic link fails: no file outside the data path is changed."""
    (tmp_path / "target").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "target")

    with pytest.raises(DiskError, match="too many levels of symbolic links"):
        disk.open(f"{tmp_path}/link")


def test_second_lock_on_a_data_path_fails(disk: RealDisk, tmp_path: Path) -> None:
    """A second lock on the same data path fails."""
    held = disk.lock(f"{tmp_path}/lock")
    with pytest.raises(DiskError, match=r"lock .*: resource temporarily unavailable"):
        disk.lock(f"{tmp_path}/lock")
    held.close()
    disk.lock(f"{tmp_path}/lock").close()


@pytest.fixture
def small_files() -> Iterator[int]:
    """Limit files to 10,000 bytes: for a write this is like a full disk."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, old[1]))
    yield 10_000
    resource.setrlimit(resource.RLIMIT_FSIZE, old)


@pytest.mark.parametrize("pieces", [1, 3])
def test_partial_write_is_undone(
    disk: RealDisk, tmp_path: Path, small_files: int, pieces: int
) -> None:
    """A write that is only partly possible is undone, and its error gives the reason."""
    file = disk.create(f"{tmp_path}/x")
    file.append([b"a" * 6_000], 0)
    with pytest.raises(DiskError) as caught:
        file.append([b"b" * 3_000] * pieces + [b"c" * 4_000], 6_000)

    assert (caught.value.is_full, caught.value.restored) == (True, True)
    assert caught.value.reason == "file too large"
    assert file.size() == 6_000
    file.close()


def test_short_write_is_continued(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short write is continued; a write of 0 bytes is an error."""
    file = disk.create(f"{tmp_path}/x")
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, bytes(data)[:7], at))
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: real(fd, b"".join(parts)[:3], at))
    file.append([b"0123456789abcdef"], 0)
    file.append([b"0123456789", b"abcdef"], 16)
    assert file.pread(99, 0) == b"0123456789abcdef" * 2
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    with pytest.raises(DiskError, match="input/output error"):
        file.append([b"x"], 32)
    file.close()


def test_short_read_is_continued(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read returns fewer bytes than requested only at the end of the file."""
    file = disk.create(f"{tmp_path}/x")
    file.append([b"0123456789"], 0)
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: real(fd, min(size, 4), at))

    assert (file.pread(10, 0), file.pread(50, 6)) == (b"0123456789", b"6789")
    file.close()


def test_a_read_only_disk_refuses_every_change(tmp_path: Path) -> None:
    """ReadOnlyDisk reads files and refuses every change."""
    path = str(tmp_path / "file")
    (tmp_path / "file").write_bytes(b"content")
    disk = ReadOnlyDisk()
    file = disk.open(path)
    assert b"content" == file.pread(100, 0)

    for change in (
        lambda: file.append([b"x"], 7),
        lambda: file.truncate(0),
        lambda: disk.create(path + "2"),
        lambda: disk.make_directory(path + "3"),
        lambda: disk.remove_directory(str(tmp_path)),
        lambda: disk.rename(path, path + "4"),
        lambda: disk.unlink(path),
    ):
        with pytest.raises(DiskError):
            change()

    file.close()
    disk.sync_directory(str(tmp_path))
    assert ["file"] == disk.listdir(str(tmp_path))
    assert b"content" == (tmp_path / "file").read_bytes()


def test_file_system_is_none_if_its_sync_may_hide_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`file_system` is None for file systems whose sync may hide errors, and for old kernels.

    It is None for missing directories, too. Their files are synced one by one.
    """
    disk = RealDisk()
    assert disk.file_system("/proc") is None
    assert disk.file_system(str(tmp_path / "missing")) is None

    class Old:
        release = "5.10.0-21-amd64"

    monkeypatch.setattr(os, "uname", Old)
    assert disk.file_system(str(tmp_path)) is None


def test_covers_is_false_on_another_file_system(tmp_path: Path) -> None:
    """`covers` is false for a path on another file system.

    A topic's directory may be a separate mount, and needs its own sync.
    """
    opened = RealDisk().file_system(str(tmp_path))
    if opened is None:
        pytest.skip("needs a temporary folder on ext4, XFS or btrfs, and Linux 5.17")
    assert opened.covers(str(tmp_path))
    assert not opened.covers("/proc")
    assert not opened.covers(str(tmp_path / "missing"))
    opened.sync()
    opened.close()


PATH = "/file"


class BadPages:
    """Makes reads of some pages of a file fail.

    Attributes:
        pages: their numbers.
        failures: the number of failing reads left; None: all fail.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: str, *pages: int) -> None:
        self.pages = pages
        self.failures: int | None = None
        self.number = errno.EIO
        read = MemoryFile.pread

        def pread(file: MemoryFile, size: int, offset: int) -> bytes:
            end = min(offset + size, file.size())
            if file.path == path and any(self._is_hit(page, offset, end) for page in self.pages):
                raise DiskError("read", path, self.number)
            return read(file, size, offset)

        monkeypatch.setattr(MemoryFile, "pread", pread)

    def _is_hit(self, page: int, offset: int, end: int) -> bool:
        if self.failures == 0 or not offset < (page + 1) * PAGE_BYTES or end <= page * PAGE_BYTES:
            return False
        if self.failures is not None:
            self.failures -= 1
        return True


def file_of(size: int) -> MemoryFile:
    """A file of this size without zeros."""
    file = MemoryDisk().create(PATH)
    assert isinstance(file, MemoryFile)
    file.append([b"\xff" * size], 0)
    return file


@pytest.mark.parametrize("offset", [0, PAGE_BYTES, PAGE_BYTES + 512, 3 * PAGE_BYTES - 8])
def test_only_the_bad_page_is_read_as_zeros(offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of the pages before and after it are read, wherever the read begins."""
    file = file_of(10 * PAGE_BYTES)
    BadPages(monkeypatch, PATH, 3)

    found = read_bytes(file, 8 * PAGE_BYTES, offset)

    zeros = [at + offset for at, byte in enumerate(found) if not byte]
    assert list(range(3 * PAGE_BYTES, 4 * PAGE_BYTES)) == zeros
    assert min(8 * PAGE_BYTES, 10 * PAGE_BYTES - offset) == len(found)


def test_a_passing_error_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is tried several times before it counts as bad."""
    file = file_of(3 * PAGE_BYTES)
    BadPages(monkeypatch, PATH, 1).failures = PAGE_TRIES

    assert b"\xff" * (3 * PAGE_BYTES) == read_bytes(file, 3 * PAGE_BYTES, 0)


def test_other_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only EIO stands for a bad page."""
    file = file_of(3 * PAGE_BYTES)
    BadPages(monkeypatch, PATH, 1).number = errno.EACCES

    for call in (lambda: read_bytes(file, 3 * PAGE_BYTES, 0), lambda: write_again(file, 0)):
        with pytest.raises(DiskError, match="permission denied"):
            call()


def test_all_readable_pages_are_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages next to a bad one are rewritten, too: only then a sync reports their loss."""
    size = 3 * WRITE_AGAIN_BYTES + 100
    file = file_of(size)
    written: list[tuple[int, int]] = []
    monkeypatch.setattr(
        MemoryFile, "overwrite", lambda _, data, at: written.append((at, at + len(data)))
    )
    bad = WRITE_AGAIN_BYTES // PAGE_BYTES + 4
    BadPages(monkeypatch, PATH, bad)

    assert write_again(file, 8)

    places = {at for begin, end in written for at in range(begin, end)}
    assert set(range(8, size)) - places == set(range(bad * PAGE_BYTES, (bad + 1) * PAGE_BYTES))
    assert max(places) == size - 1
