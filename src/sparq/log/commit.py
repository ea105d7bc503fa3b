"""One append to a log, from memory to the disk, with every way in which it can fail.

1. A write that fails leaves the file as it was. If restoring it fails too, the file is abandoned:
   the next one begins at the index of the refused batch, so that recovery does not find that batch.
2. A sync that fails means that everything written since the last one may be lost, and that no later
   sync will report it. The file is never synced again. Its unsynced batches are written to a fresh
   file that begins at the first unsynced index, and synced there before anything is acknowledged.
3. Commits that wait together may share a sync (see `journal`): each is written to its own file, and
   counts as unsynced there, although the journal has it.
4. A small batch that is synced is followed by filling (see `segment`) up to the end of its page.
   The file then already has the length that the next batches of that page need, and the file system
   does not have to write a new file length to the disk with each sync.
5. A refused batch is not stored, as far as the disk allows: if cutting it off failed as well, it
   may be there after a crash.
"""

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparq.log import segment as segments
from sparq.log.block import Block, Buffer
from sparq.log.disk import PAGE_BYTES, DiskError
from sparq.log.reserve import BLOCK_BYTES
from sparq.log.segment import DATA_START, FILLING, HEADER, ActiveSegment, LogDir, Segment
from sparq.log.task import Task, TaskKind
from sparq.protocol import batch
from sparq.protocol.frames import patch_timestamps

NEW_FILE_BYTES: Final = 4 * BLOCK_BYTES
"""Space of a new file in addition to its batches: header, last block, entry in the folder."""


# Not frozen: setting frozen fields costs a microsecond more.
@dataclass(slots=True, eq=False)
class PendingBatch:
    """Messages that have their indexes and are about to be stored.

    Attributes:
        block: the messages, in the form in which channels get them once they are stored.
        dues: (position, due time in ns since 1970) of the deferred ones.
        size: bytes that the batch takes in a file.
    """

    block: Block
    publish_time_ns: int
    dues: list[tuple[int, int]] | None
    size: int

    def stamp(self, timestamps: NDArray[np.int64]) -> None:
        """Give each message a timestamp of its own; only before the commit runs."""
        block = self.block
        frames = patch_timestamps(block.frames, block.ends, timestamps)
        oldest_ns = int(timestamps.min())
        self.block = replace(block, frames=frames, oldest_published_ns=oldest_ns)


class CommitState(Enum):
    """The state of a commit.

    It goes from BEGUN by WRITTEN (unless there is only a sync) to SYNCED or JOURNALED; from BEGUN
    or WRITTEN by POISONED to MOVED, since only a fresh file helps then. A failure makes it REFUSED
    or, with data left in a file, LOST; POISONED stays POISONED, which allows no more appends.
    """

    # Every commit hashes members, and Enum's own hash is a Python function, which is slower.
    __hash__ = object.__hash__

    BEGUN = "not written yet; earlier batches may be synced"
    WRITTEN = "the batch is in the file, not synced yet"
    JOURNALED = "the batch is in the file, and synced in a journal"
    SYNCED = "the whole file is synced"
    POISONED = "a sync of the file failed: its unsynced batches may be lost"
    MOVED = "the batch and all unsynced ones before it are synced in a new file"
    REFUSED = "nothing is stored, and the file is unchanged"
    LOST = "nothing is stored, but a file still has data that could not be truncated or deleted"


ON_DISK: Final = frozenset((CommitState.SYNCED, CommitState.MOVED))
"""Everything written before the commit is on the disk, too."""
FAILED: Final = frozenset((CommitState.POISONED, CommitState.LOST))
"""Nothing more may be appended to the file."""


class Stored(NamedTuple):
    """A batch that a commit has written, and its place."""

    segment: Segment
    batch: PendingBatch
    offset: int


@dataclass(slots=True, eq=False)
class Commit(Task):
    """What `Log.begin` has decided about a commit, and the commit's outcome.

    Attributes:
        batch: the batch to append; None: only sync.
        active: the file to append to; None: there is none.
        roll: begin a new file although there is an active one.
        stranded: the unsynced batches are in no file that can be synced.
        unsynced: acknowledged batches that were written since the last sync of their file.
        shares: the commit may share its sync: every unsynced batch is in a journal, and the next
            sync need not be of the log file.
        sync: sync before the commit is done.
        kind: the thread that runs it.
        new_first, new_ordinal, previous_first, now_ns: values for the header of a new file.
        spare: an empty file to become the new file; None: there is none, or it has been tried.

        state: the current state.
        error: why nothing was stored.
        notes: failures that were handled, in words, for the daemon's log.
        created: a new, durable file.
        written: the stored batches, in order.
        has_synced_earlier: the earlier batches are synced; says nothing of the own batch.
        has_used_spare: the spare file is not available any more.
        journal: the number of the journal that has the batch; 0: none.
        journals_ended: nothing more is added to the journals up to this number.
    """

    place: LogDir
    batch: PendingBatch | None
    active: ActiveSegment | None
    unsynced: list[PendingBatch]
    shares: bool
    roll: bool
    stranded: bool
    sync: bool
    new_first: int
    new_ordinal: int
    previous_first: int
    now_ns: int
    end_index: int
    spare: str | None = None
    kind: TaskKind = TaskKind.COMMIT
    state: CommitState = CommitState.BEGUN
    error: DiskError | None = None
    notes: list[str] = field(default_factory=list)
    created: ActiveSegment | None = None
    written: list[Stored] = field(default_factory=list)
    has_synced_earlier: bool = False
    has_used_spare: bool = False
    journal: int = 0
    journals_ended: int = 0

    @property
    def first_index(self) -> int:
        """The index of the first message; without a batch, `end_index`."""
        return self.batch.block.first if self.batch is not None else self.end_index

    def run(self) -> None:
        """Write and sync; may be called in any thread."""
        appended, target, reserve = self.batch, self.active, self.place.reserve
        if self.error is not None or (appended is None and not self.sync):
            return
        try:
            if appended is not None and reserve is not None:
                # Ledgers come first: the log takes only space that the reserve can spare.
                is_new = target is None or self.roll or self.stranded
                size = appended.size + (NEW_FILE_BYTES if is_new else 0)
                if reserve.credit_bytes < size or reserve.held_bytes < reserve.target_bytes:
                    reserve.admit(size)
                else:
                    reserve.credit_bytes -= size  # `admit`, without a call
            if self.stranded:
                # The unsynced batches have to precede this one: indexes ascend in a file.
                self._move()
                return
            if target is None or self.roll:
                target = self._next_file()
                if target is None:
                    return
            if appended is not None:
                self._append(target, appended, target.segment.size)
                self.state = CommitState.WRITTEN
            if self.sync:
                if self._sync(target):
                    self.state = CommitState.SYNCED
                else:
                    self._move()
        except DiskError as error:
            self._refuse(error)

    def _refuse(self, error: DiskError) -> None:
        """Record an error: nothing is stored."""
        self.error = error
        # A quota is in no figure about free space: only the write shows it.
        if error.is_full and self.place.reserve is not None:
            self.place.reserve.is_refusing = True
        if not error.restored:
            self.state = CommitState.LOST
        # Not REFUSED, which allows more appends, if the sync of the active file has failed.
        elif self.state is not CommitState.POISONED:
            self.state = CommitState.REFUSED

    def can_share_sync(self) -> bool:
        """Whether it only appends to an existing file, and may share its sync with others."""
        if self.batch is None or self.active is None or not (self.sync and self.shares):
            return False
        reserve = self.place.reserve
        return not (self.roll or self.stranded or (reserve is not None and reserve.is_low))

    def write_shared(self) -> bytes:
        """Append the batch before a shared sync; return its bytes, empty if that failed."""
        assert self.batch is not None
        assert self.active is not None
        try:
            if self.place.reserve is not None:
                # Once in its own file, once in the journal.
                self.place.reserve.admit(2 * self.batch.size)
            written = self._append(self.active, self.batch, self.active.segment.size)
        except DiskError as error:
            self._refuse(error)
            return b""
        self.state = CommitState.WRITTEN
        # The journal stores the same bytes, whose checksums cover this file's salt and offset.
        return b"".join(written)

    def sync_unshared(self) -> None:
        """Sync the commit's own file, after the shared sync has failed."""
        assert self.active is not None
        if self._sync(self.active):
            self.state = CommitState.SYNCED
            return
        try:
            self._move()
        except DiskError as error:
            self._refuse(error)

    def _next_file(self) -> ActiveSegment | None:
        """Begin the next file; None: the last one's sync failed, so a fresh file has it all."""
        if self.active is not None:
            self.active.cut()
            # A start syncs only a log's newest file, and takes the others to be synced.
            if self.unsynced:
                if not self._sync(self.active):
                    self._move()
                    return None
                self.has_synced_earlier = True
        self.created = self._create(self.new_first, self.new_ordinal)
        return self.created

    def _create(self, first_index: int, base_ordinal: int, *, bare: bool = False) -> ActiveSegment:
        # A spare is used once, even if that fails: by then it may have the segment's name.
        spare, self.spare = self.spare, None
        self.has_used_spare |= spare is not None
        try:
            return segments.create(
                self.place,
                first_index,
                base_ordinal,
                self.now_ns,
                self.previous_first,
                next_index=self.first_index,
                spare=spare,
                bare=bare,
            )
        except DiskError as error:
            if not error.restored:
                # Recovery would end the active file where the rest of the new one begins.
                self.notes.append(f"{error}; the unused new file could not be deleted durably")
            raise

    def _append(self, target: ActiveSegment, appended: PendingBatch, offset: int) -> list[Buffer]:
        """Write a batch at this offset of the file; return its bytes.

        Raises:
            DiskError: if the error is `restored`, the file is as it was.
        """
        segment, block = target.segment, appended.block
        buffers = batch.encode(
            block.frames,
            block.ends,
            block.first,
            block.ordinal,
            publish_time_ns=appended.publish_time_ns,
            log_id_short=segment.key.log_id_short,
            epoch=segment.header.epoch,
            file_offset=offset,
            salt=segment.key.salt,
            dues=appended.dues,
        )
        end, rest = offset + appended.size, 0
        # Lengthening the file in larger steps, by ftruncate or fallocate, was not faster, and would
        # leave a long tail to cut off. Filling is shorter than a page: a batch of a page or more
        # makes the file longer even if there is filling.
        if self.sync and end > target.end and appended.size < PAGE_BYTES:
            rest = -end % PAGE_BYTES
        try:
            target.file.append([*buffers, FILLING[:rest]] if rest else buffers, offset)
            if rest:
                target.end = end + rest
        except DiskError as error:
            target.end = 0  # the filling was cut off with the batch
            if not error.restored:
                self.notes.append(
                    f"{segment.path} is abandoned: {error}, and truncating it failed too"
                )
            raise
        self.written.append(Stored(segment, appended, offset))
        return buffers

    def _sync(self, target: ActiveSegment) -> bool:
        """Sync a file; False: no later sync would report the loss of its unsynced batches."""
        try:
            target.file.sync()
        except DiskError as error:
            self.notes.append(f"{error}: its unsynced batches are written to a new file")
            self.state = CommitState.POISONED
            return False
        return True

    def _move(self) -> None:
        """Write the unsynced batches and the new batch to a fresh file.

        Its header comes last, because the header ends the file before it. That file still has the
        unsynced batches after a kill, and a journal has some of them: it must not end before all of
        them are in the fresh file.
        """
        if self.created is not None:
            # It was just made, and its first sync failed: it holds nothing else.
            if not segments.discard(self.place.disk, self.created.file):
                # A power cut may bring it back, and undo the renaming of a spare: use none.
                self.spare = None
            self.created = None
        self.written = []
        # Batches that were synced before the next file was made are safe where they are.
        moved = [] if self.has_synced_earlier else self.unsynced
        batches = [*moved, *([self.batch] if self.batch is not None else [])]
        first = batches[0].block
        fresh: ActiveSegment | None = None
        try:
            fresh = self._create(first.first, first.ordinal, bare=True)
            offset = DATA_START
            for unsynced in batches:
                self._append(fresh, unsynced, offset)
                offset += unsynced.size
            fresh.file.sync()
            # Not `append`, which would truncate the file to nothing if it failed.
            fresh.file.overwrite(HEADER.encode(fresh.segment.header), 0)
            fresh.file.sync()
        except DiskError as error:
            error.restored = self._give_up(fresh)
            raise
        self.created = fresh
        self.state = CommitState.MOVED

    def _give_up(self, fresh: ActiveSegment | None) -> bool:
        """Remove the refused batch from both files, since the fresh file failed too.

        False: the fresh file may still exist.
        """
        is_gone = fresh is None or segments.discard(self.place.disk, fresh.file)
        if self.active is not None:
            try:
                # This file is never synced again, but after a kill a start would find the refused
                # batch in it.
                self.active.file.truncate(self.active.segment.size)
            except DiskError as error:
                self.notes.append(f"{error}: the file may still contain refused messages")
        return is_gone


@dataclass(slots=True, eq=False)
class Unsynced:
    """Batches without a sync in their own file, in the order in which they were written.

    Attributes:
        batches: the list is replaced, not cleared, when they are synced: a commit in flight may
            read it.
        journal: the number of the oldest journal with one of them; 0: none is in a journal.
        wants_own_sync: the next sync must be that of their own file.
        count: messages in those batches that no journal has.
        size_bytes: bytes that those take in the file.
        since_mono_ns: publish time of the oldest of those, on the mono clock.
    """

    batches: list[PendingBatch] = field(default_factory=list)
    journal: int = 0
    wants_own_sync: bool = False
    count: int = 0
    size_bytes: int = 0
    since_mono_ns: int = 0

    def add(self, written: PendingBatch, journal: int = 0) -> None:
        """Add a written batch; if a journal has it, journals have all batches before it, too."""
        self.batches.append(written)
        if journal:
            # The oldest one: it must not be deleted before this file has a sync of its own.
            self.journal = self.journal or journal
        else:
            self.count += written.block.count
            self.size_bytes += written.size

    def clear(self) -> None:
        """Forget all batches: they are on the disk, in their own file."""
        self.batches = []
        self.journal = 0
        self.wants_own_sync = False
        self.count = self.size_bytes = 0

    def block(self, index: int) -> Block | None:
        """Return the block that holds the index; None: none does."""
        # A plain search: it is needed only after a failed sync.
        for written in self.batches:
            if written.block.first <= index < written.block.end:
                return written.block
        return None
