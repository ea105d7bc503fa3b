"""The log of an ephemeral topic: an ordinary log on a disk that stores nothing.

Messages stay in a cache of the log's own, which evicts nothing, until their segment is dropped. The
log's owner enforces the limits of an ephemeral topic (messages and bytes) by `size_bytes`.
"""

import errno
import secrets
from typing import Final

from sparq.log.block import BlockCache
from sparq.log.disk import DiskError, File
from sparq.log.log import LOG_ID_SIZE, Log, LogOptions
from sparq.log.recovery import Recovered
from sparq.log.segment import LogDir
from sparq.protocol.instant import Instant

SEGMENT_BYTES: Final = 1 << 20
"""Size of a segment: memory is freed by this much at a time."""
UNBOUNDED: Final = 1 << 62


def _do_nothing(*_place: object) -> None:
    """What a disk without files does when something is to be changed or synced."""


class VoidFile:
    """A file that accepts all data and stores none."""

    def __init__(self, path: str) -> None:
        self.path = path

    append = overwrite = sync = truncate = reserve = close = staticmethod(_do_nothing)

    def pread(self, size: int, offset: int) -> bytes:
        """Return no data."""
        return b""

    def size(self) -> int:
        """Return 0: it is always empty."""
        return 0


class VoidDisk:
    """A disk that never has any files."""

    make_directory = remove_directory = sync_directory = rename = unlink = staticmethod(_do_nothing)
    file_system = settle = check_place = staticmethod(_do_nothing)

    def open(self, path: str) -> File:
        """Fail: there is no such file."""
        raise DiskError("open", path, errno.ENOENT)

    def create(self, path: str) -> File:
        """Return a file that stores nothing."""
        return VoidFile(path)

    lock = create

    def listdir(self, path: str) -> list[str]:
        """Return no names."""
        return []

    def exists(self, path: str) -> bool:
        """Return False."""
        return False

    def free_bytes(self, path: str) -> int:
        """Return more than is ever needed."""
        return UNBOUNDED


class MemoryLog(Log):
    """A log in memory; it differs from `Log` only in how it is created."""

    def __init__(self, *, node_id: int, now: Instant) -> None:
        """Create an empty log.

        Args:
            node_id: 0 to 1,023, part of each message's id.
            now: the time; the first index is derived from it.
        """
        # The empty folder name tells `Upkeep` that there are no files to prepare or to index.
        place = LogDir(VoidDisk(), "", secrets.token_bytes(LOG_ID_SIZE), node_id, 1)
        super().__init__(
            place,
            LogOptions(max_bytes_per_file=SEGMENT_BYTES),
            Recovered(),
            # Eviction would lose messages: nothing else has them.
            BlockCache(UNBOUNDED),
            now=now,
            floor_index=0,
        )
