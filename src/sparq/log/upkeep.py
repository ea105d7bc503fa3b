"""Background work of a log: done here, it delays neither commits nor the next start.

1. The next file is created before it is needed: the commit that begins it only renames it, and
   writes and syncs its header (see `segment.create`).
2. Synced data is recorded in index files (see `index_file`), extent by extent as they fill up.
3. Files that earlier runs have left half-finished are deleted.

At most one task of each kind is under way; it runs in the housekeeping thread and is then handed
back.
"""

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Final

from sparq.log.disk import Disk, DiskError
from sparq.log.index_file import IndexWrite, path_of
from sparq.log.segment import CEILING_SPAN, NEXT, ActiveSegment, LogDir, Segment
from sparq.log.task import FunctionTask, Task
from sparq.protocol.layout import FRAME_OVERHEAD

GONE: Final = ".gone"
STEP_BYTES: Final = 4 << 20
"""Bytes freed at a time: syncs of other files then wait a few milliseconds, not a hundred."""


def erase(disk: Disk, path: str) -> None:
    """Delete a file that no start needs, however large, in steps.

    Raises:
        DiskError: it still exists, perhaps smaller.
    """
    with closing(disk.open(path)) as file:
        size = file.size()
        try:
            while size > STEP_BYTES:
                size -= STEP_BYTES
                file.truncate(size)
        except DiskError as error:
            # A full disk or quota that refuses to truncate still deletes.
            if not error.is_full:
                raise
    disk.unlink(path)


@dataclass(eq=False)
class Drop(Task):
    """A task that deletes the files of a segment that the log has forgotten."""

    place: LogDir
    path: str
    size_bytes: int

    def execute(self) -> None:
        """Delete the files; a file that is gone already is not an error."""
        disk = self.place.disk
        try:
            index_path = path_of(self.path)
            if disk.exists(index_path):
                disk.unlink(index_path)
            # Deleted without a sync of the folder: if a power cut brings the file back, the synced
            # ledger still has all its messages as finished.
            if self.size_bytes <= STEP_BYTES:
                disk.unlink(self.path)
                return
            # The name goes first: after a crash, a shortened segment would look like damage.
            gone = self.path + GONE
            try:
                disk.rename(self.path, gone)
            except DiskError as error:
                if not error.is_full:
                    raise
                disk.unlink(self.path)
                return
            disk.sync_directory(self.place.directory)
            erase(disk, gone)
        except DiskError as error:
            if not error.is_missing:
                raise


def erase_all(disk: Disk, paths: Iterable[str]) -> None:
    """Delete files left by earlier runs; those that cannot be deleted stay to the next start.

    Raises:
        DiskError: one could not be deleted.
    """
    failure: DiskError | None = None
    for path in paths:
        try:
            erase(disk, path)
        except DiskError as error:
            failure = error
    if failure is not None:
        raise failure


PREPARE_AT: Final = 0.5
"""The next file is made when this part of the current one is used, in bytes or in indexes."""
MESSAGE_BYTES_MIN: Final = FRAME_OVERHEAD + 1 + 4
"""Minimum size of a stored message: its frame, and the entry for the frame's end."""
NEVER: Final = 1 << 63


@dataclass(eq=False)
class Prepare(Task):
    """A task that creates the empty file of the next segment, durably.

    Attributes:
        first_index: of the segment before it; used only for the file's name.
        path: that file, once it is there.
    """

    place: LogDir
    first_index: int
    path: str = ""

    def execute(self) -> None:
        """Create and sync the file."""
        disk, folder = self.place.disk, self.place.directory
        stem, number = f"{folder}/{self.first_index:016x}", 0
        path = f"{stem}{NEXT}"
        # A file of an attempt that failed may still be there.
        while disk.exists(path):
            number += 1
            path = f"{stem}.{number}{NEXT}"
        with closing(disk.create(path)) as file:
            file.sync()
        disk.sync_directory(folder)
        self.path = path


UpkeepTask = Prepare | IndexWrite | FunctionTask


class Upkeep:
    """The background work of one log; a log in memory has none.

    Attributes:
        spare: the file that is ready to be the next one; None: there is none.
        spare_due_size: the size of the active file at which the next one is due to be made; NEVER:
            that was begun already, or the log is in memory.
    """

    def __init__(self, place: LogDir, leftovers: list[str], max_bytes_per_file: int) -> None:
        self.spare: str | None = None
        self.spare_due_size = NEVER
        self._place = place
        self.prepare_at(max_bytes_per_file)
        self._leftovers = leftovers
        self._to_index: list[Segment] = []
        self._indexing: IndexWrite | None = None
        self._is_failing = False

    def prepare_at(self, max_bytes_per_file: int) -> None:
        """Set the size at which the next file is made, for files of at most this size."""
        # Files of tiny messages end at their ceiling, long before they reach the size limit.
        self._prepare_at = int(
            PREPARE_AT * min(max_bytes_per_file, CEILING_SPAN * MESSAGE_BYTES_MIN)
        )
        if self.spare_due_size != NEVER:
            self.spare_due_size = self._prepare_at

    def add(self, segment: Segment) -> None:
        """Add a segment, whose index file may be incomplete."""
        if self._place.directory:
            self._to_index.append(segment)
            if self.spare is None:
                self.spare_due_size = self._prepare_at

    def prepare(self, active: ActiveSegment) -> Prepare:
        """Return a task that makes the next file; if it fails, the commit that needs it does."""
        self.spare_due_size = NEVER
        return Prepare(self._place, active.segment.first_index)

    def tasks(self, active: ActiveSegment | None, synced_end: int) -> list[UpkeepTask]:
        """List the tasks that are due now."""
        tasks: list[UpkeepTask] = []
        if not self._place.directory:
            return tasks
        if self._leftovers:
            tasks.append(FunctionTask(partial(erase_all, self._place.disk, self._leftovers)))
            self._leftovers = []
        reserve = self._place.reserve
        is_short = reserve is not None and reserve.is_short
        # An index file only saves time: it must not take space that a ledger needs.
        if self._indexing is None and not is_short:
            growing = None if active is None else active.segment
            self._indexing = self._next_write(growing, synced_end)
            if self._indexing is not None:
                tasks.append(self._indexing)
        return tasks

    def _next_write(self, growing: Segment | None, synced_end: int) -> IndexWrite | None:
        kept: list[Segment] = []
        found: IndexWrite | None = None
        for segment in self._to_index:
            if segment.index_ends:
                continue
            ends = segment.extents.ends
            # The last extent of the growing file may still grow, but one in an index file must not
            # change.
            count = len(ends) - (segment is growing)
            while count > 0 and ends[count - 1] > synced_end:
                count -= 1
            if found is None and count > segment.index_count:
                rows = segment.extents.rows(segment.index_count, count)
                dues = [due for due in segment.dues if due[0] < int(rows[1, -1])]
                found = IndexWrite(self._place.disk, segment, rows, dues)
            if segment is growing or found is not None or count < len(segment.extents):
                kept.append(segment)
        self._to_index = kept
        return found

    def finish(self, task: UpkeepTask) -> str:
        """Take over the result of a task that has run.

        Returns:
            A message for the operator; empty: none.
        """
        if isinstance(task, IndexWrite):
            self._indexing, segment = None, task.segment
            segment.index_ends |= task.broken
            if not segment.index_ends and task.error is None:
                segment.index_count, segment.index_bytes = task.count, task.size
                written = set(task.dues)
                segment.dues = [due for due in segment.dues if due not in written]
        elif isinstance(task, Prepare) and task.error is None:
            self.spare = task.path
            self.spare_due_size = NEVER
        was_failing = self._is_failing
        self._is_failing = task.error is not None
        return (
            f"housekeeping failed, the next start may be slower: {task.error}"
            if task.error and not was_failing
            else ""
        )

    def continues(self, task: UpkeepTask, active: ActiveSegment | None) -> bool:
        """Whether another task like it should follow at once.

        Segments that a start has found without an index file should get one soon. The growing file
        can wait for more extents, and a failed write can wait, too.
        """
        if not isinstance(task, IndexWrite) or task.error is not None:
            return False
        return active is None or task.segment is not active.segment
