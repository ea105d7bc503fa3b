"""The channels' memory: what each topic's channels are and what they have finished.

In a topic's folder: ``ledger-<generation>``, to which records are appended, and
``checkpoint-<generation>``, the state before that ledger's first record. The state is the newest
checkpoint and the ledgers from its generation on, in order.

1. Appending only buffers. `flush` writes all that is buffered, in the loop, as one block: after a
   crash all of it exists or none. What could not be written stays buffered.
2. Marks count records: `written_mark` and `synced_mark` rise to what `appended_mark` was when a
   flush, or the flush before a sync, took place.
3. A file that failed to be synced is never synced again. The next checkpoint, made from what the
   broker has in memory, takes its place.
4. On a full disk flushes and checkpoints use the reserve. When a flush finds nothing there, a
   checkpoint made at once, from what is aside for it, gives space back: it holds what was buffered.
"""

import errno
import secrets
from collections.abc import Sequence
from typing import Final

from sparq.log import ledger_file, records
from sparq.log.disk import Disk, DiskError, File, FileSystem, ensure_directory, write_all_again
from sparq.log.ledger_file import (
    BESIDE,
    DATA_START,
    Checkpoint,
    LedgerHeader,
    LedgerSync,
    ledger_path,
    parse_name,
)
from sparq.log.records import Indexes, Kind, Replay, TopicState
from sparq.log.reserve import BLOCK_BYTES, LEDGER_BYTES_MIN, Account, Purpose, Reserve, with_reserve

LedgerWork = LedgerSync | Checkpoint
"""What a ledger hands out, and takes over in `finish`."""


LOG_ID_SIZE: Final = 16
CHECKPOINT_BYTES: Final = 4 << 20
"""A ledger of this size takes about half a second to read."""
CHECKPOINT_RATIO: Final = 4
"""A checkpoint is due when the ledger is so many times its size."""
RETRY_FLUSHES: Final = 64
"""So many flushes after a failed checkpoint the next one is due."""


class Ledger:
    """One topic's ledger.

    Attributes:
        log_id: 16 random bytes, made with the ledger: the log's id where that has no files.
        damage: what could not be read, in words.
        appended_mark, written_mark, synced_mark: see the module's text.
        has_news: whether there is something to see to: a record, or a wish of whoever writes it,
            who sets this back.
        size_bytes: of the file appended to.
        account: what all files take that the next checkpoint replaces.
    """

    def __init__(self, disk: Disk, directory: str, reserve: Reserve | None) -> None:
        """Use `Ledger.open`."""
        self._disk = disk
        self._directory = directory
        self._reserve = reserve
        self.log_id = secrets.token_bytes(LOG_ID_SIZE)
        self.damage: list[str] = []
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
        self._is_sound = True
        self._found: list[tuple[str, int]] = []

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        reserve: Reserve | None = None,
        file_system: FileSystem | None = None,
    ) -> tuple["Ledger", TopicState]:
        """Read what the folder holds; folder and ledger are made where missing, durably.

        Args:
            disk: the disk.
            directory: the topic's folder.
            reserve: space for a full disk.
            file_system: what the caller syncs, when this has returned, instead of each file.

        Raises:
            DiskError: a file cannot be opened, read or made.
        """
        ledger = cls(disk, directory, reserve)
        ensure_directory(disk, directory)
        state = ledger._recover()
        ledger._settle_found(file_system)
        if ledger._file is None:
            # Where the newest file was torn, the topic must not be refused for want of a block.
            is_new = ledger._generation < 0
            ledger._start_file(Purpose.TOPIC if is_new else Purpose.CHECKPOINT)
            assert ledger._file is not None
            ledger._file.sync()
            disk.sync_directory(directory)
            ledger._found.append((ledger._file.path, 0))
        ledger._entry_synced = True
        ledger._unsynced = []
        ledger._distrust_found()
        if reserve is not None:
            reserve.join(ledger.account)
        return ledger, state

    @classmethod
    def read(cls, disk: Disk, directory: str) -> tuple[TopicState, list[str]]:
        """The state, and what could not be read, for who only looks.

        On a disk that takes no changes nothing is changed.

        Raises:
            DiskError: a file cannot be opened or read.
        """
        ledger = cls(disk, directory, None)
        state = ledger._recover()
        ledger.close()
        return state, ledger.damage

    # Appending

    def created(self, channel: str, start: int) -> None:
        """A channel exists, and its messages are those from `start` on."""
        self._append(records.encode_index(Kind.CREATED, channel, start))
        self._twice = True

    def deleted(self, channel: str) -> None:
        """A channel exists no more."""
        self._append(records.encode(Kind.DELETED, channel))

    def paused(self, channel: str | None, flag: bool) -> None:
        """A channel, or the topic, stands still or goes on."""
        self._append(records.encode(Kind.PAUSED, channel or "", flag=flag))

    def finished(self, channel: str, starts: Indexes, ends: Indexes) -> None:
        """The messages of these ranges [start, end) are done with."""
        self._append(records.encode_ranges(Kind.FINISHED, channel, starts, ends))

    def requeued(self, channel: str, indexes: Indexes, dues: Indexes, attempts: Indexes) -> None:
        """These messages are unfinished, due at a wall time in ns, after so many attempts."""
        self._append(records.encode_requeued(channel, indexes, dues, attempts))

    def voided(self, channel: str, starts: Indexes, ends: Indexes) -> None:
        """The messages of these ranges are done with though nobody has seen them."""
        self._append(records.encode_ranges(Kind.VOIDED, channel, starts, ends))

    def seek(self, channel: str, index: int) -> None:
        """The channel's messages are those from `index` on; none is finished, none requeued."""
        self._append(records.encode_index(Kind.SEEK, channel, index))

    def cursor(self, channel: str, index: int) -> None:
        """What is below `index` has been handed out at least once."""
        self._append(records.encode_index(Kind.CURSOR, channel, index))

    def kept(self, channel: str, index: int | None) -> None:
        """What a range reader has read from `index` on stays; None: nothing of it."""
        self._append(records.encode_index(Kind.KEPT, channel, -1 if index is None else index))

    def apart(self, channel: str, indexes: Indexes) -> None:
        """These deferred publishes wait no more for the channel; no name: for any, ever."""
        self._append(records.encode_apart(channel, indexes))

    def redriven(self, channel: str, indexes: Indexes, times: Sequence[int]) -> None:
        """These messages are dead letters that were sent back, each so many times by now."""
        self._append(records.encode_redriven(channel, indexes, times))

    def mark(self, index: int) -> None:
        """The end of what the topic's channels may see, P."""
        self._append(records.encode_index(Kind.MARK, "", index))

    def _append(self, record: bytes) -> None:
        self._parts.append(record)
        self.appended_mark += 1
        self.has_news = True

    def flush(self) -> None:
        """Write what is buffered.

        Raises:
            DiskError: all of it stays buffered for the next call.
        """
        if not self._parts:
            return
        file = self._file
        assert file is not None
        noted = b"".join(self._parts)
        block = ledger_file.encode_block(noted, self.size_bytes, self._salt)
        if self._twice:
            # Damage to its only record would cost a channel all that it has not seen yet.
            block += ledger_file.encode_block(noted, self.size_bytes + len(block), self._salt)
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
        """Syncs what is written. None: all is, one is under way, or a checkpoint comes first."""
        if self._sync is not None or self._poisoned or self.synced_mark == self.written_mark:
            return None
        folder = None if self._entry_synced else self._directory
        self._sync = LedgerSync(self._disk, self._unsynced, folder, self.written_mark)
        self._unsynced = []
        return self._sync

    @property
    def wants_checkpoint(self) -> bool:
        """Whether the file is large, or can no longer be synced."""
        size_bytes = self.size_bytes
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
                return False
            large = min(large, self._reserve.ledger_limit)
        return size_bytes > max(large, CHECKPOINT_RATIO * self._checkpoint_bytes)

    def checkpoint_task(
        self, snapshot: TopicState, purpose: Purpose = Purpose.APPEND
    ) -> Checkpoint | None:
        """Replaces all records so far by the state that they have led to.

        Args:
            snapshot: the state now, with what is only buffered. It is encoded before this returns.
            purpose: CHECKPOINT: it is run at once, and may use the floor of the reserve.

        Returns:
            None: a checkpoint is under way already.

        Raises:
            DiskError: there is no space for it, or the next file cannot be begun.
        """
        if self._checkpoint is not None:
            return None
        state = b"".join(records.encode_state(snapshot))
        old = self._file
        assert old is not None
        # An empty file that a failed checkpoint has begun is as good as another.
        if self.size_bytes > DATA_START or self._poisoned is not None:
            try:
                self._need(len(state), purpose)
                self._start_file(purpose)
            except DiskError:
                self._flushes_until_retry = RETRY_FLUSHES
                raise
            self._retired.append(old)
        header = LedgerHeader(secrets.randbits(64), self.log_id, self._generation)
        assert self._file is not None
        self._checkpoint = Checkpoint(
            self._disk,
            self._directory,
            header,
            state,
            fresh=self._file,
            replaced=list(self._retired),
            mark=self.appended_mark,
            reserve=self._reserve,
            purpose=purpose,
        )
        return self._checkpoint

    def _need(self, state_bytes: int, purpose: Purpose) -> None:
        """Refuse a checkpoint on a full disk for which there is no space."""
        if purpose is Purpose.CHECKPOINT and self._reserve is not None:
            account = Account(state_bytes=state_bytes)
            if not self._reserve.holds(account.checkpoint_bytes, purpose):
                raise DiskError("checkpoint", self._directory, errno.ENOSPC)

    def finish(self, work: LedgerWork) -> None:
        """Take over what came of a work that has run."""
        if isinstance(work, LedgerSync):
            self._finish_sync(work)
        else:
            self._finish_checkpoint(work)
        if self._sync is None and self._checkpoint is None:
            # Behind a checkpoint that failed, what an older file says is still to be synced.
            for file in self._retired:
                if file not in self._unsynced:
                    file.close()
            self._retired = [file for file in self._retired if file in self._unsynced]

    def _finish_sync(self, work: LedgerSync) -> None:
        self._sync = None
        if work.error is None:
            self.synced_mark = max(self.synced_mark, work.mark)
            self._entry_synced = True
        elif self.synced_mark < work.mark:
            # Unless a checkpoint has stored the same meanwhile.
            self._poisoned = work.files[-1]

    def _finish_checkpoint(self, work: Checkpoint) -> None:
        self._checkpoint = None
        if work.error is not None:
            self._flushes_until_retry = RETRY_FLUSHES
            if work.fresh_failed:
                self._poisoned = self._file
            return
        self.synced_mark = max(self.synced_mark, work.mark)
        # What was buffered when the state was encoded is in it.
        del self._parts[: max(0, work.mark - self.written_mark)]
        self.written_mark = max(self.written_mark, work.mark)
        self._entry_synced = True
        self._checkpoint_bytes = work.size_bytes
        self.account.state_bytes = work.state_bytes
        self.account.ledger_bytes = self.size_bytes
        if self._poisoned is not self._file:
            self._poisoned = None
        self._unsynced = [file for file in self._unsynced if file is self._file]

    def close(self) -> None:
        """Close the files; no work is under way. What is buffered is lost: flush before."""
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

    def _start_file(self, purpose: Purpose = Purpose.APPEND) -> None:
        """Begin the file of the next generation."""
        generation = self._generation + 1
        header = LedgerHeader(secrets.randbits(64), self.log_id, generation)
        path = ledger_path(self._directory, generation)
        while self._disk.exists(path):
            # Left by a start of a file that failed, or unreadable: both are read as empty.
            generation += 1
            header = header._replace(generation=generation)
            path = ledger_path(self._directory, generation)
        file = with_reserve(lambda: self._disk.create(path), self._reserve, BLOCK_BYTES, purpose)
        try:
            data = ledger_file.encode_header(header)
            with_reserve(lambda: file.append([data], 0), self._reserve, len(data), purpose)
        except DiskError:
            file.close()
            self._forget_file(path)
            raise
        self._file = file
        self._generation = generation
        self._salt = header.salt
        self.size_bytes = DATA_START
        self.account.ledger_bytes += DATA_START
        self._entry_synced = False

    def _forget_file(self, path: str) -> None:
        """Delete a file that is of no use, if the disk lets us."""
        try:
            self._disk.unlink(path)
        except DiskError:
            return

    def _recover(self) -> TopicState:
        """Add up what the folder's files say, and open the one to go on with."""
        files = self._disk.listdir(self._directory)
        for beside in files:
            if beside.endswith(BESIDE):
                self._forget_file(f"{self._directory}/{beside}")
        names = [name for name in map(parse_name, files) if name]
        checkpoints = [generation for kind, generation in names if kind == "checkpoint"]
        first = max(checkpoints, default=0)
        replay = Replay()
        log_id: bytes | None = None
        for kind, generation in sorted(names, key=lambda name: (name[1], name[0])):
            path = f"{self._directory}/{kind}-{generation:08x}"
            if generation < first:
                # A checkpoint that was stopped before it had tidied up.
                self._forget_file(path)
                continue
            contents = ledger_file.read(self._disk, path)
            last: memoryview | None = None
            for block in contents.blocks:
                # What is written twice counts once.
                if block != last:
                    replay.apply(block)
                last = block
            self._note_damage(path, contents)
            log_id = contents.header.log_id if contents.header else log_id
            self._generation = max(self._generation, generation)
            if kind == "ledger":
                self.account.ledger_bytes += contents.size
                self._continue(path, contents)
            else:
                self._checkpoint_bytes = self.account.state_bytes = contents.size
        self.log_id = log_id or self.log_id
        if replay.unknown:
            self.damage.append(f"{self._directory}: {replay.unknown} records of a newer version")
        return replay.state()

    def _note_damage(self, path: str, contents: ledger_file.Contents) -> None:
        if contents.header is None and contents.size > DATA_START:
            self.damage.append(f"{path}: no readable file header, {contents.size} bytes lost")
        elif contents.damaged_bytes:
            self.damage.append(f"{path}: {contents.damaged_bytes} damaged bytes")
        if contents.header is not None and contents.size > contents.end:
            torn = contents.size - contents.end
            self.damage.append(f"{path}: {torn} bytes behind the last whole block (torn)")

    def _continue(self, path: str, contents: ledger_file.Contents) -> None:
        """Append to the newest file, if it ends with a whole block; else a new one is begun."""
        # Of a file to which nothing is added any more, too, what it says still counts.
        self._found.append((path, 0))
        if self._file is not None:
            self._file.close()
            self._file = None
        if contents.header is None or contents.size != contents.end:
            return
        self._file = self._disk.open(path)
        self._salt = contents.header.salt
        self.size_bytes = contents.end

    def sync_found(self) -> None:
        """Bring what `open` has found to the disk, file by file: syncing all at once has failed.

        Nothing was appended since. What cannot be brought there is `damage`, and a checkpoint is
        due, which takes the place of these files.
        """
        self._settle_found(None)
        self._distrust_found()

    def _settle_found(self, file_system: FileSystem | None) -> None:
        try:
            write_all_again(self._disk, self._directory, self._found, file_system, self._file)
        except DiskError as error:
            self.damage.append(str(error))
            self._is_sound = False

    def _distrust_found(self) -> None:
        """What was found and is not synced counts as one record: a checkpoint will do it."""
        if not self._is_sound:
            self._poisoned = self._file
            self.appended_mark = self.written_mark = 1
