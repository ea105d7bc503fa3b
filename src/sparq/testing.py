"""Fakes for tests of sparq and of programs that use it: a disk with faults, a manual clock.

``MemoryDisk`` is a `sparq.log.disk.Disk` that tracks which data have been synced.

1. ``crash`` returns the disk as a power cut may leave it: any subset of the unsynced sectors (512
   bytes each), and any prefix of the unsynced changes to folders, in order.
2. Operations are counted. A `Fault` makes one of them, or several from it on, fail, write only a
   part before failing, or be the moment of a power cut.
3. After a failed sync the data can still be read but are not on the disk, and the next sync
   succeeds. Linux behaves like that, which is why retrying a failed sync is not safe.
4. With a capacity, the disk can be full.
"""

import errno
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sparq.log.disk import MOVED, Buffer, DiskError
from sparq.protocol.instant import Instant

SECTOR_BYTES: Final = 512
START_WALL_NS: Final = 1_790_000_000_000_000_000
"""An arbitrary time in 2026."""


class ManualClock:
    """A wall clock and a monotonic clock that move only when a test advances them.

    Attributes:
        wall_ns: nanoseconds since 1970; a test may set any value.
        mono_ns: nanoseconds since an arbitrary moment.
    """

    def __init__(self, wall_ns: int = START_WALL_NS, mono_ns: int = 1_000_000_000) -> None:
        self.wall_ns = wall_ns
        self.mono_ns = mono_ns

    def now(self) -> Instant:
        """Return the time of both clocks."""
        return Instant(self.wall_ns, self.mono_ns)

    def advance(self, duration_ns: int) -> Instant:
        """Advance both clocks and return the new time."""
        self.wall_ns += duration_ns
        self.mono_ns += duration_ns
        return self.now()


class PowerCut(Exception):
    """The power is cut: every later counted operation on this disk raises this as well."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A planned failure of disk operations.

    Attributes:
        at: number of the first operation that fails, counted from 1.
        number: the errno; None: a power cut.
        operations: names of the operations that fail ("write", "sync", ...); empty: all.
        times: how many operations fail from there on.
        part: fraction of a failing write that reaches the file, 0 to 1.
    """

    at: int
    number: int | None = errno.EIO
    operations: frozenset[str] = frozenset()
    times: int = 1
    part: float = 0.0


@dataclass(slots=True, eq=False)
class Inode:
    """A file's bytes: as they are read (``data``), and as synced to the disk (``durable``)."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    dirty: set[int] = field(default_factory=set)
    allocated: int = 0

    @property
    def charged_bytes(self) -> int:
        """The bytes that count against the disk's capacity."""
        return max(len(self.data), self.allocated)

    def write(self, data: bytes, offset: int) -> None:
        """Write bytes; they reach the disk only with `sync`."""
        if len(self.data) < offset:
            self.data += bytes(offset - len(self.data))
        self.data[offset : offset + len(data)] = data
        last = (offset + max(len(data), 1) - 1) // SECTOR_BYTES
        self.dirty.update(range(offset // SECTOR_BYTES, last + 1))

    def truncate(self, size: int) -> None:
        """Cut or extend to ``size`` bytes."""
        self.data[size:] = bytes(max(0, size - len(self.data)))
        self.allocated = min(self.allocated, size)

    def sync(self) -> None:
        """Write the dirty sectors and the size to the disk."""
        self._merge_into(self.durable, self.dirty, len(self.data))
        self.dirty = set()

    def lose(self) -> None:
        """Simulate a failed sync: the dirty sectors become clean but are not on the disk."""
        self.dirty = set()  # as Linux does: the next sync finds nothing to write, and succeeds

    def is_forgotten(self) -> bool:
        """Whether clean sectors differ from the disk, so that no later sync writes them."""
        synced = bytearray(self.durable)
        self._merge_into(synced, self.dirty, len(self.data) if self.dirty else len(synced))
        return synced != self.data

    def crashed(self, chance: random.Random) -> "Inode":
        """Return the file as it may be after a power cut."""
        kept = {sector for sector in self.dirty if chance.random() < 0.5}
        # The size is metadata: it may be on the disk without the data, and the reverse.
        size = chance.choice([len(self.durable), len(self.data)]) if self.dirty else None
        data = bytearray(self.durable)
        self._merge_into(data, kept, len(data) if size is None else size)
        return Inode(data, bytearray(data), set(), 0)

    def _merge_into(self, target: bytearray, sectors: set[int], size: int) -> None:
        target[size:] = bytes(max(0, size - len(target)))
        for sector in sectors:
            start = sector * SECTOR_BYTES
            piece = self.data[start : min(start + SECTOR_BYTES, size)]
            target[start : start + len(piece)] = piece


Names = dict[str, Inode | None]
"""Path -> file; None: a folder."""


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class EntryChange:
    """A change to folder entries: `old` moves to `new` with all below it, or is removed.

    Without `old`, `new` is a new entry.
    """

    old: str
    new: str
    inode: Inode | None = None

    def is_in(self, folder: str) -> bool:
        """Whether it changes an entry of this folder."""
        return any(path and _parent(path) == folder for path in (self.old, self.new))

    def apply(self, names: Names) -> None:
        """Make the change."""
        if not self.old:
            names[self.new] = self.inode
            return
        below = self.old + "/"
        for path in [path for path in names if path == self.old or path.startswith(below)]:
            inode = names.pop(path)
            if self.new:
                names[self.new + path[len(self.old) :]] = inode


class MemoryFile:
    """An open file of a MemoryDisk."""

    def __init__(self, disk: "MemoryDisk", path: str, inode: Inode) -> None:
        self.path = path
        self.closed = False
        self._disk = disk
        self._inode = inode

    def append(self, buffers: Sequence[Buffer], offset: int) -> None:
        """See `sparq.log.disk.File`."""
        data = b"".join(buffers)
        try:
            self._disk.write(self._inode, self.path, data, offset)
        except DiskError as error:
            try:
                self.truncate(offset)
            except DiskError:
                error.restored = False
            raise

    def overwrite(self, data: Buffer, offset: int) -> None:
        """See `sparq.log.disk.File`."""
        self._disk.write(self._inode, self.path, bytes(data), offset)

    def pread(self, size: int, offset: int) -> bytes:
        """See `sparq.log.disk.File`."""
        self._step("read")
        return bytes(self._inode.data[offset : offset + size])

    def sync(self) -> None:
        """See `sparq.log.disk.File`."""
        try:
            self._step("sync")
        except DiskError:
            self._inode.lose()
            raise
        self._inode.sync()

    def truncate(self, size: int) -> None:
        """See `sparq.log.disk.File`."""
        self._step("truncate")
        self._inode.truncate(size)

    def reserve(self, size: int) -> None:
        """See `sparq.log.disk.File`."""
        self._step("reserve")
        self._disk.charge(self.path, self._inode.charged_bytes, size)
        self._inode.allocated = size
        if len(self._inode.data) < size:
            self._inode.write(b"\0", size - 1)

    def size(self) -> int:
        """See `sparq.log.disk.File`."""
        return len(self._inode.data)

    def close(self) -> None:
        """See `sparq.log.disk.File`."""
        self.closed = True
        self._disk.unlock(self)

    def _step(self, operation: str) -> None:
        assert not self.closed
        self._disk.step(operation, self.path)


class MemoryFileSystem:
    """The file system of a MemoryDisk, for syncing all files at once."""

    def __init__(self, disk: "MemoryDisk", path: str) -> None:
        self._disk = disk
        self._path = path

    def covers(self, folder: str) -> bool:
        """See `sparq.log.disk.FileSystem`."""
        return folder.startswith(self._path)

    def sync(self) -> None:
        """See `sparq.log.disk.FileSystem`."""
        self._disk.sync_all(self._path)

    def close(self) -> None:
        """See `sparq.log.disk.FileSystem`."""


class MemoryDisk:
    """A disk in memory.

    Attributes:
        count: number of operations so far.
        trace: (operation, path) of each.
        fault: the planned failure; None: no failures.
        capacity_bytes: size of the disk; None: unlimited.
        block_bytes: allocation unit of files.
        failed_count: number of operations that failed so far, by a fault or a full disk.
    """

    def __init__(self, *, capacity_bytes: int | None = None, block_bytes: int = 1) -> None:
        self.count = 0
        self.trace: list[tuple[str, str]] = []
        self.fault: Fault | None = None
        self.capacity_bytes = capacity_bytes
        self.block_bytes = block_bytes
        self.failed_count = 0
        self._failed = 0
        self._cut = False
        self._names: Names = {"": None}
        self._durable: Names = {"": None}
        self._changes: list[EntryChange] = []
        self._locks: dict[str, MemoryFile] = {}

    # Called by tests

    def fail(self, fault: Fault) -> None:
        """Plan a failure; `fault.at` counts from the next operation on."""
        self.fault = Fault(
            self.count + fault.at, fault.number, fault.operations, fault.times, fault.part
        )
        self._failed = 0

    def crash(self, seed: int = 0) -> "MemoryDisk":
        """Return the disk after a power cut now, without faults; do not use this one any more."""
        chance = random.Random(seed)  # noqa: S311 - a seed must repeat the crash
        after = MemoryDisk(capacity_bytes=self.capacity_bytes, block_bytes=self.block_bytes)
        names = dict(self._durable)
        for change in self._changes[: chance.randint(0, len(self._changes))]:
            change.apply(names)
        after._names = {
            path: None if inode is None else inode.crashed(chance) for path, inode in names.items()
        }
        after._durable = dict(after._names)
        return after

    def killed(self) -> "MemoryDisk":
        """Return this disk after a kill of the process: no write is lost, none is synced."""
        self._locks = {}  # the operating system releases the locks of a process that ends
        self._cut = False
        self.fault = None
        return self

    def data(self, path: str) -> bytearray:
        """Return a file's bytes, which a test may inspect or damage."""
        return self._inode(path).data

    def paths(self) -> list[str]:
        """Return the paths of all files, sorted."""
        return sorted(path for path, inode in self._names.items() if inode is not None)

    def forgotten(self) -> list[str]:
        """Return files that can be read but are not on the disk, although later syncs succeed.

        A failed sync leaves a file in this state until its data are written again, to another file.
        """
        return [path for path in self.paths() if self._inode(path).is_forgotten()]

    def _inode(self, path: str) -> Inode:
        inode = self._names[path]
        assert inode is not None
        return inode

    # Called by files

    def step(self, operation: str, path: str) -> None:
        """Count an operation, and raise if a fault is planned for it."""
        if self._cut:
            raise PowerCut(operation, path)
        self.count += 1
        self.trace.append((operation, path))
        fault = self.fault
        if fault is None or self.count < fault.at or self._failed >= fault.times:
            return
        if fault.operations and operation not in fault.operations:
            return
        self._failed += 1
        if fault.number is None:
            self._cut = True
            raise PowerCut(operation, path)
        self.failed_count += 1
        raise DiskError(operation, path, fault.number)

    def write(self, inode: Inode, path: str, data: bytes, offset: int) -> None:
        """Write to a file; if a fault is planned, write only a part and raise."""
        try:
            self.step("write", path)
            self.charge(path, inode.charged_bytes, offset + len(data))
        except (DiskError, PowerCut):
            part = self.fault.part if self.fault is not None else 0.0
            inode.write(data[: int(len(data) * part)], offset)
            raise
        inode.write(data, offset)

    def charge(self, path: str, old_bytes: int, new_bytes: int) -> None:
        """Raise if the disk has no space for a file to grow."""
        growth_bytes = self._blocks(new_bytes) - self._blocks(old_bytes)
        if growth_bytes > 0 and growth_bytes > self.free_bytes(path):
            self.failed_count += 1
            raise DiskError("write", path, errno.ENOSPC)

    def sync_all(self, path: str) -> None:
        """Write all unsynced data to the disk, or lose them if a fault is planned."""
        inodes = [inode for inode in self._names.values() if inode is not None]
        try:
            self.step("syncfs", path)
        except DiskError:
            for inode in inodes:
                inode.lose()
            raise
        for inode in inodes:
            inode.sync()
        for change in self._changes:
            change.apply(self._durable)
        self._changes = []

    def unlock(self, file: MemoryFile) -> None:
        """Release the lock of a closed file."""
        if self._locks.get(file.path) is file:
            del self._locks[file.path]

    # The interface `sparq.log.disk.Disk`

    def open(self, path: str) -> MemoryFile:
        """See `sparq.log.disk.Disk`."""
        self.step("open", path)
        self._need("open", path)
        return MemoryFile(self, path, self._inode(path))

    def create(self, path: str) -> MemoryFile:
        """See `sparq.log.disk.Disk`."""
        self.step("create", path)
        if path in self._names:
            raise DiskError("create", path, errno.EEXIST)
        self._need("create", path, _parent(path))
        self.charge(path, 0, 1)
        inode = Inode()
        self._change("", path, inode)
        return MemoryFile(self, path, inode)

    def listdir(self, path: str) -> list[str]:
        """See `sparq.log.disk.Disk`."""
        self.step("list", path)
        self._need("list", path)
        prefix = path + "/"
        names = [name[len(prefix) :] for name in self._names if name.startswith(prefix)]
        return sorted(name for name in names if "/" not in name)

    def exists(self, path: str) -> bool:
        """See `sparq.log.disk.Disk`."""
        return path in self._names

    def make_directory(self, path: str) -> None:
        """See `sparq.log.disk.Disk`."""
        self.step("mkdir", path)
        if path in self._names:
            return
        if _parent(path) not in self._names:
            self.make_directory(_parent(path))
        self._change("", path)

    def remove_directory(self, path: str) -> None:
        """See `sparq.log.disk.Disk`."""
        self.step("rmdir", path)
        if any(name.startswith(path + "/") for name in self._names):
            raise DiskError("rmdir", path, errno.ENOTEMPTY)
        self._need("rmdir", path)
        self._change(path, "")

    def unlink(self, path: str) -> None:
        """See `sparq.log.disk.Disk`."""
        self.step("unlink", path)
        self._need("unlink", path)
        self._change(path, "")

    def rename(self, old: str, new: str) -> None:
        """See `sparq.log.disk.Disk`."""
        self.step("rename", old)
        self._need("rename", old)
        self._need("rename", new, _parent(new))
        self._change(old, new)

    def sync_directory(self, path: str) -> None:
        """See `sparq.log.disk.Disk`."""
        self.step("syncdir", path)
        folder = path.rstrip("/")
        for change in self._changes:
            if change.is_in(folder):
                change.apply(self._durable)
        self._changes = [change for change in self._changes if not change.is_in(folder)]

    def file_system(self, path: str) -> MemoryFileSystem:
        """See `sparq.log.disk.Disk`."""
        return MemoryFileSystem(self, path)

    def free_bytes(self, path: str) -> int:
        """See `sparq.log.disk.Disk`."""
        if self.capacity_bytes is None:
            return 1 << 50  # 1 PiB: never short of space
        inodes = (inode for inode in self._names.values() if inode is not None)
        used = sum(self._blocks(inode.charged_bytes) for inode in inodes)
        return max(0, self.capacity_bytes - used)

    def _blocks(self, size_bytes: int) -> int:
        """Return the space that ``size_bytes`` of a file take, in whole blocks."""
        return -(-size_bytes // self.block_bytes) * self.block_bytes

    def settle(self, path: str) -> None:
        """See `sparq.log.disk.Disk`: space is free at once."""

    def check_place(self, path: str) -> None:
        """See `sparq.log.disk.Disk`. It does not count as an operation."""
        if path not in self._names:
            raise DiskError("find", path, errno.ESTALE, text=MOVED)

    def lock(self, path: str) -> MemoryFile:
        """See `sparq.log.disk.Disk`."""
        self.step("lock", path)
        if path in self._locks:
            raise DiskError("lock", path, errno.EWOULDBLOCK)
        file = self.open(path) if path in self._names else self.create(path)
        self._locks[path] = file
        return file

    def _need(self, operation: str, path: str, place: str | None = None) -> None:
        """Raise unless the place exists: by default `path`."""
        if (path if place is None else place) not in self._names:
            raise DiskError(operation, path, errno.ENOENT)

    def _change(self, old: str, new: str, inode: Inode | None = None) -> None:
        change = EntryChange(old, new, inode)
        change.apply(self._names)
        self._changes.append(change)
