"""What a ledger lets run elsewhere: syncs and checkpoints; and the names of its files.

Both run beside the loop, which meanwhile appends to the ledger: they touch only the files that they
were given and those of their own.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from sparq.log import ledger_file
from sparq.log.disk import Disk, DiskError, File
from sparq.log.ledger_file import DATA_START, LedgerHeader
from sparq.log.reserve import BLOCK_BYTES, Purpose, Reserve
from sparq.log.task import TaskKind

BESIDE: Final = ".tmp"
"""Ends the name of a checkpoint that is being written."""

Result = TypeVar("Result")


def ledger_path(directory: str, generation: int) -> str:
    """The file to which this generation's records are appended."""
    return f"{directory}/ledger-{generation:08x}"


def checkpoint_path(directory: str, generation: int) -> str:
    """The state before this generation's first record."""
    return f"{directory}/checkpoint-{generation:08x}"


def parse_name(name: str) -> tuple[str, int] | None:
    """("ledger" or "checkpoint", generation) of a file's name; None: it is neither."""
    kind, _, digits = name.partition("-")
    if kind not in ("ledger", "checkpoint") or len(digits) != 8:
        return None
    try:
        return kind, int(digits, 16)
    except ValueError:
        return None


def with_reserve(
    action: Callable[[], Result],
    reserve: Reserve | None,
    size_bytes: int,
    purpose: Purpose = Purpose.APPEND,
) -> Result:
    """Do something that needs so much space; where there is none, take it from the reserve.

    Raises:
        DiskError: it failed for another reason, or has had all that its purpose may have.
    """
    while True:
        try:
            return action()
        except DiskError as error:
            if not error.is_full or reserve is None or not reserve.release(size_bytes, purpose):
                raise


class LedgerSync:
    """Syncs a ledger's files."""

    __slots__ = ("_disk", "_folder", "error", "files", "mark")

    def __init__(self, disk: Disk, files: list[File], folder: str | None, mark: int) -> None:
        """Prepare.

        Args:
            disk: the disk.
            files: what has been appended to since the last sync, the newest last.
            folder: to be synced too, since it has a new file; None: it has none.
            mark: how many records are written.
        """
        self._disk = disk
        self.files = files
        self._folder = folder
        self.mark = mark
        self.error: DiskError | None = None

    @property
    def kind(self) -> TaskKind:
        """Replies may wait for it, as for a commit."""
        return TaskKind.COMMIT

    def run(self) -> None:
        """Sync."""
        try:
            for file in self.files:
                file.sync()
            if self._folder is not None:
                self._disk.sync_directory(self._folder)
        except DiskError as error:
            self.error = error


class Checkpoint:
    """Writes a checkpoint, and deletes what it replaces."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        header: LedgerHeader,
        state: bytes,
        *,
        fresh: File,
        replaced: list[File],
        mark: int,
        reserve: Reserve | None,
        purpose: Purpose = Purpose.APPEND,
    ) -> None:
        """Prepare.

        Args:
            disk: the disk.
            directory: the topic's folder.
            header: the checkpoint's header, with its generation.
            state: records.
            fresh: the ledger of the same generation, just begun.
            replaced: older ledgers, still open: nobody appends to them.
            mark: how many records the state holds.
            reserve: for a full disk.
            purpose: CHECKPOINT: the state is stored once, and the floor of the reserve may be used.
        """
        self._disk = disk
        self._directory = directory
        self._header = header
        self._fresh = fresh
        self._replaced = replaced
        self._reserve = reserve
        self._purpose = purpose
        block = ledger_file.encode_block(state, DATA_START, header.salt)
        copy = b""
        if purpose is not Purpose.CHECKPOINT:
            copy = ledger_file.encode_block(state, DATA_START + len(block), header.salt)
        self._data = b"".join((ledger_file.encode_header(header), block, copy))
        self.mark = mark
        self.state_bytes = len(state)
        self.size_bytes = len(self._data)
        self.error: DiskError | None = None
        self.fresh_failed = False
        """Whether the new ledger could not be synced."""

    @property
    def kind(self) -> TaskKind:
        """It may be large."""
        return TaskKind.HOUSEKEEPING

    def run(self) -> None:
        """Write beside, sync, rename, sync the folder; only then delete."""
        try:
            self._write()
        except DiskError as error:
            self.error = error
            return
        self._tidy()

    def _write(self) -> None:
        path = checkpoint_path(self._directory, self._header.generation)
        beside = path + BESIDE
        if self._disk.exists(beside):
            self._disk.unlink(beside)
        self.fresh_failed = True
        self._fresh.sync()
        self.fresh_failed = False
        reserve, purpose = self._reserve, self._purpose
        file = with_reserve(lambda: self._disk.create(beside), reserve, BLOCK_BYTES, purpose)
        try:
            try:
                with_reserve(
                    lambda: file.append([self._data], 0), reserve, self.size_bytes, purpose
                )
                file.sync()
            finally:
                file.close()
            self._disk.rename(beside, path)
        except DiskError:
            self._forget(beside)
            raise
        self._disk.sync_directory(self._directory)

    def _forget(self, path: str) -> None:
        """Give the space of a file back that came to nothing, if the disk lets us."""
        try:
            self._disk.unlink(path)
        except DiskError:
            return

    def _tidy(self) -> None:
        """Delete older files, whose space goes back to the reserve where that was used.

        What cannot be deleted is deleted at the next start.
        """
        try:
            for name in self._disk.listdir(self._directory):
                known = parse_name(name)
                if known is not None and known[1] < self._header.generation:
                    self._disk.unlink(f"{self._directory}/{name}")
            for file in self._replaced:
                # An open file keeps its space though it has no name any more.
                file.truncate(0)
            if self._reserve is not None and self._reserve.is_low:
                self._reserve.restore()
        except DiskError:
            return
