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
from typing import Final, TypeVar

from sparq.log.disk import Buffer, DiskError, FileSystem, RealDisk, RealFile

UNBOUNDED: Final = 1 << 20
TRIES: Final = 3
"""How often an open is retried while other threads take the descriptors freed for it."""

_NONE_LEFT: Final = frozenset({errno.EMFILE, errno.ENFILE})

Result = TypeVar("Result")


_BUCKETS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01),
    *(0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)


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
        self.bounds = _BUCKETS
        self.counts = [0] * (len(_BUCKETS) + 1)
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


class MeasuredFile(RealFile):
    """A file that measures its syncs."""

    __slots__ = ()

    def sync(self) -> None:
        """See `File`. Failed syncs are measured, too."""
        began = time.perf_counter()
        try:
            super().sync()
        finally:
            SYNCS.observe(time.perf_counter() - began)


class CachedFile:
    """A file that is open while it is used, and may be closed in between.

    Attributes:
        path: its path.
        dirty: whether it may hold unsynced data.
        users: how many threads are using it now.
        opened: the open file; None: it is closed now.
    """

    __slots__ = ("_closed", "_failure", "_files", "_identity", "dirty", "opened", "path", "users")

    def __init__(self, files: "OpenFiles", opened: RealFile) -> None:
        """Use `OpenFiles.keep`."""
        self.path = opened.path
        self.users = 0
        # A killed process may have left unsynced data in it.
        self.dirty = True
        self.opened: RealFile | None = opened
        self._files = files
        self._identity = opened.identity()
        self._failure: DiskError | None = None
        self._closed = False

    def _use(self, operation: str, act: Callable[[RealFile], Result], *, writes: bool) -> Result:
        opened = self._files.take(self, operation)
        try:
            if writes:
                self.dirty = True
            return act(opened)
        finally:
            self._files.give_back(self)

    def append(self, buffers: Sequence[Buffer], offset: int) -> None:
        """See `File`."""
        self._use("write", lambda opened: opened.append(buffers, offset), writes=True)

    def overwrite(self, data: Buffer, offset: int) -> None:
        """See `File`."""
        self._use("write", lambda opened: opened.overwrite(data, offset), writes=True)

    def truncate(self, size: int) -> None:
        """See `File`."""
        self._use("truncate", lambda opened: opened.truncate(size), writes=True)

    def reserve(self, size: int) -> None:
        """See `File`."""
        self._use("reserve", lambda opened: opened.reserve(size), writes=True)

    def pread(self, size: int, offset: int) -> bytes:
        """See `File`."""
        return self._use("read", lambda opened: opened.pread(size, offset), writes=False)

    def size(self) -> int:
        """See `File`."""
        return self._use("stat", lambda opened: opened.size(), writes=False)

    def sync(self) -> None:
        """See `File`. A file that is not open was synced before it was closed."""
        if self.opened is None and not self.dirty and not self._closed:
            self._raise_failure()
        else:
            self._use("sync", self._sync, writes=False)

    def _sync(self, opened: RealFile) -> None:
        # Data written from here on belongs to the next sync.
        self.dirty = False
        self._raise_failure()
        opened.sync()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """See `File`."""
        self._closed = True
        self._files.let_go(self)

    # Called by `OpenFiles`, under its lock

    def open_again(self, operation: str, open_path: Callable[[str], RealFile]) -> RealFile:
        """Open the file again by its path (rule 1).

        Raises:
            DiskError: the owner has closed it, it cannot be opened, or the path is another file.
        """
        if self._closed:
            # The file is no longer held, so its length is unknown: even a write that never took
            # place is reported as not restored.
            raise DiskError(operation, self.path, errno.EBADF, restored=operation != "write")
        again = open_path(self.path)
        if again.identity() != self._identity:
            again.close()
            raise DiskError(operation, self.path, errno.ESTALE)
        self.opened = again
        return again

    def shut(self, *, syncs: bool) -> None:
        """Close the file until its next use (rule 2)."""
        opened, self.opened = self.opened, None
        if opened is None:
            return
        if self.dirty and syncs and not self._closed:
            try:
                opened.sync()
            except DiskError as error:
                # Stored before `dirty` is cleared: `sync` reads both without the lock, and a closed
                # file that is not dirty must already show its failure.
                self._failure = error
            self.dirty = False
        opened.close()


class OpenFiles:
    """The open files of a process, least recently used first.

    Attributes:
        count_max: maximum number of open files; files in use may exceed it.
        synced_together: whether a sync of the file system follows, so that files need no sync
            before they are closed.
    """

    def __init__(self, count_max: int, open_again: Callable[[str], RealFile]) -> None:
        """`open_again` opens an existing file to read and write."""
        self.count_max = count_max
        self._open_again = open_again
        self._lock = threading.Lock()
        self._by_use: OrderedDict[CachedFile, None] = OrderedDict()
        self.synced_together = False

    def keep(self, open_first: Callable[[], RealFile]) -> CachedFile:
        """Open a file for the first time, after closing others if necessary.

        Raises:
            DiskError: it cannot be opened.
        """
        with self._lock:
            self._close_unused()
        # Without the lock: no other thread knows this file, and opening may wait for the disk.
        opened = self.trying(open_first)
        with self._lock:
            kept = CachedFile(self, opened)
            self._by_use[kept] = None
        return kept

    def take(self, kept: CachedFile, operation: str) -> RealFile:
        """Begin to use a file; it stays open until `give_back`.

        Raises:
            DiskError: its owner has closed it, or it cannot be opened again. Do not call
                `give_back` then.
        """
        with self._lock:
            opened = kept.opened
            if opened is None:
                opened = self._open_once_more(kept, operation)
            kept.users += 1
            self._by_use.move_to_end(kept)
            return opened

    def _open_once_more(self, kept: CachedFile, operation: str) -> RealFile:
        self._close_unused()
        # Not `trying`: it takes the lock, which is held here so that two threads do not open the
        # file twice.
        for tries_left in reversed(range(TRIES)):
            try:
                opened = kept.open_again(operation, self._open_again)
                break
            except DiskError as error:
                if error.number not in _NONE_LEFT or not tries_left or not self._shut_one():
                    raise
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

    def sync(self, file_system: FileSystem) -> None:
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

    def trying(self, attempt: Callable[[], Result]) -> Result:
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


class CachedFileSystem:
    """A file system whose files may be closed between uses."""

    def __init__(self, files: OpenFiles, opened: FileSystem) -> None:
        self._files = files
        self._opened = opened
        files.synced_together = True

    def covers(self, folder: str) -> bool:
        """See `FileSystem`."""
        return self._opened.covers(folder)

    def sync(self) -> None:
        """See `FileSystem`."""
        self._files.synced_together = False
        # Reset first: a file closed during the sync may have data that the sync does not cover.
        self._files.sync(self._opened)

    def close(self) -> None:
        """See `FileSystem`."""
        self._files.synced_together = False
        self._opened.close()


class CachingDisk(RealDisk):
    """The operating system's files, with timed syncs and a limit on how many are open at a time."""

    def __init__(self, open_files_max: int = UNBOUNDED) -> None:
        self.files = OpenFiles(open_files_max, self._again)

    def open(self, path: str) -> CachedFile:
        """See `Disk`."""
        return self.files.keep(lambda: self._open("open", path, os.O_RDWR))

    def create(self, path: str) -> CachedFile:
        """See `Disk`."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        return self.files.keep(lambda: self._open("create", path, flags))

    def listdir(self, path: str) -> list[str]:
        """See `Disk`."""
        return self.files.trying(lambda: super(CachingDisk, self).listdir(path))

    def sync_directory(self, path: str) -> None:
        """See `Disk`."""
        self.files.trying(lambda: super(CachingDisk, self).sync_directory(path))

    def file_system(self, path: str) -> FileSystem | None:
        """See `Disk`. Until it is synced or closed, files are closed without a sync."""
        opened = super().file_system(path)
        return None if opened is None else CachedFileSystem(self.files, opened)

    def _again(self, path: str) -> RealFile:
        return self._open("open", path, os.O_RDWR)

    def _open(self, operation: str, path: str, flags: int) -> RealFile:
        opened = super()._open(operation, path, flags)
        return MeasuredFile(opened.fd, opened.path)
