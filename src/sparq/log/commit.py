"""One append to a log on its way to the disk, with everything that can go wrong.

1. A write that fails leaves the file as it was. Where that fails too, the file is given up: the
   next one begins at the index of the refused batch, so that recovery does not find it.
2. A sync that fails says that what was written since the last one may be lost, and that no later
   sync will tell. The file is never synced again; what it had unsynced is written to a fresh file
   that begins at the first unsynced index, and is synced there before anything is acknowledged.
3. Commits that wait together may share a sync (see `journal`): each is written to its own file, and
   counts as unsynced there, though the journal has it.
4. A refused batch is not stored, as far as the disk lets us: after a crash it may be there if
   cutting it off failed as well.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sparq.log import segment as segments
from sparq.log.block import Block, Buffer, Ends
from sparq.log.disk import DiskError
from sparq.log.reserve import BLOCK_BYTES
from sparq.log.segment import DATA_START, Place, Segment
from sparq.log.task import TaskKind
from sparq.protocol import batch
from sparq.protocol.frames import patch_timestamps

NEW_FILE_BYTES: Final = 4 * BLOCK_BYTES
"""What a new file takes beside its batches: the header, the last block, the entry in the folder."""


# Not frozen, though nobody changes one: setting frozen fields costs a microsecond more.
@dataclass(slots=True, eq=False)
class Batch:
    """Messages that have their indexes and are to be stored.

    Attributes:
        size: bytes that they take in a file.
    """

    frames: Buffer
    ends: Ends
    first_index: int
    ordinal: int
    publish_time_ns: int
    dues: list[tuple[int, int]] | None
    size: int

    @property
    def count(self) -> int:
        """How many messages."""
        return len(self.ends)

    @property
    def end_index(self) -> int:
        """The index behind the last message's."""
        return self.first_index + len(self.ends)

    def stamp(self, timestamps: NDArray[np.int64]) -> None:
        """Give each message a timestamp of its own; before the commit runs."""
        self.frames = patch_timestamps(self.frames, self.ends, timestamps)

    def block(self) -> Block:
        """The messages for the channels."""
        return Block(self.first_index, len(self.ends), self.ends, self.frames, self.ordinal)


@dataclass(slots=True, eq=False)
class Commit:
    """What `Log.begin` has decided, and what came of it.

    Attributes:
        batch: what to append; None: only sync.
        active: the file to append to; None: there is none.
        roll: begin a new file all the same.
        owed: the unsynced batches are in no file that can be synced.
        unsynced: batches written since the last sync of their file, which were acknowledged.
        shares: it may share its sync: journals have all of them.
        sync: sync before this is done.
        new_first, new_ordinal, previous_first, now_ns: what a new file's header says.
        spare: an empty file for it; None: there is none, or no more.

        error: why nothing was stored.
        notes: what failed and was mended, in words, for the daemon's log.
        created: a new file, durable.
        written: (batch, offset) in `target`, in order.
        synced: all that is written is on the disk.
        settled: the unsynced batches were synced, whatever came of the rest.
        poisoned: a sync of the active file failed.
        abandoned: `target` holds what could not be cut off.
        replaced: the unsynced batches are in `created` now.
        has_used_spare: the spare file is none any more.
        data: the bytes that were written, of a commit that shares a sync.
        journal: the number of the journal that has them; 0: none.
        journals_ended: nothing more is added to the journals up to this number.
        block: the batch as channels get it, once `Log.finish` has taken it over.
    """

    place: Place
    batch: Batch | None
    active: Segment | None
    unsynced: list[Batch]
    shares: bool
    roll: bool
    owed: bool
    sync: bool
    new_first: int
    new_ordinal: int
    previous_first: int
    now_ns: int
    end_index: int
    spare: str | None = None
    error: DiskError | None = None
    notes: list[str] = field(default_factory=list)
    created: Segment | None = None
    target: Segment | None = None
    written: list[tuple[Batch, int]] = field(default_factory=list)
    synced: bool = False
    settled: bool = False
    poisoned: bool = False
    abandoned: bool = False
    replaced: bool = False
    has_used_spare: bool = False
    data: bytes = b""
    journal: int = 0
    journals_ended: int = 0
    block: Block | None = None

    @property
    def kind(self) -> TaskKind:
        """Where it is to be run."""
        reserve = self.place.reserve
        if (
            self.sync
            or self.roll
            or self.active is None
            or (reserve is not None and reserve.is_low)
        ):
            return TaskKind.COMMIT
        return TaskKind.WRITE

    @property
    def may_share_sync(self) -> bool:
        """Whether all that it is to sync is its batch, at the end of a file that there is."""
        return (
            self.batch is not None
            and self.sync
            and self.shares
            and self.active is not None
            and not self.roll
            and not self.owed
            and not (self.place.reserve is not None and self.place.reserve.is_low)
        )

    def write(self) -> bool:
        """The first half of a commit that shares a sync; False: it has failed."""
        assert self.active is not None
        assert self.batch is not None
        self.target = self.active
        try:
            # Once in its own file, once in the journal.
            self._admit(2 * self.batch.size)
            self.data = b"".join(self._append(self.target, self.batch, self.target.size))
        except DiskError as error:
            self.error = error
        return self.error is None

    def sync_alone(self) -> None:
        """The other half, where what was to be shared has failed."""
        assert self.target is not None
        try:
            if self._sync(self.target):
                self.synced = True
            else:
                self._replace()
        except DiskError as error:
            self.error = error

    @property
    def count(self) -> int:
        """How many messages it appends."""
        return self.batch.count if self.batch is not None else 0

    @property
    def first_index(self) -> int:
        """The index of the first message."""
        return self.batch.first_index if self.batch is not None else self.end_index

    def run(self) -> None:
        """Write and sync, in any thread."""
        try:
            self._run()
        except DiskError as error:
            self.error = error

    def _run(self) -> None:
        if self.batch is None and not self.sync:
            return
        target = self.active
        if self.batch is not None:
            is_new = target is None or self.roll or self.owed
            self._admit(self.batch.size + (NEW_FILE_BYTES if is_new else 0))
        if self.owed:
            self._replace()
            return
        if target is None or self.roll:
            if target is not None and self.unsynced:
                if not self._sync(target):
                    self._replace()
                    return
                self.settled = True
            target = self.created = self._create(self.new_first, self.new_ordinal)
        self.target = target
        if self.batch is not None:
            self._append(target, self.batch, target.size)
        if self.sync and not self._sync(target):
            self._replace()
            return
        self.synced = self.sync

    def _admit(self, size_bytes: int) -> None:
        """Take so much of the disk, of which the ledgers have their share first."""
        if self.place.reserve is not None:
            self.place.reserve.admit(size_bytes)

    def _create(self, first_index: int, base_ordinal: int, *, bare: bool = False) -> Segment:
        spare, self.spare = self.spare, None
        self.has_used_spare |= spare is not None
        try:
            return segments.create(
                self.place,
                first_index,
                base_ordinal,
                self.now_ns,
                self.previous_first,
                spare=spare,
                bare=bare,
            )
        except DiskError as error:
            if not error.restored:
                # What is left of the new file would end the active one in a recovery.
                self.abandoned = True
                self.notes.append(f"{error}, and a file of no use could not be deleted for good")
            raise

    def _append(self, target: Segment, appended: Batch, offset: int) -> list[Buffer]:
        assert target.file is not None
        buffers = batch.encode(
            appended.frames,
            appended.ends,
            appended.first_index,
            appended.ordinal,
            publish_time_ns=appended.publish_time_ns,
            log_id_short=target.header.key.log_id_short,
            epoch=target.header.epoch,
            file_offset=offset,
            salt=target.header.salt,
            dues=appended.dues,
        )
        try:
            target.file.append(buffers, offset)
        except DiskError as error:
            if not error.restored:
                self.abandoned = True
                self.notes.append(f"{target.path} is given up: {error}, nor could it be cut")
            raise
        self.written.append((appended, offset))
        return buffers

    def _sync(self, target: Segment) -> bool:
        assert target.file is not None
        try:
            target.file.sync()
        except DiskError as error:
            self.poisoned = True
            self.notes.append(f"{error}: what it had unsynced is written to a new file")
            return False
        return True

    def _replace(self) -> None:
        """Put what is unsynced, and the new batch, into a fresh file.

        Its header comes last. With the header it ends the file before it, of which a kill would
        have left the unsynced batches, and a journal has some: not before they are here.
        """
        if self.created is not None:
            # Made a moment ago, and its first sync failed: nothing else is in it.
            assert self.created.file is not None
            if not segments.discard(self.place.disk, self.created.file):
                # A power cut may bring it back, and undo the new name of a spare: none is used.
                self.spare = None
            self.created = None
        self.written = []
        # What was synced before the next file was made is safe where it is.
        moved = [] if self.settled else self.unsynced
        batches = [*moved, *([self.batch] if self.batch is not None else [])]
        fresh: Segment | None = None
        try:
            fresh = self._create(batches[0].first_index, batches[0].ordinal, bare=True)
            offset = DATA_START
            for unsynced in batches:
                self._append(fresh, unsynced, offset)
                offset += unsynced.size
            assert fresh.file is not None
            fresh.file.sync()
            segments.complete(fresh)
        except DiskError:
            self._give_up(fresh)
            raise
        self.created = self.target = fresh
        self.replaced = not self.settled
        self.synced = True

    def _give_up(self, fresh: Segment | None) -> None:
        """The fresh file failed too: neither file should hold the refused batch."""
        self.abandoned = False
        if fresh is not None and fresh.file is not None:
            self.abandoned = not segments.discard(self.place.disk, fresh.file)
        if self.active is not None and self.active.file is not None:
            try:
                self.active.file.truncate(self.active.size)
            except DiskError as error:
                self.notes.append(f"{error}: it may hold messages that were refused")
