"""One append to a log on its way to the disk, with everything that can go wrong.

1. A write that fails leaves the file as it was. Where that fails too, the file is given up: the
   next one begins at the index of the refused batch, so that recovery does not find it.
2. A sync that fails says that what was written since the last one may be lost, and that no later
   sync will tell. The file is never synced again; what it had unsynced is written to a fresh file
   that begins at the first unsynced index, and is synced there before anything is acknowledged.
3. Commits that wait together may share a sync (see `journal`): each is written to its own file, and
   counts as unsynced there, though the journal has it.
4. A small batch that is synced is followed by filling (see `segment`) up to the end of its page:
   the file is then as long as the next batches of that page need it to be, and the file system has
   no new length of the file to bring to the disk with each sync.
5. A refused batch is not stored, as far as the disk lets us: after a crash it may be there if
   cutting it off failed as well.
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
from sparq.log.segment import DATA_START, FILLING, ActiveSegment, Place, Segment
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
        block: the messages, as channels get them once they are stored.
        end_index: the index behind the last message's.
        dues: (position, due time in ns since 1970) of the deferred ones.
        size: bytes that they take in a file.
    """

    block: Block
    end_index: int
    publish_time_ns: int
    dues: list[tuple[int, int]] | None
    size: int

    def stamp(self, timestamps: NDArray[np.int64]) -> None:
        """Give each message a timestamp of its own; before the commit runs."""
        block = self.block
        frames = patch_timestamps(block.frames, block.ends, timestamps)
        oldest_ns = int(timestamps.min())
        self.block = replace(block, frames=frames, oldest_published_ns=oldest_ns)


class State(Enum):
    """What a commit has come to."""

    # Members are looked up with each commit, and Enum's own hash is a function in Python.
    __hash__ = object.__hash__

    BEGUN = "nothing has happened, or what was before it is synced"
    WRITTEN = "its batch is in the file, which is to be synced later"
    JOURNALED = "its batch is in the file, and synced in a journal"
    SYNCED = "all of the file is on the disk"
    POISONED = "a sync of the file has failed: what it had unsynced may be lost"
    MOVED = "what was unsynced, and its batch, are synced in a fresh file"
    REFUSED = "nothing is stored, and the file is as it was"
    LOST = "nothing is stored, but a file holds what could not be cut off or deleted"


class Event(Enum):
    """What happens to a commit."""

    __hash__ = object.__hash__

    WRITE = "the batch is appended"
    SHARE = "a journal that has the batch is synced"
    SYNC = "the file is synced"
    SYNC_FAILED = "the sync of the file has failed"
    MOVE = "a fresh file has all that is unsynced"
    FAIL = "an error ends it, and has left nothing behind"
    SPOIL = "an error ends it, and has left something in a file"


TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    (State.BEGUN, Event.WRITE): State.WRITTEN,
    (State.BEGUN, Event.SYNC): State.SYNCED,
    (State.BEGUN, Event.SYNC_FAILED): State.POISONED,
    (State.BEGUN, Event.MOVE): State.MOVED,
    (State.BEGUN, Event.FAIL): State.REFUSED,
    (State.BEGUN, Event.SPOIL): State.LOST,
    (State.WRITTEN, Event.SHARE): State.JOURNALED,
    (State.WRITTEN, Event.SYNC): State.SYNCED,
    (State.WRITTEN, Event.SYNC_FAILED): State.POISONED,
    (State.POISONED, Event.MOVE): State.MOVED,
    (State.POISONED, Event.FAIL): State.POISONED,
    (State.POISONED, Event.SPOIL): State.LOST,
}

ON_DISK: Final = frozenset((State.SYNCED, State.MOVED))
"""All that was written before it is on the disk, too."""
SPOILT: Final = frozenset((State.POISONED, State.LOST))
"""Nothing more may be appended to the file."""


class Stored(NamedTuple):
    """A batch that a commit has written, and where."""

    segment: Segment
    batch: Batch
    offset: int


@dataclass(slots=True, eq=False)
class Commit:
    """What `Log.begin` has decided, and what came of it.

    Attributes:
        batch: what to append; None: only sync.
        active: the file to append to; None: there is none.
        roll: begin a new file all the same.
        owed: the unsynced batches are in no file that can be synced.
        unsynced: batches written since the last sync of their file, which were acknowledged.
        shares: it may share its sync: journals have all of them, whose own file waits for none.
        sync: sync before this is done.
        kind: where it is to be run.
        new_first, new_ordinal, previous_first, now_ns: what a new file's header says.
        spare: an empty file for it; None: there is none, or no more.

        state: what it has come to.
        error: why nothing was stored.
        notes: what failed and was mended, in words, for the daemon's log.
        created: a new file, durable.
        written: what is stored, in order.
        settled: the unsynced batches were synced, whatever came of the rest.
        has_used_spare: the spare file is none any more.
        journal: the number of the journal that has the batch; 0: none.
        journals_ended: nothing more is added to the journals up to this number.
    """

    place: Place
    batch: Batch | None
    active: ActiveSegment | None
    unsynced: list[Batch]
    shares: bool
    roll: bool
    owed: bool
    sync: bool
    kind: TaskKind
    new_first: int
    new_ordinal: int
    previous_first: int
    now_ns: int
    end_index: int
    spare: str | None = None
    state: State = State.BEGUN
    error: DiskError | None = None
    notes: list[str] = field(default_factory=list)
    created: ActiveSegment | None = None
    written: list[Stored] = field(default_factory=list)
    settled: bool = False
    has_used_spare: bool = False
    journal: int = 0
    journals_ended: int = 0

    @property
    def first_index(self) -> int:
        """The index of the first message."""
        return self.batch.block.first if self.batch is not None else self.end_index

    def go(self, event: Event) -> None:
        """Move on by the table."""
        self.state = TRANSITIONS[self.state, event]

    def run(self) -> None:
        """Write and sync, in any thread."""
        appended, target, reserve = self.batch, self.active, self.place.reserve
        if appended is None and not self.sync:
            return
        try:
            if appended is not None and reserve is not None:
                # Of which the ledgers have their share first.
                is_new = target is None or self.roll or self.owed
                size = appended.size + (NEW_FILE_BYTES if is_new else 0)
                if reserve.credit_bytes < size or reserve.held_bytes < reserve.target_bytes:
                    reserve.admit(size)
                else:
                    reserve.credit_bytes -= size  # `admit`, without a call
            if self.owed:
                self._move()
                return
            if target is None or self.roll:
                target = self._next_file()
                if target is None:
                    return
            if appended is not None:
                self.append(target, appended, target.segment.size)
                self.state = TRANSITIONS[self.state, Event.WRITE]  # `go`, without a call
            if self.sync:
                self.sync_alone(target)
        except DiskError as error:
            self.fail(error)

    def fail(self, error: DiskError) -> None:
        """Nothing is stored."""
        self.error = error
        self.go(Event.FAIL if error.restored else Event.SPOIL)

    def _next_file(self) -> ActiveSegment | None:
        """Begin the next file; None: the last one's sync has failed, and all is done elsewhere."""
        if self.active is not None:
            self.active.cut()
            if self.unsynced:
                if not self._sync(self.active):
                    self._poisoned()
                    return None
                self.settled = True
        self.created = self._create(self.new_first, self.new_ordinal)
        return self.created

    def sync_alone(self, target: ActiveSegment) -> None:
        """Sync what is written, in its own file or, where that fails, in a fresh one.

        Raises:
            DiskError: neither could be.
        """
        if self._sync(target):
            self.go(Event.SYNC)
        else:
            self._poisoned()

    def _create(self, first_index: int, base_ordinal: int, *, bare: bool = False) -> ActiveSegment:
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
                self.notes.append(f"{error}, and a file of no use could not be deleted for good")
            raise

    def append(self, target: ActiveSegment, appended: Batch, offset: int) -> list[Buffer]:
        """Write a batch at this place of the file; returns its bytes.

        Raises:
            DiskError: the file is as it was, or else the error is not `restored`.
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
        if self.sync and end > target.end and appended.size < PAGE_BYTES:
            rest = -end % PAGE_BYTES
        try:
            target.file.append([*buffers, FILLING[:rest]] if rest else buffers, offset)
            if rest:
                target.end = end + rest
        except DiskError as error:
            target.end = 0  # cut off, with what was written
            if not error.restored:
                self.notes.append(f"{segment.path} is given up: {error}, nor could it be cut")
            raise
        self.written.append(Stored(segment, appended, offset))
        return buffers

    def _sync(self, target: ActiveSegment) -> bool:
        try:
            target.file.sync()
        except DiskError as error:
            self.notes.append(f"{error}: what it had unsynced is written to a new file")
            return False
        return True

    def _poisoned(self) -> None:
        """No later sync of the file would tell whether it holds what is unsynced."""
        self.go(Event.SYNC_FAILED)
        self._move()

    def _move(self) -> None:
        """Put what is unsynced, and the new batch, into a fresh file.

        Its header comes last. With the header it ends the file before it, of which a kill would
        have left the unsynced batches, and a journal has some: not before they are here.
        """
        if self.created is not None:
            # Made a moment ago, and its first sync failed: nothing else is in it.
            if not segments.discard(self.place.disk, self.created.file):
                # A power cut may bring it back, and undo the new name of a spare: none is used.
                self.spare = None
            self.created = None
        self.written = []
        # What was synced before the next file was made is safe where it is.
        moved = [] if self.settled else self.unsynced
        batches = [*moved, *([self.batch] if self.batch is not None else [])]
        first = batches[0].block
        fresh: ActiveSegment | None = None
        try:
            fresh = self._create(first.first, first.ordinal, bare=True)
            offset = DATA_START
            for unsynced in batches:
                self.append(fresh, unsynced, offset)
                offset += unsynced.size
            fresh.file.sync()
            segments.complete(fresh)
        except DiskError as error:
            error.restored = self._give_up(fresh)
            raise
        self.created = fresh
        self.go(Event.MOVE)

    def _give_up(self, fresh: ActiveSegment | None) -> bool:
        """The fresh file failed too: neither file should hold the refused batch.

        False: the fresh one may be there still.
        """
        is_gone = fresh is None or segments.discard(self.place.disk, fresh.file)
        if self.active is not None:
            try:
                self.active.file.truncate(self.active.segment.size)
            except DiskError as error:
                self.notes.append(f"{error}: it may hold messages that were refused")
        return is_gone


class Shared:
    """A commit that shares its sync with others: the batch at the end of a file that there is.

    Attributes:
        data: the bytes that were written.
    """

    def __init__(self, commit: Commit, appended: Batch, target: ActiveSegment) -> None:
        self.commit, self.batch, self.target = commit, appended, target
        self.data = b""

    @classmethod
    def of(cls, commit: Commit) -> "Shared | None":
        """None: there is more for it to do than to append and to sync."""
        appended, target, reserve = commit.batch, commit.active, commit.place.reserve
        if appended is None or target is None or not (commit.sync and commit.shares):
            return None
        if commit.roll or commit.owed or (reserve is not None and reserve.is_low):
            return None
        return cls(commit, appended, target)

    def write(self) -> bool:
        """The first half: append; False: it has failed."""
        commit, reserve = self.commit, self.commit.place.reserve
        try:
            if reserve is not None:
                reserve.admit(2 * self.batch.size)  # once in its own file, once in the journal
            size = self.target.segment.size
            self.data = b"".join(commit.append(self.target, self.batch, size))
        except DiskError as error:
            commit.fail(error)
            return False
        commit.go(Event.WRITE)
        return True

    def sync_alone(self) -> None:
        """The other half, where what was to be shared has failed."""
        try:
            self.commit.sync_alone(self.target)
        except DiskError as error:
            self.commit.fail(error)


@dataclass(slots=True, eq=False)
class Unsynced:
    """Batches in the order in which they were written.

    Attributes:
        batches: replaced, never changed, when they are synced: a commit in flight may look at them.
        journal: the number of the oldest journal with one of them; 0: none is in one.
        wants_own_sync: the next sync is to be their own file's.
        count: messages in the others.
        size_bytes: what those take in the file.
        since_mono_ns: when the oldest of those was published.
    """

    batches: list[Batch] = field(default_factory=list)
    journal: int = 0
    wants_own_sync: bool = False
    count: int = 0
    size_bytes: int = 0
    since_mono_ns: int = 0

    def add(self, written: Batch, journal: int = 0) -> None:
        """A batch was written; where a journal has it, journals have all those before it, too."""
        self.batches.append(written)
        if journal:
            self.journal = self.journal or journal
        else:
            self.count += written.block.count
            self.size_bytes += written.size

    def clear(self) -> None:
        """All of them are on the disk, in their file."""
        self.batches = []
        self.journal = 0
        self.wants_own_sync = False
        self.count = self.size_bytes = 0

    def block(self, index: int) -> Block | None:
        """The batch that holds the index."""
        for written in self.batches:
            if written.block.first <= index < written.end_index:
                return written.block
        return None
