"""The only module that touches files, and the protocols that a fake of it must implement.

1. Every failure is a `DiskError` that says which operation failed, on which path, and why.
2. A failed `append` leaves the file at its former length, or reports that it could not.
3. Files are opened without following symbolic links, are not inherited by other programs, and are
   accessible to their owner alone: modes 0600 and 0700.
4. Files are read with `pread`, never through a mapping: an I/O error under a mapping would kill the
   process.
5. Paths in a locked folder are resolved from its descriptor (`RealDisk.keep_to`): if it is renamed,
   no file is made in another folder that has taken its name.
"""

import errno
import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Final, Protocol

Buffer = bytes | bytearray | memoryview

PAGE_BYTES: Final = 4096
RESERVE_STEP_BYTES: Final = 256 << 10
_SYNCFS_KERNEL: Final = 5, 17
"""Since 5.8 syncfs reports file data that could not be written, since 5.17 all other errors."""
_SYNCFS_MAGICS: Final = frozenset({0xEF53, 0x58465342, 0x9123683E})
"""ext4, XFS, btrfs. No others: an overlay does not report errors, and FUSE need not sync."""
MOVED: Final = "the data path was moved, deleted or replaced"
_STATFS_BYTES: Final = 256
_SPACE_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class DiskError(Exception):
    """An operation on the disk failed.

    Attributes:
        operation: what was tried, one word.
        path: the file or folder.
        number: the errno.
        restored: after a failed append: whether the file has its former length again.
        text: the reason, if the operating system's text for the errno does not say it.
    """

    def __init__(
        self, operation: str, path: str, number: int, *, restored: bool = True, text: str = ""
    ) -> None:
        super().__init__(operation, path, number)
        self.text = text
        self.operation = operation
        self.path = path
        self.number = number
        self.restored = restored

    @property
    def reason(self) -> str:
        """Why it failed, without the path: peers get it, e.g. "no space left on device"."""
        text = self.text or os.strerror(self.number)
        return text[:1].lower() + text[1:]

    @property
    def is_full(self) -> bool:
        """Whether the operation failed for lack of space."""
        return self.number in _SPACE_ERRORS

    @property
    def is_missing(self) -> bool:
        """Whether the operation failed because the file does not exist."""
        return self.number == errno.ENOENT

    def __str__(self) -> str:
        return f"{self.operation} {self.path}: {self.reason}"


class File(Protocol):
    """An open file. Offsets and sizes are in bytes; all methods but `close` raise DiskError."""

    @property
    def path(self) -> str:
        """The path with which it was opened."""

    def append(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all of the buffers at `offset`, the end of the file, or none of them."""

    def overwrite(self, data: Buffer, offset: int) -> None:
        """Write bytes anywhere in the file. If that fails, nothing is cut off or restored."""

    def pread(self, size: int, offset: int) -> bytes:
        """Read `size` bytes at `offset`: fewer at the end of the file."""

    def sync(self) -> None:
        """Return once everything written is on the disk."""

    def truncate(self, size: int) -> None:
        """Truncate the file to this size."""

    def reserve(self, size: int) -> None:
        """Extend the file to this size, with disk space allocated for all of it."""

    def size(self) -> int:
        """Return the file's size."""

    def close(self) -> None:
        """Close the file; never fails."""


class FileSystem(Protocol):
    """All files of one file system, which are synced together."""

    def covers(self, folder: str) -> bool:
        """Whether this folder lies on the file system."""

    def sync(self) -> None:
        """Return once everything written since this was opened is on the disk.

        Raises:
            DiskError: some data is not, although it may read back well: each file has to be written
                again and synced by itself.
        """

    def close(self) -> None:
        """Close the descriptor."""


class Disk(Protocol):
    """Files and folders by path; every method raises DiskError."""

    def open(self, path: str) -> File:
        """Open an existing file for reading and writing."""

    def create(self, path: str) -> File:
        """Create a file; fails if it exists. Its entry is durable after `sync_directory`."""

    def listdir(self, path: str) -> list[str]:
        """List the names in a folder, sorted."""

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder with this path."""

    def make_directory(self, path: str) -> None:
        """Make a folder and its parents; an existing one is not an error."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty folder."""

    def sync_directory(self, path: str) -> None:
        """Return once the folder's entries are on the disk."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file or folder, replacing an existing one of the new name."""

    def unlink(self, path: str) -> None:
        """Delete a file."""

    def file_system(self, path: str) -> FileSystem | None:
        """Open the folder's file system; None: its sync does not report all errors."""

    def free_bytes(self, path: str) -> int:
        """Return how many bytes a user may still write on this folder's file system."""

    def lock(self, path: str) -> File:
        """Lock a folder or file (made if missing) until the result is closed; fails if locked."""

    def settle(self, path: str) -> None:
        """Have the folder's file system count deleted files as free space; never fails."""

    def check_place(self, path: str) -> None:
        """Fail if the folder's path does not lead to it any more: it was moved or deleted."""


def ensure_directory(disk: Disk, path: str) -> None:
    """Create a folder durably if it is missing; an existing one is taken to be synced.

    Raises:
        DiskError: it cannot be made.
    """
    if not disk.exists(path):
        disk.make_directory(path)
        disk.sync_directory(os.path.dirname(path) or ".")


def unlink_if_possible(disk: Disk, path: str) -> None:
    """Delete a file of no use; where the disk refuses that, it stays."""
    with suppress(DiskError):
        disk.unlink(path)


class _Failing:
    """Context manager that turns an OSError into a `DiskError`."""

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

    __slots__ = ("fd", "path")

    def __init__(self, fd: int, path: str) -> None:
        self.fd = fd
        self.path = path

    def append(self, buffers: Sequence[Buffer], offset: int) -> None:
        """See `File`."""
        try:
            if len(buffers) == 1:
                size, written = len(buffers[0]), os.pwrite(self.fd, buffers[0], offset)
            else:
                size, written = sum(map(len, buffers)), os.pwritev(self.fd, buffers, offset)
            if written < size:
                self._go_on(b"".join(buffers), written, offset)
        except OSError as error:
            failure = DiskError("write", self.path, error.errno or errno.EIO)
            try:
                # Not if nothing was written: a quota refuses to truncate, too.
                if os.fstat(self.fd).st_size > offset:
                    os.ftruncate(self.fd, offset)
            except OSError:
                failure.restored = False
            raise failure from error

    def overwrite(self, data: Buffer, offset: int) -> None:
        """See `File`."""
        with _Failing("write", self.path):
            self._go_on(data, 0, offset)

    def _go_on(self, data: Buffer, written: int, offset: int) -> None:
        """Write what a short write has left; if the disk refuses that, the error has the reason."""
        rest = memoryview(data)
        while written < len(rest):
            count = os.pwrite(self.fd, rest[written:], offset + written)
            if not count:
                raise OSError(errno.EIO, "nothing written")
            written += count

    def pread(self, size: int, offset: int) -> bytes:
        """See `File`."""
        with _Failing("read", self.path):
            data = os.pread(self.fd, size, offset)
            while 0 < len(data) < size:
                more = os.pread(self.fd, size - len(data), offset + len(data))
                if not more:
                    break
                data += more
        return data

    def sync(self) -> None:
        """See `File`."""
        try:
            os.fdatasync(self.fd)  # a write with RWF_DSYNC was no faster
        except OSError as error:
            raise DiskError("sync", self.path, error.errno or errno.EIO) from error

    def truncate(self, size: int) -> None:
        """See `File`."""
        with _Failing("truncate", self.path):
            os.ftruncate(self.fd, size)

    def reserve(self, size: int) -> None:
        """See `File`."""
        with _Failing("reserve", self.path):
            # In steps: btrfs frees an extent only as a whole, so of one that was allocated at once
            # `truncate` would free nothing.
            for at in range(os.fstat(self.fd).st_size, size, RESERVE_STEP_BYTES):
                os.posix_fallocate(self.fd, at, min(RESERVE_STEP_BYTES, size - at))

    def size(self) -> int:
        """See `File`."""
        with _Failing("stat", self.path):
            return os.fstat(self.fd).st_size

    def identity(self) -> tuple[int, int]:
        """Return device and inode, which identify the file whatever its path."""
        with _Failing("stat", self.path):
            return (facts := os.fstat(self.fd)).st_dev, facts.st_ino

    def close(self) -> None:
        """See `File`. An error of close adds nothing to what a sync has reported."""
        with suppress(OSError):
            os.close(self.fd)


class RealFileSystem:
    """A descriptor of a file system; its sync reports every error since it was opened."""

    def __init__(
        self,
        fd: int,
        path: str,
        syncfs: Callable[[int], int],
        stat_of: Callable[[str], os.stat_result],
    ) -> None:
        """`stat_of`: resolves paths as the disk does."""
        self._fd = fd
        self._path = path
        self._device = os.fstat(fd).st_dev
        self._syncfs = syncfs
        self._stat_of = stat_of

    def covers(self, folder: str) -> bool:
        """See `FileSystem`."""
        try:
            return self._stat_of(folder).st_dev == self._device
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

    _held: RealFile | None = None

    def keep_to(self, held: RealFile) -> None:
        """Resolve paths in this locked folder from its descriptor from now on (rule 5)."""
        self._held = held

    def _at(self, path: str) -> tuple[str, int | None]:
        """Return what to pass to the operating system: a path, and the folder it begins at."""
        held = self._held
        if held is None or not path.startswith(held.path):
            return path, None
        rest = path[len(held.path) :]
        if not rest:
            return ".", held.fd
        return (rest[1:], held.fd) if rest[0] == "/" else (path, None)

    def _open_at(self, path: str, flags: int) -> int:
        name, folder = self._at(path)
        return os.open(name, flags | os.O_CLOEXEC, 0o600, dir_fd=folder)

    def _stat(self, path: str) -> os.stat_result:
        name, folder = self._at(path)
        return os.stat(name, dir_fd=folder, follow_symlinks=False)

    def check_place(self, path: str) -> None:
        """See `Disk`."""
        held = self._held
        if held is None or path != held.path:
            return
        with _Failing("find", path), suppress(FileNotFoundError, NotADirectoryError):
            facts = os.stat(path)
            if (facts.st_dev, facts.st_ino) == held.identity():
                return
        raise DiskError("find", path, errno.ESTALE, text=MOVED)

    def open(self, path: str) -> File:
        """See `Disk`."""
        return self._open("open", path, os.O_RDWR)

    def create(self, path: str) -> File:
        """See `Disk`."""
        with self._changing("create", path):
            return self._open("create", path, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def _open(self, operation: str, path: str, flags: int) -> RealFile:
        with _Failing(operation, path):
            return RealFile(self._open_at(path, flags | os.O_NOFOLLOW), path)

    def _changing(self, operation: str, path: str) -> _Failing:
        """Return the context for operations that change names; `ReadOnlyDisk` refuses them."""
        return _Failing(operation, path)

    def listdir(self, path: str) -> list[str]:
        """See `Disk`."""
        with _Failing("list", path), self._directory(path) as fd:
            return sorted(os.listdir(fd))

    @contextmanager
    def _directory(self, path: str) -> Iterator[int]:
        """Open a folder for a moment."""
        fd = self._open_at(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield fd
        finally:
            os.close(fd)

    def exists(self, path: str) -> bool:
        """See `Disk`."""
        try:
            self._stat(path)  # of a link itself: a dangling one takes the name, too
        except OSError:
            return False
        return True

    def make_directory(self, path: str) -> None:
        """See `Disk`."""
        with self._changing("mkdir", path):
            name, folder = self._at(path)
            if folder is None:
                os.makedirs(path, 0o700, exist_ok=True)
                return
            # `makedirs` knows no `dir_fd`. The folders in a data path are made one by one.
            try:
                os.mkdir(name, 0o700, dir_fd=folder)
            except FileExistsError:
                if not stat.S_ISDIR(os.stat(name, dir_fd=folder).st_mode):
                    raise

    def remove_directory(self, path: str) -> None:
        """See `Disk`."""
        with self._changing("rmdir", path):
            name, folder = self._at(path)
            os.rmdir(name, dir_fd=folder)

    def sync_directory(self, path: str) -> None:
        """See `Disk`."""
        with _Failing("sync", path), self._directory(path) as fd:
            os.fsync(fd)

    def rename(self, old: str, new: str) -> None:
        """See `Disk`."""
        with self._changing("rename", old):
            (old_name, from_folder), (new_name, to_folder) = self._at(old), self._at(new)
            os.rename(old_name, new_name, src_dir_fd=from_folder, dst_dir_fd=to_folder)

    def unlink(self, path: str) -> None:
        """See `Disk`."""
        with self._changing("unlink", path):
            name, folder = self._at(path)
            os.unlink(name, dir_fd=folder)

    def file_system(self, path: str) -> FileSystem | None:
        """See `Disk`."""
        release = re.match(r"(\d+)\.(\d+)", os.uname().release)
        if release is None or tuple(map(int, release.groups())) < _SYNCFS_KERNEL:
            return None
        ctypes = import_module("ctypes")  # imported late, not to delay opening the ports
        libc = ctypes.CDLL(None, use_errno=True)
        # `os.statvfs` does not return the type of the file system. In `struct statfs` (120 bytes on
        # 64-bit Linux) it is the first field, so the others are not declared.
        facts = ctypes.create_string_buffer(_STATFS_BYTES)
        try:
            fd = self._open_at(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return None
        has_facts = hasattr(libc, "syncfs") and libc.fstatfs(fd, facts) == 0
        if has_facts and ctypes.c_long.from_buffer(facts).value in _SYNCFS_MAGICS:  # f_type
            return RealFileSystem(fd, path, libc.syncfs, self._stat)
        os.close(fd)
        return None

    def settle(self, path: str) -> None:
        """See `Disk`. btrfs frees space when it commits: every 30 seconds, or with `syncfs`."""
        # Not a subclass's: a failure here says nothing about any file.
        if (system := RealDisk.file_system(self, path)) is not None:
            with suppress(DiskError):
                system.sync()
            system.close()

    def free_bytes(self, path: str) -> int:
        """See `Disk`."""
        name, folder = self._at(path)
        with _Failing("stat", path):
            # It takes a path or a descriptor, but no path that begins at a descriptor.
            facts = os.statvfs(path if folder is None or name != "." else folder)
        return facts.f_bavail * facts.f_frsize

    def lock(self, path: str) -> RealFile:
        """See `Disk`. The kernel releases the lock when the process ends, however it ends."""
        is_folder = os.path.isdir(path)
        file = self._open("lock", path, os.O_RDONLY if is_folder else os.O_RDWR | os.O_CREAT)
        try:
            with _Failing("lock", path):
                # Go's nsqd locks the folder with flock, too. `lockf` would not see that lock, and
                # needs a descriptor that is open for writing, which a folder cannot have.
                fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except DiskError:
            file.close()
            raise
        return file


class ReadOnlyFile(RealFile):
    """A file that is open for reading only."""

    def overwrite(self, data: Buffer, offset: int) -> None:
        """Refuse to write."""
        # The kernel refuses the other changes, as the file is open for reading only. This one must
        # fail with EROFS, not EBADF: `write_again` ignores only EROFS.
        raise DiskError("write", self.path, errno.EROFS)


class ReadOnlyDisk(RealDisk):
    """The operating system's files, for reading only: every change is refused."""

    def open(self, path: str) -> RealFile:
        """See `Disk`; the file is opened for reading only."""
        opened = self._open("open", path, os.O_RDONLY)
        return ReadOnlyFile(opened.fd, opened.path)

    def sync_directory(self, path: str) -> None:
        """Do nothing, since nothing was changed."""

    def _changing(self, operation: str, path: str) -> _Failing:
        raise DiskError(operation, path, errno.EROFS)


# Files that may have unreadable pages. A read that crosses into one fails as a whole: then the file
# is read page by page, so that a bad page costs only the batches in it.

PAGE_TRIES: Final = 3
"""Attempts to read a page before it counts as bad: a passing error must not cost a batch."""

WRITE_AGAIN_BYTES: Final = 64 << 10


def write_again(file: File, start: int) -> bool:
    """Rewrite a file's contents from an offset on; return whether the file has to be synced then.

    A killed process may have left data in memory only, and after a failed sync the kernel treats
    such data as written: only what is written again is synced. An unreadable page is left as it is.
    On a read-only disk nothing happens.

    Raises:
        DiskError: it cannot be written.
    """
    try:
        for at in range(start, file.size(), WRITE_AGAIN_BYTES):
            try:
                file.overwrite(file.pread(WRITE_AGAIN_BYTES, at), at)
            except DiskError as error:
                if error.number != errno.EIO or error.operation != "read":
                    raise
                for place, _, data in _pages(file, at, min(at + WRITE_AGAIN_BYTES, file.size())):
                    if data:
                        file.overwrite(data, place)
    except DiskError as error:
        if error.number == errno.EROFS:
            return False
        # A copy-on-write file system may have no space to write the same bytes again.
        if not error.is_full:
            raise
    return True


def read_bytes(file: File, size: int, offset: int) -> bytes:
    """Read these bytes of the file; unreadable pages are returned as zeros.

    Raises:
        DiskError: for any reason other than a bad page.
    """
    try:
        return file.pread(size, offset)
    except DiskError as error:
        if error.number != errno.EIO:
            raise
    pages = _pages(file, offset, offset + size)
    return b"".join([bytes(length) if data is None else data for _, length, data in pages])


def _pages(file: File, offset: int, end: int) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield the part of each page between two offsets: offset, size, bytes; None: unreadable."""
    while offset < end:
        size = min((offset // PAGE_BYTES + 1) * PAGE_BYTES, end) - offset
        data: bytes | None = None
        for _ in range(PAGE_TRIES):
            try:
                data = file.pread(size, offset)
                break
            except DiskError as error:
                if error.number != errno.EIO:
                    raise
        yield offset, size, data
        offset += size


def write_all_again(
    disk: Disk,
    folder: str,
    files: Sequence[tuple[str, int]],
    file_system: FileSystem | None,
    held: File | None = None,
) -> None:
    """Sync the files that a start has found, before anything relies on them.

    The files of one topic are synced one by one; for many topics, one sync of the file system
    follows.

    Args:
        disk, folder: where the files are.
        files: (path, offset): from this offset on, nothing shows that the file was synced.
        file_system: the file system that the caller syncs next: files on it are not synced here;
            None: the caller syncs none.
        held: the one of the files that is open already and stays open.

    Raises:
        DiskError: they cannot be made durable: nothing may rely on them.
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
