"""A limit on open files: the least recently used are closed, and opened again when needed.

Each topic appends to two files, and a process may have only a limited number open; a thousand
topics must not need two thousand open files. `CachingDisk` gives access to the
operating system's files and limits how many are open at a time. Rules:

1. A file is opened again by its path, which its owner does not change while it uses the file. It
   must then be the same file as before.
2. A file with unsynced data is synced before it is closed: the kernel may forget write errors of a
   file that no process has open. A failure is kept and raised by the next `sync`. Files without
   unsynced data are closed first. From the opening of a `CachedFileSystem` until its sync, files
   are closed without a sync: the sync of the file system follows, and also reports errors of
   closed files.
3. A file in use by a thread stays open, even above the limit: hence the spare files.
4. If the process has no file descriptor left, because other parts took more than their share, one
   more of these files is closed. An operation that still finds none fails with the system's
   error, and may be retried.

The durations of syncs and commits are counted for Prometheus, for the whole process, by the thread
that did the work; not with `prometheus_client`, which would take 50 ms to load at the start.
"""

import errno
import os
import threading
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from sparq.log.disk import Buffer, DiskError, FileSystem, RealDisk, RealFile

UNBOUNDED: Final = 1 << 20
TRIES: Final = 3
"""How often an open is retried while other threads take the descriptors freed for it."""

_NONE_LEFT: Final = frozenset({errno.EMFILE, errno.ENFILE})

Result = TypeVar("Result")


_MILLISECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000)


class DurationCounts:
    """Counts of durations by bucket.

    Attributes:
        name, text: the metric's name and help text.
        bounds: upper bounds of the buckets, in seconds.
        counts: one count per bucket (not cumulative), and one for durations above all bounds.
        total: the sum of all durations, in seconds.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        self.bounds = [milliseconds / 1000 for milliseconds in _MILLISECONDS]
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0
        self._lock = threading.Lock()

    def observe(self, seconds: float) -> None:
        """Count one duration; may be called from any thread."""
        at = bisect_left(self.bounds, seconds)
        # `+=` is not atomic, and several threads sync.
        with self._lock:
            self.counts[at] += 1
            self.total += seconds


COMMITS: Final = DurationCounts(
    "nsqd_commit_duration_seconds",
    "Time to write one batch of messages, including its sync if one is due",
)
SYNCS: Final = DurationCounts(
    "nsqd_fsync_duration_seconds", "Time of one fdatasync, of a log or a ledger"
)


def timed_sync(opened: RealFile) -> None:
    """Sync a file, and count how long that takes, also if it fails."""
    began = time.perf_counter()
    try:
        opened.sync()
    finally:
        SYNCS.observe(time.perf_counter() - began)


class CachedFile:
    """A file that is open while it is used, and may be closed in between.

    Attributes:
        path: its path.
        dirty: whether it may hold unsynced data.
        users: how many threads are using it now.
        opened: the open file; None: it is closed now.
        is_closed: whether its owner has closed it.
        failure: the error of a sync before it was closed, for the next `sync`.
        identity: device and inode, by which it is recognised when it is opened again.
    """

    __slots__ = (
        *("_disk", "dirty", "failure", "identity", "is_closed"),
        *("opened", "path", "users"),
    )

    def __init__(self, disk: "CachingDisk", opened: RealFile) -> None:
        self.path = opened.path
        self.users = 0
        # A killed process may have left unsynced data in it.
        self.dirty = True
        self.opened: RealFile | None = opened
        self.identity = opened.identity()
        self.failure: DiskError | None = None
        self.is_closed = False
        self._disk = disk

    def append(self, buffers: Sequence[Buffer], offset: int) -> None:
        """See `File`."""
        opened = self._disk.take(self, "write")
        try:
            self.dirty = True
            opened.append(buffers, offset)
        finally:
            self._disk.give_back(self)

    def sync(self) -> None:
        """See `File`. A file that is not open was synced before it was closed."""
        if self.opened is None and not self.dirty and not self.is_closed:
            self._raise_failure()
            return
        opened = self._disk.take(self, "sync")
        try:
            # Data written from here on belongs to the next sync.
            self.dirty = False
            if self.failure is not None:
                self._raise_failure()
            timed_sync(opened)
        finally:
            self._disk.give_back(self)

    def _raise_failure(self) -> None:
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def overwrite(self, data: Buffer, offset: int) -> None:
        """See `File`."""
        self._use("write", RealFile.overwrite, data, offset)

    def truncate(self, size: int) -> None:
        """See `File`."""
        self._use("truncate", RealFile.truncate, size)

    def reserve(self, size: int) -> None:
        """See `File`."""
        self._use("reserve", RealFile.reserve, size)

    def pread(self, size: int, offset: int) -> bytes:
        """See `File`."""
        return self._use("read", RealFile.pread, size, offset)

    def size(self) -> int:
        """See `File`."""
        return self._use("stat", RealFile.size)

    def _use(self, operation: str, method: Callable[..., Result], *arguments: Any) -> Result:
        opened = self._disk.take(self, operation)
        try:
            self.dirty |= operation not in ("read", "stat")
            return method(opened, *arguments)
        finally:
            self._disk.give_back(self)

    def close(self) -> None:
        """See `File`."""
        self.is_closed = True
        self._disk.let_go(self)

    def shut(self, *, syncs: bool) -> None:
        """Close the file until its next use (rule 2); called under the disk's lock."""
        opened, self.opened = self.opened, None
        if opened is None:
            return
        if self.dirty and syncs and not self.is_closed:
            try:
                timed_sync(opened)
            except DiskError as error:
                # Stored before `dirty` is cleared: `sync` reads both without the lock, and a closed
                # file that is not dirty must already show its failure.
                self.failure = error
            self.dirty = False
        opened.close()


class CachedFileSystem:
    """A file system whose files may be closed between uses."""

    def __init__(self, disk: "CachingDisk", opened: FileSystem) -> None:
        self._disk = disk
        self._opened = opened
        disk.synced_together = True

    def covers(self, folder: str) -> bool:
        """See `FileSystem`."""
        return self._opened.covers(folder)

    def sync(self) -> None:
        """See `FileSystem`."""
        # Reset first: a file closed during the sync may have data that the sync does not cover.
        self._disk.synced_together = False
        self._disk.sync_all(self._opened)

    def close(self) -> None:
        """See `FileSystem`."""
        self._disk.synced_together = False
        self._opened.close()


class CachingDisk(RealDisk):
    """The operating system's files, of which a limited number is open at a time.

    Attributes:
        count_max: maximum number of open files; files in use may exceed it.
        synced_together: whether a sync of the file system follows, so that files need no sync
            before they are closed.
    """

    def __init__(self, count_max: int = UNBOUNDED) -> None:
        self.count_max = count_max
        self.synced_together = False
        self._lock = threading.Lock()
        # The open files, least recently used first.
        self._by_use: OrderedDict[CachedFile, None] = OrderedDict()

    def open(self, path: str) -> CachedFile:
        """See `Disk`."""
        return self._open_first("open", path, os.O_RDWR)

    def create(self, path: str) -> CachedFile:
        """See `Disk`."""
        return self._open_first("create", path, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def listdir(self, path: str) -> list[str]:
        """See `Disk`."""
        return self._trying(lambda: super(CachingDisk, self).listdir(path))

    def sync_directory(self, path: str) -> None:
        """See `Disk`."""
        self._trying(lambda: super(CachingDisk, self).sync_directory(path))

    def file_system(self, path: str) -> FileSystem | None:
        """See `Disk`. Until it is synced or closed, files are closed without a sync."""
        opened = super().file_system(path)
        return None if opened is None else CachedFileSystem(self, opened)

    def _open_first(self, operation: str, path: str, flags: int) -> CachedFile:
        """Open a file for the first time, after closing others if necessary."""
        with self._lock:
            self._close_unused()
        # Without the lock: no other thread knows this file, and opening may wait for the disk.
        opened = self._trying(lambda: self._open(operation, path, flags))
        with self._lock:
            kept = CachedFile(self, opened)
            self._by_use[kept] = None
        return kept

    # Uses of a file

    def take(self, kept: CachedFile, operation: str) -> RealFile:
        """Begin to use a file; it stays open until `give_back`.

        Raises:
            DiskError: its owner has closed it, or it cannot be opened again. Do not call
                `give_back` then.
        """
        with self._lock:
            opened = kept.opened
            if opened is None:
                opened = self._open_again(kept, operation)
            kept.users += 1
            self._by_use.move_to_end(kept)
            return opened

    def _open_again(self, kept: CachedFile, operation: str) -> RealFile:
        """Open a file again by its path (rule 1)."""
        if kept.is_closed:
            # The file is no longer held, so its length is unknown: even a write that never took
            # place is reported as not restored.
            raise DiskError(operation, kept.path, errno.EBADF, restored=operation != "write")
        self._close_unused()
        # Not `_trying`: it takes the lock, which is held here so that two threads do not open the
        # file twice.
        for tries_left in reversed(range(TRIES)):
            try:
                opened = self._open("open", kept.path, os.O_RDWR)
                break
            except DiskError as error:
                if error.number not in _NONE_LEFT or not tries_left or not self._shut_one():
                    raise
        if opened.identity() != kept.identity:
            opened.close()
            raise DiskError(operation, kept.path, errno.ESTALE)
        kept.opened = opened
        self._by_use[kept] = None
        return opened

    def give_back(self, kept: CachedFile) -> None:
        """End one use of a file."""
        with self._lock:
            kept.users -= 1
            if len(self._by_use) > self.count_max:
                self._shut_one()

    def let_go(self, kept: CachedFile) -> None:
        """Close a file that its owner no longer needs."""
        with self._lock:
            self._by_use.pop(kept, None)
            kept.shut(syncs=False)

    def sync_all(self, file_system: FileSystem) -> None:
        """Sync the file system, and with it all files not in use.

        Raises:
            DiskError: see `FileSystem.sync`.
        """
        with self._lock:
            # Data written from here on belongs to the next sync.
            # A file in use may be written during the sync, so it stays dirty.
            covered = [kept for kept in self._by_use if kept.dirty and not kept.users]
            for kept in covered:
                kept.dirty = False
        try:
            file_system.sync()
        except DiskError:
            for kept in covered:
                kept.dirty = True
            raise

    # The limit

    def _trying(self, attempt: Callable[[], Result]) -> Result:
        """Run an operation that needs a descriptor, in any thread; close files if none is left.

        Raises:
            DiskError: it failed for another reason, or no more files can be closed.
        """
        for _ in range(TRIES):
            try:
                return attempt()
            except DiskError as error:
                if error.number not in _NONE_LEFT:
                    raise
                with self._lock:
                    if not self._shut_one():
                        raise
        return attempt()

    def _close_unused(self) -> None:
        while len(self._by_use) >= self.count_max and self._shut_one():
            pass

    def _shut_one(self) -> bool:
        """Close the least recently used file, clean ones first; False: all are in use."""
        victim: CachedFile | None = None
        for kept in self._by_use:
            if kept.users == 0:
                # A dirty file only if there is no clean one: closing it costs a sync in the
                # caller's thread.
                victim = victim or kept
                if not kept.dirty or self.synced_together:
                    victim = kept
                    break
        if victim is None:
            return False
        del self._by_use[victim]
        victim.shut(syncs=not self.synced_together)
        return True
