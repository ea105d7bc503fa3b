"""A topic's ledger: its channels, and what they have finished.

A topic's folder has ``ledger-<generation>``, to which records are appended, and
``checkpoint-<generation>``, the state before that ledger's first record. The state is the newest
checkpoint plus the ledgers from its generation on, in order. For the files' format see
`block_file`, for the records `records`.

1. Noting only buffers. `flush` writes the buffer, in the event loop, as one block: after a crash
   all of it exists or none. Records that could not be written stay buffered.
2. Marks count records: a flush raises `written_mark` to the current `appended_mark`; a sync raises
   `synced_mark` to the `written_mark` that it began with.
3. A file whose sync failed is never synced again. The next checkpoint, made from the broker's state
   in memory, replaces it.
4. On a full disk flushes and checkpoints use the reserve. When a flush finds nothing there, a
   checkpoint made at once, from space set aside for it, frees space: it includes the buffered
   records.
"""

import errno
import secrets
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Final

from sparq.log import block_file
from sparq.log.block_file import DATA_START, HEADER, FileContents, FileHeader, number_in
from sparq.log.disk import (
    Disk,
    DiskError,
    File,
    FileSystem,
    ensure_directory,
    unlink_if_possible,
    write_all_again,
)
from sparq.log.records import Indexes, RecordKind, Replay, TopicState, encode, encode_state
from sparq.log.reserve import BLOCK_BYTES, LEDGER_BYTES_MIN, Account, Purpose, Reserve, with_reserve
from sparq.log.segment import SUFFIX as LOG_SUFFIX
from sparq.log.task import Task, TaskKind

LOG_ID_SIZE: Final = 16
CHECKPOINT_BYTES: Final = 4 << 20
"""Reading a ledger of this size takes about half a second."""
CHECKPOINT_RATIO: Final = 4
"""A checkpoint is due when the ledger is this many times the size of the last one."""
RETRY_FLUSHES: Final = 64
"""Number of flushes after a failed checkpoint until the next one is due."""
LEDGER: Final = "ledger-"
CHECKPOINT: Final = "checkpoint-"
BESIDE: Final = ".tmp"
"""Suffix of a checkpoint that is being written."""


@dataclass(eq=False)
class LedgerSync(Task):
    """A task that syncs a ledger's files.

    Attributes:
        files: files that were appended to since the last sync, the newest last.
        folder: to be synced, too, since it has a new file; None: it has none.
        mark: the number of records that are written.
    """

    disk: Disk
    files: list[File]
    folder: str | None
    mark: int
    kind = TaskKind.COMMIT  # replies may wait for it, as for a commit

    def execute(self) -> None:
        """Sync the files and the folder."""
        for file in self.files:
            file.sync()
        if self.folder is not None:
            self.disk.sync_directory(self.folder)


@dataclass(eq=False)
class Checkpoint(Task):
    """A task that writes a checkpoint, and deletes the files that it replaces.

    Attributes:
        disk: the disk.
        directory: the topic's folder.
        header: the checkpoint's header, with its generation.
        state: the encoded records.
        fresh: the ledger of the same generation, just begun.
        replaced: older ledgers, still open, but not appended to any more.
        mark: the number of records that the state includes.
        reserve: space for a full disk.
        purpose: CHECKPOINT: the state is stored once, and the floor of the reserve may be used.
        size_bytes: the size of the file, once it is written.
        fresh_failed: whether the new ledger could not be synced.
    """

    disk: Disk
    directory: str
    header: FileHeader
    state: bytes
    fresh: File
    replaced: list[File]
    mark: int
    reserve: Reserve | None
    purpose: Purpose
    size_bytes: int = 0
    fresh_failed: bool = False

    def execute(self) -> None:
        """Write a temporary file, sync, rename, sync the folder; only then delete."""
        disk, reserve, purpose = self.disk, self.reserve, self.purpose
        path = f"{self.directory}/{CHECKPOINT}{self.header.generation:08x}"
        data = HEADER.encode(self.header)
        # Stored twice: one bad sector must not cost all channels. On a full disk it is stored once,
        # because the reserve sets space aside for one copy only.
        for _ in range(1 if purpose is Purpose.CHECKPOINT else 2):
            data += block_file.encode_block(self.state, len(data), self.header.salt)
        self.size_bytes = len(data)
        beside = path + BESIDE
        if disk.exists(beside):
            disk.unlink(beside)
        # First the ledger that continues from this state: if it cannot be synced, nothing that was
        # written to it can be acknowledged, and the files before it must stay.
        self.fresh_failed = True
        self.fresh.sync()
        self.fresh_failed = False
        with closing(
            with_reserve(lambda: disk.create(beside), reserve, BLOCK_BYTES, purpose)
        ) as file:
            try:
                with_reserve(lambda: file.append([data], 0), reserve, len(data), purpose)
                file.sync()
                with_reserve(lambda: disk.rename(beside, path), reserve, BLOCK_BYTES, purpose)
            except DiskError:
                unlink_if_possible(disk, beside)
                raise
        disk.sync_directory(self.directory)
        # Files that cannot be deleted are deleted at the next start.
        with suppress(DiskError):
            self._delete_older()

    def _delete_older(self) -> None:
        """Delete older files; if the reserve was used, it gets their space back."""
        for name in self.disk.listdir(self.directory):
            found = parse_name(name)
            if found is not None and found[0] < self.header.generation:
                self.disk.unlink(f"{self.directory}/{name}")
        for file in self.replaced:
            # An open file keeps its disk space even after it was deleted. It is not closed here,
            # since a sync of it may run in another thread. A quota refuses to truncate; then the
            # space is free once the ledger closes the file.
            with suppress(DiskError):
                file.truncate(0)
        if self.reserve is not None and self.reserve.is_low:
            self.reserve.restore()


class Ledger:
    """One topic's ledger.

    Attributes:
        log_id: 16 random bytes, created with the ledger: the log's id if the log has no files.
        damage: what could not be read, in words.
        lacks_records: whether damage may have cost records, also those of whole channels.
        appended_mark, written_mark, synced_mark: see the module's text.
        has_news: whether the broker has to look at the ledger: set with each record and by the
            ledger's owner, which also resets it.
        size_bytes: size of the file that is appended to.
        account: disk space of all files that the next checkpoint replaces.
    """

    def __init__(self, disk: Disk, directory: str, reserve: Reserve | None) -> None:
        """Use `Ledger.open`."""
        self._disk = disk
        self._directory = directory
        self._reserve = reserve
        self.log_id = secrets.token_bytes(LOG_ID_SIZE)
        self.damage: list[str] = []
        self.lacks_records = False
        self.appended_mark = self.written_mark = self.synced_mark = 0
        self.has_news = False
        self.size_bytes = 0
        self.account = Account()
        self._generation = -1
        self._file: File | None = None
        self._salt = 0
        self._parts: list[bytes] = []
        self._twice = False
        self._unsynced: list[File] = []
        self._retired: list[File] = []
        self._sync: LedgerSync | None = None
        self._checkpoint: Checkpoint | None = None
        self._checkpoint_bytes = 0
        self._poisoned: File | None = None
        self._entry_synced = True
        self._flushes_until_retry = 0
        self._found: list[tuple[str, int]] = []

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        reserve: Reserve | None = None,
        file_system: FileSystem | None = None,
    ) -> tuple["Ledger", TopicState]:
        """Read the folder's ledger; folder and ledger are created durably if missing.

        Args:
            disk: the disk.
            directory: the topic's folder.
            reserve: space for a full disk.
            file_system: the file system that the caller syncs after this, instead of each file.

        Raises:
            DiskError: a file cannot be opened, read or made.
        """
        ledger = cls(disk, directory, reserve)
        ensure_directory(disk, directory)
        state = ledger._recover()
        is_sound = ledger._sync_found(file_system)
        if ledger._file is None:
            # If the newest file was torn, the lack of one block must not keep the topic closed.
            is_new = ledger._generation < 0
            ledger._file = ledger._start_file(Purpose.TOPIC if is_new else Purpose.CHECKPOINT)
            ledger._file.sync()
            disk.sync_directory(directory)
            ledger._found.append((ledger._file.path, 0))
        ledger._entry_synced = True
        if not is_sound:
            ledger._distrust_found()
        if reserve is not None:
            reserve.join(ledger.account)
        return ledger, state

    @classmethod
    def read(cls, disk: Disk, directory: str) -> tuple[TopicState, list[str]]:
        """Return the state, and descriptions of what could not be read, for inspection.

        On a read-only disk nothing is changed.

        Raises:
            DiskError: a file cannot be opened or read.
        """
        ledger = cls(disk, directory, None)
        state = ledger._recover()
        ledger.close()
        return state, ledger.damage

    # Appending

    def note(
        self, kind: RecordKind, channel: str = "", *columns: Indexes, flag: bool = False
    ) -> None:
        """Note a record: its columns are those of its kind; no channel: it is about the topic."""
        self._parts.append(encode(kind, channel, *columns, flag=flag))
        # Damage to a channel's only record would cost it all undelivered messages.
        self._twice |= kind is RecordKind.CREATED
        self.appended_mark += 1
        self.has_news = True

    def flush(self) -> None:
        """Write the buffered records.

        Raises:
            DiskError: all of them stay buffered for the next call.
        """
        if not self._parts:
            return
        file = self._file
        assert file is not None
        noted = b"".join(self._parts)
        block = block_file.encode_block(noted, self.size_bytes, self._salt)
        if self._twice:
            block += block_file.encode_block(noted, self.size_bytes + len(block), self._salt)
        with_reserve(lambda: file.append([block], self.size_bytes), self._reserve, len(block))
        self.size_bytes += len(block)
        self.account.ledger_bytes += len(block)
        self._parts = []
        self._twice = False
        self.written_mark = self.appended_mark
        self._flushes_until_retry -= 1
        if not self._unsynced or self._unsynced[-1] is not file:
            self._unsynced.append(file)

    # Syncing and checkpoints

    def sync_task(self) -> LedgerSync | None:
        """Return a task that syncs what is written; None: nothing to sync now.

        A sync that is under way, or a checkpoint that has to come first, also means None.
        """
        # A poisoned file must not be synced: after one failure the kernel treats the lost pages as
        # written, so the next sync would succeed.
        if self._sync is not None or self._poisoned or self.synced_mark == self.written_mark:
            return None
        folder = None if self._entry_synced else self._directory
        self._sync = LedgerSync(self._disk, self._unsynced, folder, self.written_mark)
        # A new list, not `clear`: the task reads the old one in its thread.
        self._unsynced = []
        return self._sync

    @property
    def wants_checkpoint(self) -> bool:
        """Whether the file is large, or cannot be synced any more."""
        size_bytes = self.size_bytes
        # Every turn asks this: nearly always the size alone answers it.
        is_small = size_bytes <= LEDGER_BYTES_MIN and size_bytes <= CHECKPOINT_BYTES
        if is_small and self._poisoned is None:
            return False
        if self._checkpoint is not None or self._flushes_until_retry > 0:
            return False
        if self._poisoned is not None:
            return True
        large = CHECKPOINT_BYTES
        if self._reserve is not None:
            if self._reserve.is_low:
                # The broker orders checkpoints one by one then: many at once would take the space
                # that each of them is to free (see `reserve`).
                return False
            large = min(large, max(LEDGER_BYTES_MIN, self._reserve.target_bytes // 4))
        return size_bytes > max(large, CHECKPOINT_RATIO * self._checkpoint_bytes)

    @property
    def is_poisoned(self) -> bool:
        """Whether a sync has failed, and no checkpoint has replaced the files since."""
        return self._poisoned is not None

    def checkpoint_task(
        self, snapshot: TopicState, purpose: Purpose = Purpose.APPEND
    ) -> Checkpoint | None:
        """Return a task that replaces all records so far by the state that they add up to.

        Args:
            snapshot: the current state, including records that are only buffered. It is encoded
                before this returns.
            purpose: CHECKPOINT: the task is run at once, and may use the floor of the reserve.

        Returns:
            None: a checkpoint is under way already.

        Raises:
            DiskError: there is no space for it, or the next file cannot be begun.
        """
        if self._checkpoint is not None:
            return None
        # Encoded here and not in the thread, since the broker goes on changing its state.
        state = b"".join(encode_state(snapshot))
        assert self._file is not None
        # An empty file begun by a failed checkpoint is used again.
        if self.size_bytes > DATA_START or self._poisoned is not None:
            try:
                if purpose is Purpose.CHECKPOINT and self._reserve is not None:
                    needed = Account(state_bytes=len(state)).checkpoint_bytes
                    if not self._reserve.holds(needed, purpose):
                        raise DiskError("checkpoint", self._directory, errno.ENOSPC)
                fresh = self._start_file(purpose)
            except DiskError:
                self._flushes_until_retry = RETRY_FLUSHES
                raise
            # It stays open: a sync of it may be under way, or due if this checkpoint fails.
            self._retired.append(self._file)
            self._file = fresh
        self._checkpoint = Checkpoint(
            self._disk,
            self._directory,
            FileHeader(secrets.randbits(64), self.log_id, self._generation),
            state,
            fresh=self._file,
            replaced=list(self._retired),
            mark=self.appended_mark,
            reserve=self._reserve,
            purpose=purpose,
        )
        return self._checkpoint

    def finish(self, task: LedgerSync | Checkpoint) -> None:
        """Take over the result of a task that has run."""
        if isinstance(task, Checkpoint):
            self._finish_checkpoint(task)
        else:
            self._finish_sync(task)
        if self._sync is None and self._checkpoint is None:
            # After a failed checkpoint, an older file may still have to be synced.
            for file in self._retired:
                if file not in self._unsynced:
                    file.close()
            self._retired = [file for file in self._retired if file in self._unsynced]

    def _finish_sync(self, task: LedgerSync) -> None:
        self._sync = None
        if task.error is None:
            self.synced_mark = max(self.synced_mark, task.mark)
            self._entry_synced = True
        elif self.synced_mark < task.mark:
            # No checkpoint has stored the same records meanwhile. If the failed file is an older
            # one, the newest must wait for a checkpoint, too: its records build on the lost ones.
            self._poisoned = task.files[-1]

    def _finish_checkpoint(self, task: Checkpoint) -> None:
        self._checkpoint = None
        if task.error is not None:
            self._flushes_until_retry = RETRY_FLUSHES
            if task.fresh_failed:
                self._poisoned = self._file
            return
        self.synced_mark = max(self.synced_mark, task.mark)
        # The state includes the records that were buffered when it was encoded.
        del self._parts[: max(0, task.mark - self.written_mark)]
        self.written_mark = max(self.written_mark, task.mark)
        self._entry_synced = True
        self._checkpoint_bytes = task.size_bytes
        self.account.state_bytes = len(task.state)
        self.account.ledger_bytes = self.size_bytes
        # If a sync of the new file has failed meanwhile, only another checkpoint has its records.
        if self._poisoned is not self._file:
            self._poisoned = None
        self._unsynced = [file for file in self._unsynced if file is self._file]

    def close(self) -> None:
        """Close the files; no task is under way. Buffered records are lost: flush first."""
        assert self._sync is None
        assert self._checkpoint is None
        if self._reserve is not None:
            self._reserve.leave(self.account)
        for file in self._retired:
            file.close()
        self._retired = []
        if self._file is not None:
            self._file.close()
            self._file = None

    # Opening

    def _start_file(self, purpose: Purpose) -> File:
        """Begin the file of the next generation."""
        generation = self._generation + 1
        # Left by a failed attempt to begin a file, or unreadable: both are read as empty.
        while self._disk.exists(path := f"{self._directory}/{LEDGER}{generation:08x}"):
            generation += 1
        header = FileHeader(secrets.randbits(64), self.log_id, generation)
        data = HEADER.encode(header)
        file = with_reserve(lambda: self._disk.create(path), self._reserve, BLOCK_BYTES, purpose)
        try:
            with_reserve(lambda: file.append([data], 0), self._reserve, len(data), purpose)
        except DiskError:
            file.close()
            unlink_if_possible(self._disk, path)
            raise
        self._generation = generation
        self._salt = header.salt
        self.size_bytes = DATA_START
        self.account.ledger_bytes += DATA_START
        self._entry_synced = False
        return file

    def _recover(self) -> TopicState:
        """Read the state from the folder's files, and open the file to append to."""
        names = self._disk.listdir(self._directory)
        for name in names:
            if name.endswith(BESIDE):
                unlink_if_possible(self._disk, f"{self._directory}/{name}")
        # "checkpoint-" sorts before "ledger-": the state before that ledger's first record.
        files = sorted(found for name in names if (found := parse_name(name)) is not None)
        first = max((number for number, prefix in files if prefix == CHECKPOINT), default=0)
        replay = Replay()
        log_id: bytes | None = None
        for generation, prefix in files:
            path = f"{self._directory}/{prefix}{generation:08x}"
            if generation < first:
                # Left by a checkpoint that was interrupted before it deleted older files.
                unlink_if_possible(self._disk, path)
                continue
            contents = block_file.read(self._disk, path)
            last: memoryview | None = None
            for block in contents.blocks:
                # A block written twice counts once.
                if block != last:
                    replay.apply(block)
                last = block
            self._note_damage(path, contents)
            log_id = contents.header.log_id if contents.header else log_id
            self._generation = max(self._generation, generation)
            if prefix == LEDGER:
                self.account.ledger_bytes += contents.size
                self._continue(path, contents)
            else:
                self._checkpoint_bytes = self.account.state_bytes = contents.size
        if log_id is None and any(name.endswith(LOG_SUFFIX) for name in names):
            # The log's first file is made after the ledger: this one was lost or moved away.
            self.lacks_records = True
            if not self.damage:
                self.damage.append(f"{self._directory}: no ledger, so channels may be lost")
        self.log_id = log_id or self.log_id
        if replay.unknown:
            self.damage.append(
                f"{self._directory}: {replay.unknown} records of a newer version skipped"
            )
        return replay.state()

    def _note_damage(self, path: str, contents: FileContents) -> None:
        if contents.header is None and contents.size > DATA_START:
            self.damage.append(f"{path}: no readable file header, {contents.size} bytes lost")
            self.lacks_records = True
        elif contents.damaged_bytes:
            self.damage.append(f"{path}: {contents.damaged_bytes} damaged bytes")
            self.lacks_records = True
        if contents.header is not None and contents.size > contents.end:
            torn = contents.size - contents.end
            self.damage.append(f"{path}: {torn} bytes after the last whole block (torn)")

    def _continue(self, path: str, contents: FileContents) -> None:
        """Append to the newest file if it ends with a whole block; otherwise a new one is begun."""
        # The records of a file that is no longer appended to count, too: it has to be synced.
        self._found.append((path, 0))
        if self._file is not None:
            self._file.close()
            self._file = None
        # Nothing is cut off: what a crash has left at the end stays available for inspection.
        if contents.header is None or contents.size != contents.end:
            return
        self._file = self._disk.open(path)
        self._salt = contents.header.salt
        self.size_bytes = contents.end

    def sync_found(self) -> None:
        """Sync the files that `open` found, one by one, after syncing all at once failed.

        Nothing was appended since. Files that cannot be synced are reported in `damage`, and a
        checkpoint that replaces them is due.
        """
        if not self._sync_found(None):
            self._distrust_found()

    def _sync_found(self, file_system: FileSystem | None) -> bool:
        try:
            write_all_again(self._disk, self._directory, self._found, file_system, self._file)
        except DiskError as error:
            self.damage.append(str(error))
            return False
        return True

    def _distrust_found(self) -> None:
        """Make a checkpoint due: found files, which are not synced, count as one record."""
        self._poisoned = self._file
        self.appended_mark = self.written_mark = 1


def parse_name(name: str) -> tuple[int, str] | None:
    """Return the generation and the prefix of a file's name; None: it is no ledger's."""
    for prefix in (LEDGER, CHECKPOINT):
        if (number := number_in(name, prefix)) is not None:
            return number, prefix
    return None
