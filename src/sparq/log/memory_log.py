"""The log of an ephemeral topic: a log like any other, whose disk forgets.

What is stored stays in a cache of its own that evicts nothing, until its segment is dropped. The
bounds of an ephemeral topic (messages and bytes) are its owner's to keep, by `size_bytes`.
"""

import secrets
from collections.abc import Sequence
from typing import Final

from sparq.log.block import BlockCache
from sparq.log.disk import Buffer, DiskError, File
from sparq.log.log import LOG_ID_SIZE, Log, LogOptions
from sparq.log.recovery import Recovered
from sparq.log.segment import Place
from sparq.protocol.instant import Instant

SEGMENT_BYTES: Final = 1 << 20
"""What is let go at a time."""
UNBOUNDED: Final = 1 << 62
NO_SUCH_FILE: Final = 2


class VoidFile:
    """A file that takes everything and has nothing."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def append(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Forget it."""

    def overwrite(self, data: Buffer, offset: int) -> None:
        """Forget it."""

    def pread(self, size: int, offset: int) -> bytes:
        """Nothing."""
        return b""

    def sync(self) -> None:
        """Nothing to do."""

    def truncate(self, size: int) -> None:
        """Nothing to do."""

    def reserve(self, size: int) -> None:
        """Nothing to do."""

    def size(self) -> int:
        """Always empty."""
        return 0

    def close(self) -> None:
        """Nothing to do."""


class VoidDisk:
    """A disk on which no file ever is."""

    def open(self, path: str) -> File:
        """There is none."""
        raise DiskError("open", path, NO_SUCH_FILE)

    def create(self, path: str) -> File:
        """A file that forgets."""
        return VoidFile(path)

    def listdir(self, path: str) -> list[str]:
        """Nothing."""
        return []

    def exists(self, path: str) -> bool:
        """Never."""
        return False

    def make_directory(self, path: str) -> None:
        """Nothing to do."""

    def remove_directory(self, path: str) -> None:
        """Nothing to do."""

    def sync_directory(self, path: str) -> None:
        """Nothing to do."""

    def rename(self, old: str, new: str) -> None:
        """Nothing to do."""

    def unlink(self, path: str) -> None:
        """Nothing to do."""

    def file_system(self, path: str) -> None:
        """There is none."""

    def free_bytes(self, path: str) -> int:
        """Enough."""
        return UNBOUNDED

    def lock(self, path: str) -> File:
        """Nobody else has it."""
        return VoidFile(path)


class MemoryLog(Log):
    """A log in memory. It differs from `Log` in how it is made, and in nothing else."""

    def __init__(self, *, node_id: int, now: Instant) -> None:
        """An empty log.

        Args:
            node_id: 0 to 1,023, part of each message's id.
            now: the time; the first index is derived from it.
        """
        place = Place(VoidDisk(), "", secrets.token_bytes(LOG_ID_SIZE), node_id, 1)
        super().__init__(
            place,
            LogOptions(max_bytes_per_file=SEGMENT_BYTES),
            Recovered(),
            BlockCache(UNBOUNDED),
            now=now,
            floor_index=0,
        )
