"""The only module that touches files, and the two protocols that a fake of it must fill.

1. Every failure is a `DiskError` that says what was tried, where, and why in words.
2. A failed `append` leaves the file as long as it was, or says that it could not.
3. Files are opened without following symbolic links, are not inherited by other programs, and
   belong to their owner alone: modes 0600 and 0700.
4. What is read is read with `pread`, never through a mapping: an I/O error under a mapping would
   kill the process.
"""

import errno
import fcntl
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Final, Protocol

Buffer = bytes | bytearray | memoryview

_COMMON_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW
PAGE_BYTES: Final = 4096
PAGE_TRIES: Final = 3
"""So often a page is read before it counts as bad."""
WRITE_AGAIN_BYTES: Final = 64 << 10
_SYNCFS_KERNEL: Final = 5, 17
"""Since 5.8 syncfs reports a file's data that could not be written, since 5.17 all else, too."""
_SYNCFS_MAGICS: Final = frozenset({0xEF53, 0x58465342, 0x9123683E})
"""ext4, XFS, btrfs. An overlay does not report errors, FUSE need not sync: not relied upon."""
_STATFS_BYTES: Final = 256
_SPACE_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class DiskError(Exception):
    """An operation on the disk failed.

    Attributes:
        operation: what was tried, one word.
        path: on which file or folder.
        number: the errno.
        restored: after a failed append: whether the file has its former length again.
    """

    def __init__(self, operation: str, path: str, number: int, *, restored: bool = True) -> None:
        super().__init__(operation, path, number)
        self.operation = operation
        self.path = path
        self.number = number
        self.restored = restored

    @property
    def reason(self) -> str:
        """Why, as the operating system words it, e.g. "no space left on device"."""
        text = os.strerror(self.number)
        return text[:1].lower() + text[1:]

    @property
    def is_full(self) -> bool:
        """Whether it failed for want of space."""
        return self.number in _SPACE_ERRORS

    @property
    def is_missing(self) -> bool:
        """Whether it failed because there is no such file."""
        return self.number == errno.ENOENT

    def __str__(self) -> str:
        return f"{self.operation} {self.path}: {self.reason}"


class File(Protocol):
    """An open file. Offsets and sizes are in bytes; all methods but `close` raise DiskError."""

    @property
    def path(self) -> str:
        """Where it was opened."""

    def append(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all of the buffers at the file's end, which is `offset`, or nothing of them."""

    def overwrite(self, data: Buffer, offset: int) -> None:
        """Write bytes anywhere in the file. Where that fails nothing is cut off or taken back."""

    def pread(self, size: int, offset: int) -> bytes:
        """What is stored there: fewer bytes at the file's end."""

    def sync(self) -> None:
        """Return when what was written is on the disk."""

    def truncate(self, size: int) -> None:
        """Cut the file to this size."""

    def reserve(self, size: int) -> None:
        """Make the file this large, with space on the disk behind all of it."""

    def size(self) -> int:
        """How large it is."""

    def close(self) -> None:
        """Let go of it; never fails."""


class FileSystem(Protocol):
    """All files of one file system, to be synced at once."""

    def covers(self, folder: str) -> bool:
        """Whether the files of this folder lie on it."""

    def sync(self) -> None:
        """Return when all that was written since this was opened is on the disk.

        Raises:
            DiskError: something is not, though it may read well: each file has to be written again
                and synced by itself.
        """

    def close(self) -> None:
        """Let go of it; never fails."""


class Disk(Protocol):
    """Files and folders by path; every method raises DiskError."""

    def open(self, path: str) -> File:
        """An existing file, to read and write."""

    def create(self, path: str) -> File:
        """A new file; fails where one exists. The entry is durable after `sync_directory`."""

    def listdir(self, path: str) -> list[str]:
        """The names in a folder, sorted."""

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder."""

    def make_directory(self, path: str) -> None:
        """Make a folder, and those above it; an existing one is no error."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty folder."""

    def sync_directory(self, path: str) -> None:
        """Return when the folder's entries are on the disk."""

    def rename(self, old: str, new: str) -> None:
        """Give a file or folder another name, in place of what had it."""

    def unlink(self, path: str) -> None:
        """Delete a file."""

    def file_system(self, path: str) -> FileSystem | None:
        """The file system of this folder; None: not one that reports all errors of a sync."""

    def free_bytes(self, path: str) -> int:
        """What a user may still write on the file system of this folder."""

    def lock(self, path: str) -> File:
        """Hold a folder, or a file that is made where missing, until what is returned is closed;
        fails while another does."""


def ensure_directory(disk: Disk, path: str) -> None:
    """Have a folder that is there for good; one that is there already is taken for synced.

    Raises:
        DiskError: it cannot be made.
    """
    if not disk.exists(path):
        disk.make_directory(path)
        disk.sync_directory(os.path.dirname(path) or ".")


def write_again(file: File, start: int) -> bool:
    """Write what is in a file once more, from this offset on; whether it is to be synced then.

    A killed process may have left it in memory alone; and where a sync had failed before, the
    kernel takes it for written all the same: only what is written anew is synced. A page that
    cannot be read is left as it is. On a disk for looking only nothing happens.

    Raises:
        DiskError: it cannot be written.
    """
    try:
        for at in range(start, file.size(), WRITE_AGAIN_BYTES):
            try:
                data = file.pread(WRITE_AGAIN_BYTES, at)
            except DiskError as error:
                if error.number != errno.EIO:
                    raise
            else:
                file.overwrite(data, at)
    except DiskError as error:
        if error.number == errno.EROFS:
            return False
        # A file system that copies what it changes may have no space for the same bytes.
        if not error.is_full:
            raise
    return True


def read_bytes(file: File, size: int, offset: int) -> bytes:
    """These bytes of the file; pages that fail to be read are zeros.

    Raises:
        DiskError: for another reason than a bad page.
    """
    try:
        return file.pread(size, offset)
    except DiskError as error:
        if error.number != errno.EIO:
            raise
    places = range(offset, offset + size, PAGE_BYTES)
    return b"".join([_read_page(file, min(PAGE_BYTES, offset + size - at), at) for at in places])


def _read_page(file: File, size: int, offset: int) -> bytes:
    """These bytes, or as many zeros where they cannot be read."""
    for _ in range(PAGE_TRIES):
        try:
            return file.pread(size, offset)
        except DiskError as error:
            if error.number != errno.EIO:
                raise
    return bytes(size)


def write_all_again(
    disk: Disk,
    folder: str,
    files: Sequence[tuple[str, int]],
    file_system: FileSystem | None,
    held: File | None = None,
) -> None:
    """Bring what a start has found of a topic to the disk, before anything is built upon it.

    Of one topic file by file; of very many at once, one sync of the file system follows.

    Args:
        disk, folder: where the files are.
        files: (path, offset): from which offset on nothing tells that a file was synced.
        file_system: what the caller syncs next, if the files lie on it, which then is not done
            here; None: it does not.
        held: that of the files which is open and stays so.

    Raises:
        DiskError: they cannot be brought there: nothing may be built upon them.
    """
    together = file_system is not None and file_system.covers(folder)
    for path, start in files:
        file = held if held and held.path == path else disk.open(path)
        try:
            if write_again(file, start) and not together:
                file.sync()
        finally:
            if file is not held:
                file.close()
    if not together:
        disk.sync_directory(folder)


class _Failing:
    """Turns the error of an operation on a path into a `DiskError`."""

    def __init__(self, operation: str, path: str) -> None:
        self._operation = operation
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        if isinstance(error, OSError):
            raise DiskError(self._operation, self._path, error.errno or errno.EIO) from error


class RealFile:
    """A file descriptor with its path."""

    __slots__ = ("_fd", "path")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self.path = path

    def append(self, buffers: Sequence[Buffer], offset: int) -> None:
        """See `File`."""
        try:
            if len(buffers) == 1:
                size, written = len(buffers[0]), os.pwrite(self._fd, buffers[0], offset)
            else:
                size, written = sum(map(len, buffers)), os.pwritev(self._fd, buffers, offset)
            if written < size:
                self._go_on(b"".join(buffers), written, offset)
        except OSError as error:
            failure = DiskError("write", self.path, error.errno or errno.EIO)
            try:
                os.ftruncate(self._fd, offset)
            except OSError:
                failure.restored = False
            raise failure from error

    def overwrite(self, data: Buffer, offset: int) -> None:
        """See `File`."""
        with _Failing("write", self.path):
            self._go_on(data, 0, offset)

    def _go_on(self, data: Buffer, written: int, offset: int) -> None:
        """Write what is left of a write that was short: the next try says why it was."""
        rest = memoryview(data)
        while written < len(rest):
            count = os.pwrite(self._fd, rest[written:], offset + written)
            if not count:
                raise OSError(errno.EIO, "nothing written")
            written += count

    def pread(self, size: int, offset: int) -> bytes:
        """See `File`."""
        with _Failing("read", self.path):
            data = os.pread(self._fd, size, offset)
            while 0 < len(data) < size:
                more = os.pread(self._fd, size - len(data), offset + len(data))
                if not more:
                    break
                data += more
        return data

    def sync(self) -> None:
        """See `File`."""
        with _Failing("sync", self.path):
            os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        """See `File`."""
        with _Failing("truncate", self.path):
            os.ftruncate(self._fd, size)

    def reserve(self, size: int) -> None:
        """See `File`."""
        with _Failing("reserve", self.path):
            os.posix_fallocate(self._fd, 0, size)

    def size(self) -> int:
        """See `File`."""
        with _Failing("stat", self.path):
            return os.fstat(self._fd).st_size

    def identity(self) -> tuple[int, int]:
        """What tells this file from every other, whatever their paths."""
        with _Failing("stat", self.path):
            return (facts := os.fstat(self._fd)).st_dev, facts.st_ino

    def close(self) -> None:
        """See `File`. An error of close says nothing that a sync has not said."""
        with suppress(OSError):
            os.close(self._fd)


class RealFileSystem:
    """A descriptor of a file system, which is told of every error since it was opened."""

    def __init__(self, fd: int, path: str, syncfs: Callable[[int], int]) -> None:
        self._fd = fd
        self._path = path
        self._device = os.fstat(fd).st_dev
        self._syncfs = syncfs

    def covers(self, folder: str) -> bool:
        """See `FileSystem`."""
        try:
            return os.stat(folder).st_dev == self._device
        except OSError:
            return False

    def sync(self) -> None:
        """See `FileSystem`."""
        if self._syncfs(self._fd):
            raise DiskError("sync", self._path, import_module("ctypes").get_errno() or errno.EIO)

    def close(self) -> None:
        """See `FileSystem`."""
        os.close(self._fd)


class RealDisk:
    """The operating system's files."""

    def open(self, path: str) -> File:
        """See `Disk`."""
        return self._open("open", path, os.O_RDWR)

    def create(self, path: str) -> File:
        """See `Disk`."""
        with self._changing("create", path):
            return self._open("create", path, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def _open(self, operation: str, path: str, flags: int) -> RealFile:
        with _Failing(operation, path):
            return RealFile(os.open(path, flags | _COMMON_FLAGS, 0o600), path)

    def _changing(self, operation: str, path: str) -> _Failing:
        """What every change of a name is made in."""
        return _Failing(operation, path)

    def listdir(self, path: str) -> list[str]:
        """See `Disk`."""
        with _Failing("list", path):
            return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        """See `Disk`."""
        return os.path.lexists(path)

    def make_directory(self, path: str) -> None:
        """See `Disk`."""
        with self._changing("mkdir", path):
            os.makedirs(path, 0o700, exist_ok=True)

    def remove_directory(self, path: str) -> None:
        """See `Disk`."""
        with self._changing("rmdir", path):
            os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        """See `Disk`."""
        with _Failing("sync", path):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def rename(self, old: str, new: str) -> None:
        """See `Disk`."""
        with self._changing("rename", old):
            os.rename(old, new)

    def unlink(self, path: str) -> None:
        """See `Disk`."""
        with self._changing("unlink", path):
            os.unlink(path)

    def file_system(self, path: str) -> FileSystem | None:
        """See `Disk`."""
        release = re.match(r"(\d+)\.(\d+)", os.uname().release)
        if release is None or tuple(map(int, release.groups())) < _SYNCFS_KERNEL:
            return None
        ctypes = import_module("ctypes")  # no start waits for it before its ports are open
        libc = ctypes.CDLL(None, use_errno=True)
        facts = ctypes.create_string_buffer(_STATFS_BYTES)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return None
        has_facts = hasattr(libc, "syncfs") and libc.fstatfs(fd, facts) == 0
        if has_facts and ctypes.c_long.from_buffer(facts).value in _SYNCFS_MAGICS:  # its type
            return RealFileSystem(fd, path, libc.syncfs)
        os.close(fd)
        return None

    def free_bytes(self, path: str) -> int:
        """See `Disk`."""
        with _Failing("stat", path):
            facts = os.statvfs(path)
        return facts.f_bavail * facts.f_frsize

    def lock(self, path: str) -> RealFile:
        """See `Disk`. The lock is the kernel's: it ends with the process, whatever happens."""
        is_folder = os.path.isdir(path)
        file = self._open("lock", path, os.O_RDONLY if is_folder else os.O_RDWR | os.O_CREAT)
        try:
            with _Failing("lock", path):
                fcntl.flock(file._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except DiskError:
            file.close()
            raise
        return file


class LookingFile(RealFile):
    """A file that is only read."""

    def overwrite(self, data: Buffer, offset: int) -> None:
        """Refused."""
        raise DiskError("write", self.path, errno.EROFS)


class LookingDisk(RealDisk):
    """The operating system's files for who only looks: whatever would change one is refused."""

    def open(self, path: str) -> RealFile:
        """See `Disk`; the file cannot be written."""
        opened = self._open("open", path, os.O_RDONLY)
        return LookingFile(opened._fd, opened.path)

    def sync_directory(self, path: str) -> None:
        """Nothing was changed, so there is nothing to do."""

    def _changing(self, operation: str, path: str) -> _Failing:
        raise DiskError(operation, path, errno.EROFS)
