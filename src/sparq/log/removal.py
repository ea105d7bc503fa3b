"""Takes files of a log away. Deleting 100 MB at once keeps a file system from syncing others.

1. A large file first gets a name that no start takes for a segment's (``<name>.gone``), for good;
   then it is made smaller step by step, then deleted: at no moment is a part of a segment found.
2. The index file goes first: without its segment it tells nothing.
3. What a stop has left half-way, and what was prepared and never used, the next run deletes.
"""

from dataclasses import dataclass
from typing import Final

from sparq.log.disk import Disk, DiskError
from sparq.log.index_file import path_of
from sparq.log.segment import Place
from sparq.log.task import TaskKind

GONE: Final = ".gone"
STEP_BYTES: Final = 4 << 20
"""Freed at a time: syncs of other files wait a few milliseconds for it, not a hundred."""


def erase(disk: Disk, path: str) -> None:
    """Delete a file that no start needs, however large.

    Raises:
        DiskError: it is still there, maybe smaller.
    """
    file = disk.open(path)
    try:
        size = file.size()
        while size > STEP_BYTES:
            size -= STEP_BYTES
            file.truncate(size)
    finally:
        file.close()
    disk.unlink(path)


@dataclass(slots=True, eq=False)
class Drop:
    """Deletes the files of a segment that the log has forgotten."""

    place: Place
    path: str
    size_bytes: int
    error: DiskError | None = None

    @property
    def kind(self) -> TaskKind:
        """Nobody waits for it."""
        return TaskKind.HOUSEKEEPING

    def run(self) -> None:
        """Delete; a file that is gone already is no error."""
        disk = self.place.disk
        try:
            index_path = path_of(self.path)
            if disk.exists(index_path):
                disk.unlink(index_path)
            if self.size_bytes <= STEP_BYTES:
                disk.unlink(self.path)
                return
            gone = self.path + GONE
            disk.rename(self.path, gone)
            disk.sync_directory(self.place.directory)
            erase(disk, gone)
        except DiskError as error:
            if not error.is_missing:
                self.error = error


@dataclass(slots=True, eq=False)
class Sweep:
    """Deletes what earlier runs have left."""

    place: Place
    paths: list[str]
    error: DiskError | None = None

    @property
    def kind(self) -> TaskKind:
        """Nobody waits for it."""
        return TaskKind.HOUSEKEEPING

    def run(self) -> None:
        """Delete; what cannot be deleted is tried at the next start."""
        for path in self.paths:
            try:
                erase(self.place.disk, path)
            except DiskError as error:
                self.error = error
