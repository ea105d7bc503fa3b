"""A topic's log: append bodies, read runs, trim, find an index by time or ordinal.

Everything is called in the event loop and waits for no disk, except `Log.open`. Operations that
wait are tasks to be run in a thread and handed back: commits to `finish`, block reads to `store`.

1. `end_index` is the next index to be assigned. Indexes of failed commits are not used again, so it
   may run ahead. What is stored below `written_end` can be read; below `synced_end` it is durable,
   in its file or in a journal. All three only rise, the last two in `finish` (`written_end` also in
   `pass_over`). If every commit syncs, they rise together: no channel sees an unsynced message.
2. Indexes have gaps: between runs of nsqd, after failed commits, at damage. Ordinals count
   messages; an ordinal gap is the number of messages that were lost to damage or deleted.
3. At most one commit is in flight. Its `run` reads what `begin` put into it and touches no state of
   the log; `finish` takes the outcome over.
4. A new file begins where the one before it ends or, after a failure, at the first index that must
   no longer be looked up there. A run begins at an index derived from the clock, never below any
   ceiling, nor below `floor_index`.
"""

import errno
import secrets
import weakref
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from sparq.log.block import Block, BlockCache, Tail
from sparq.log.commit import FAILED, ON_DISK, Commit, CommitState, PendingBatch, Stored, Unsynced
from sparq.log.disk import Disk, DiskError, File, FileSystem, ensure_directory
from sparq.log.index import Index
from sparq.log.inspection import LogInspection
from sparq.log.reading import BlockRead, RangeRead
from sparq.log.recovery import Recovered, recover, restore_names, scan_again, sync_found
from sparq.log.reserve import Reserve
from sparq.log.segment import (
    CEILING_SPAN,
    DATA_START,
    ActiveSegment,
    Extent,
    LogDir,
    Segment,
    SegmentInfo,
)
from sparq.log.task import TaskKind
from sparq.log.upkeep import Drop, Upkeep
from sparq.options.units import SECOND
from sparq.protocol import batch
from sparq.protocol.frames import BodySlices
from sparq.protocol.instant import CLOCK_END_NS, INDEX_EPOCH_NS, Instant, clock_index
from sparq.protocol.layout import INDEX_LIMIT

COMMIT: Final = TaskKind.COMMIT
WRITE: Final = TaskKind.WRITE
LOG_ID_SIZE: Final = 16
CLOCK_TEXT: Final = "the clock is past July 2061, when message ids run out"
USED_UP_TEXT: Final = "the message ids of this topic have run out: an earlier clock was wrong"


@dataclass(frozen=True, slots=True)
class LogOptions:
    """A log's limits.

    Attributes:
        max_bytes_per_file: maximum size of a file; only a single batch may be larger.
        sync_every: number of messages after which a commit syncs; 1: every commit does.
        sync_timeout_ns: a sync is due once messages have been unsynced for this long.
        unsynced_bytes_max: unsynced messages stay in memory until they are synced (after a failed
            sync they are written again); beyond this size, a commit syncs whatever the policy.
    """

    max_bytes_per_file: int = 100 << 20
    sync_every: int = 1
    sync_timeout_ns: int = 2 * SECOND
    unsynced_bytes_max: int = 8 << 20


class Log(Index):
    """One topic's log.

    Attributes:
        place: disk and folder, log id, node id, epoch of this run.
        log_id: 16 random bytes: another log with the same topic name has others.
        node_id: part of each message's id.
        upkeep: background work that makes later commits and the next start faster.
        inspection: the log for inspection, without changes.
        end_index, written_end, synced_end, end_ordinal: see the module's text.
        active: the segment that is appended to.
        flight: the commit in flight: no other may begin; None: none is.
        unsynced: written batches that are not durable in their own file yet.
        damage: everything found unreadable, at recovery and since; it only grows.
        torn_bytes: bytes after the last batch of the newest file, at recovery.
        due_entries: (index, due time in ns since 1970) of the deferred publishes found at recovery.
    """

    def __init__(
        self,
        place: LogDir,
        options: LogOptions,
        found: Recovered,
        cache: BlockCache,
        *,
        now: Instant,
        floor_index: int,
    ) -> None:
        """Use `Log.open`."""
        super().__init__()
        self.place = place
        self.log_id, self.node_id = place.log_id, place.node_id
        self.options = options
        self.end_index = max(clock_index(now.wall_ns), found.ceiling, floor_index)
        self._is_clocked = now.wall_ns < CLOCK_END_NS
        self.end_ordinal = found.segments[-1].end_ordinal if found.segments else 0
        self.damage, self.torn_bytes = found.damage, found.torn_bytes
        self.due_entries = found.dues
        self.upkeep = Upkeep(place, found.leftovers, options.max_bytes_per_file)
        for segment in found.segments:
            self.add_file(segment)
            self.upkeep.add(segment)
        self.written_end = max([floor_index, *(s.end_index for s in found.segments)])
        self.active: ActiveSegment | None = None
        self.flight: Commit | None = None
        self.unsynced = Unsynced()
        self._stranded = False
        self._refused_first: int | None = None
        self._now_ns = now.wall_ns
        self.synced_end, self._cache = self.written_end, cache
        self._owner = object()
        self.inspection = LogInspection(place.disk, self, cache, self._owner)
        self._tail = Tail(cache, self._owner)
        self._recent: weakref.ref[Block] | None = None  # returned last; weak: eviction frees it

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        *,
        node_id: int,
        options: LogOptions,
        now: Instant,
        floor_index: int = 0,
        log_id: bytes | None = None,
        cache: BlockCache | None = None,
        reserve: Reserve | None = None,
        believes_indexes: bool = True,
        file_system: FileSystem | None = None,
    ) -> "Log":
        """Recover the log in a folder, which is created if missing.

        Args:
            directory: the topic's folder.
            node_id: 0 to 1,023, part of each message's id.
            floor_index: no index below it is assigned, and `written_end` is at least this: one more
                than the highest index in the ledger or in the mark of a deleted topic.
            log_id: the id for a log that has no files yet: the ledger's.
            cache: the cache shared with other logs; None: one of its own.
            reserve: the ledgers' space; while it is used, nothing is appended.
            believes_indexes: whether to use index files, or to read all headers.
            file_system: the file system that the caller syncs after this, instead of each file.

        Raises:
            DiskError: the folder or a file in it cannot be opened, or its contents cannot be
                synced.
        """
        ensure_directory(disk, directory)
        found = recover(disk, directory, log_id, believes_indexes=believes_indexes)
        id_ = found.log_id or log_id or secrets.token_bytes(LOG_ID_SIZE)
        seconds = max(0, now.wall_ns - INDEX_EPOCH_NS) // SECOND
        place = LogDir(disk, directory, id_, node_id, max(found.epoch + 1, seconds), reserve)
        restore_names(place, found.segments)
        sync_found(disk, directory, found.segments, file_system)
        return cls(place, options, found, cache or BlockCache(), now=now, floor_index=floor_index)

    def sync_found(self) -> None:
        """Sync what `open` found, file by file, after syncing all at once failed.

        Raises:
            DiskError: nothing may rely on it.
        """
        sync_found(self.place.disk, self.place.directory, self.files, None)

    # Contents

    @property
    def first_index(self) -> int:
        """The index of the oldest stored message; `written_end` if there is none."""
        return self.next_stored(0)

    @property
    def first_ordinal(self) -> int:
        """The number of messages before the oldest stored one."""
        return self.ordinal_at(self.first_index)

    @property
    def size_bytes(self) -> int:
        """The size of all segments."""
        return sum(segment.size for segment in self.files)

    # Appending

    def begin(
        self,
        pieces: list[BodySlices],
        now: Instant,
        dues: list[tuple[int, int]] | None = None,
        sync: bool | None = None,
    ) -> Commit:
        """Assign indexes to the bodies and create the commit that stores all of them or none.

        Args:
            pieces: the bodies, in order; without any, the commit does nothing.
            now: the publish time.
            dues: (position among the bodies, due time in ns since 1970) of the deferred ones.
            sync: whether the commit syncs before it is done; None: as the options say.

        Raises:
            BatchError: more than one batch can hold; nothing has changed.
        """
        assert self.flight is None
        count = 0
        for piece in pieces:
            count += len(piece.sizes)
        if count > CEILING_SPAN:
            raise batch.BatchError(f"a batch of {count} messages is too large")
        if not count:
            return self._start(None, sync=False)
        first = self.end_index
        if now.wall_ns >= CLOCK_END_NS or first > INDEX_LIMIT - count or not self._is_clocked:
            if (error := self._index_error(count, now)) is not None:
                commit = self._start(None, sync=False)
                commit.error = error
                return commit
            first = self.end_index
        data, ends = batch.encode_frames(pieces, first, self.place.node_id, now.wall_ns)
        size = batch.batch_size(count, len(data), batch.dues_size(len(dues)) if dues else 0)
        wall_ns, unsynced, options = now.wall_ns, self.unsynced, self.options
        block = Block(first, count, ends, data, self.end_ordinal, now.wall_ns)
        self.end_index, self._now_ns = first + count, wall_ns
        # A refused batch's indexes are not used again: it may still be in the file.
        if not unsynced.count:
            unsynced.since_mono_ns = now.mono_ns
        if sync is None:
            is_due = unsynced.count + count >= options.sync_every
            sync = is_due or unsynced.size_bytes + size > options.unsynced_bytes_max
        return self._start(PendingBatch(block, wall_ns, dues, size), sync)

    def _index_error(self, count: int, now: Instant) -> DiskError | None:
        """Why no index can be assigned; None: the clock has been set right since the start."""
        if now.wall_ns < CLOCK_END_NS and not self._is_clocked:
            self._is_clocked = True
            self.end_index = max(self.end_index, clock_index(now.wall_ns))
        if now.wall_ns < CLOCK_END_NS and self.end_index <= INDEX_LIMIT - count:
            return None
        text = CLOCK_TEXT if now.wall_ns >= CLOCK_END_NS else USED_UP_TEXT
        return DiskError("write", self.place.directory, errno.EOVERFLOW, text=text)

    def limit_files(self, max_bytes_per_file: int) -> None:
        """Limit files to this size from now on (see `LogOptions`)."""
        if max_bytes_per_file != self.options.max_bytes_per_file:
            self.options = replace(self.options, max_bytes_per_file=max_bytes_per_file)
            self.upkeep.prepare_at(max_bytes_per_file)

    def _start(self, appended: PendingBatch | None, sync: bool) -> Commit:
        active, unsynced, files = self.active, self.unsynced, self.files
        first, roll = self.end_index, False
        if appended is not None:
            first = appended.block.first
            if active is not None:
                filled, header = active.segment.size, active.segment.header
                # A batch that is larger than the limit gets a file of its own.
                is_full = filled + appended.size > self.options.max_bytes_per_file
                roll = (is_full and filled > DATA_START) or self.end_index > header.ceiling
        sync, reserve = sync or self._stranded, self.place.reserve
        is_low = reserve is not None and reserve.held_bytes < reserve.target_bytes
        if self._refused_first is not None:
            first = min(first, self._refused_first)
        # A WRITE may run in the event loop: it neither syncs, creates a file nor fills the reserve.
        self.flight = commit = Commit(
            self.place,
            appended,
            active,
            unsynced.batches,
            not unsynced.count and not unsynced.wants_own_sync,
            roll=roll,
            stranded=self._stranded,
            sync=sync,
            kind=COMMIT if sync or roll or is_low or active is None else WRITE,
            new_first=first,
            new_ordinal=self.end_ordinal,
            previous_first=files[-1].first_index if files else -1,
            now_ns=self._now_ns,
            end_index=self.end_index,
            spare=self.upkeep.spare,
        )
        return commit

    def sync_due(self, now: Instant) -> bool:
        """Whether a message has been unsynced for longer than the options allow."""
        waited = now.mono_ns - self.unsynced.since_mono_ns
        return bool(self.unsynced.count) and waited >= self.options.sync_timeout_ns

    def sync_task(self) -> Commit | None:
        """Return a commit that only syncs; None: nothing is unsynced, or the next commit does."""
        self.unsynced.wants_own_sync = is_needed = bool(self.unsynced.batches)
        return self._start(None, sync=True) if is_needed and not self.flight else None

    def finish(self, commit: Commit) -> None:
        """Take over the result of the commit in flight, which has run."""
        assert commit is self.flight
        self.flight, state = None, commit.state
        is_on_disk = state in ON_DISK
        if commit.has_used_spare:
            self.upkeep.spare = None
        if is_on_disk or commit.has_synced_earlier:
            # `written_end` has not risen yet: its own batch is not counted.
            if self.unsynced.batches:
                self.unsynced.clear()
            self.synced_end = self.written_end
        if commit.created is not None:
            self._leave_active()
            self.add_file(commit.created.segment)
            self.upkeep.add(commit.created.segment)
            self.active = commit.created
            self._refused_first = None
        elif state in FAILED:
            self._leave_active()
        if commit.error is not None:
            self._refused(commit)
        else:
            self._stranded &= state is not CommitState.MOVED
            for stored in commit.written:
                self._stored(commit, stored)
            self.written_end = max(self.written_end, commit.end_index)
            if is_on_disk or state is CommitState.JOURNALED:
                self.synced_end = self.written_end
            if commit.batch is not None and not is_on_disk:
                self.unsynced.add(commit.batch, commit.journal)

    def _leave_active(self) -> None:
        """Append no more to the active file."""
        if self.active is not None:
            self.active.file.close()
        self.active = None
        self._tail.forget()

    def _refused(self, commit: Commit) -> None:
        if commit.state is CommitState.LOST:
            # It may be the new file; a power cut could bring it back and undo a spare's renaming.
            self._leave_active()
            self.upkeep.spare = None
        # Until a commit moves them, no file that can be synced has the unsynced batches.
        self._stranded = bool(self.unsynced.batches) and (self._stranded or commit.state in FAILED)
        if self.active is None and commit.batch is not None and self._refused_first is None:
            self._refused_first = commit.batch.block.first

    def _stored(self, commit: Commit, stored: Stored) -> None:
        """Record where a batch was written, and keep it in memory."""
        segment, written, offset = stored
        block, tail = written.block, self._tail
        time_ns, size = written.publish_time_ns, written.size
        end = block.first + block.count
        extent = Extent(block.first, end, block.ordinal, offset, size, time_ns)
        if segment.extents.append(extent, fresh=tail.entry.evicted):
            tail.begin(block)
        else:
            tail.extend(block)
        segment.size = offset + size
        segment.first_time_ns = segment.first_time_ns or time_ns
        segment.last_time_ns = max(segment.last_time_ns, time_ns)
        if written.dues:
            segment.dues += [(block.first + position, due) for position, due in written.dues]
        if written is commit.batch:
            self.end_ordinal = block.ordinal + block.count

    # Reading

    def block(self, index: int) -> Block | None:
        """Return the block in memory with this index; None: it must be loaded, or is not stored."""
        recent = self._recent() if self._recent is not None else None
        if recent is not None and recent.first <= index < recent.first + recent.count:
            return recent
        found = self.locate(index)
        if found is None:
            return None
        segment, position = found
        entry = self._cache.get((self._owner, segment.extents.firsts[position]))
        if entry is not None:
            for block in reversed(entry.blocks):
                if block.first <= index < block.first + block.count:
                    self._recent = weakref.ref(block)
                    return block
        # After a failed sync, unsynced messages are safe only in memory.
        return self.unsynced.block(index) if self._stranded else None

    def load(self, index: int) -> BlockRead:
        """Return a task that reads the extent with this index; it reads nothing if none has it."""
        return self._read(self.locate(index))

    def _read(self, found: tuple[Segment, int] | None) -> BlockRead:
        if found is None:
            return BlockRead(self.place.disk, None, None)
        segment, position = found
        disk, scan = self.place.disk, None
        if segment.indexed:
            scan = partial(scan_again, disk, segment, self.end_of(segment))
        return BlockRead(disk, segment.place(segment.extents[position]), segment, scan)

    def store(self, read: BlockRead) -> None:
        """Keep the blocks read; messages found to be damaged are not stored any more.

        A read error changes nothing: the next attempt may succeed.
        """
        if read.place is None or read.error is not None:
            return
        extent, segment = read.place.extent, read.token
        found = self.locate(extent.first)
        if found is None or found[0] is not segment or segment.extents[found[1]] != extent:
            # It was dropped, has grown, or was stored by another read meanwhile.
            return
        if read.scanned is not None:
            # The segment's index file named messages that are not there.
            self._cache.discard_all(self._owner, segment.extents.firsts)
            segment.extents = read.scanned.extents
            segment.indexed, segment.index_ends = False, True
            self.damage.extend(read.scanned.damage)
            self._recent = None
            return
        if read.damage:
            segment.index_ends = True  # an index file has no gaps
            found[0].extents.replace(found[1], [piece.extent for piece in read.pieces])
            self.damage.extend(read.damage)
            self._cache.discard((self._owner, extent.first))
            self._recent = None
        for piece in read.pieces:
            self._cache.put((self._owner, piece.extent.first), [piece.block])

    def index_at_time(self, wall_ns: int) -> int | None:
        """Return the first index published at or after this time, `written_end` if there is none.

        None: run `load_time(wall_ns)`, `store` it and call this again.
        """
        found = self.at_time(wall_ns)
        if found is None:
            return self.written_end
        segment, position = found
        extent = segment.extents[position]
        # A seek to the beginning of a file, e.g. of the whole log, is answered without a read.
        if position == 0 and segment.first_time_ns >= wall_ns:
            return extent.first
        index = extent.first
        while index < extent.end:
            block = self.block(index)
            if block is None:
                return None
            stamps = block.timestamps(np.arange(block.first, block.end))
            later = np.flatnonzero(stamps >= wall_ns)
            if len(later):
                return block.first + int(later[0])
            index = block.end
        # Damage has taken the extent's latest messages, but the extent still has their time.
        return self.next_stored(extent.end)

    def load_time(self, wall_ns: int) -> BlockRead:
        """Return a task that reads what `index_at_time` needs."""
        return self._read(self.at_time(wall_ns))

    def range_read(self, first: int, end: int, max_bytes: int) -> RangeRead:
        """Return a task that reads the batches that overlap [first, end), up to `max_bytes`."""
        places, stop = self.places(first, end, max_bytes)
        bounds = (first, self.ordinal_at(first), stop, self.ordinal_at(stop))
        return RangeRead(self.place.disk, places, *bounds, max_bytes)

    def segments(self) -> list[SegmentInfo]:
        """List the files, oldest first."""
        growing = self.active.segment if self.active is not None else None
        return [segment.info(sealed=segment is not growing) for segment in self.files]

    def pass_over(self) -> None:
        """Count the indexes up to `end_index` as written; no commit is in flight."""
        assert self.flight is None
        self.written_end = self.end_index

    def end_file(self) -> bool:
        """Append no more to the active file, so that it can be dropped.

        False: there is none, a commit is in flight, or the file has unsynced messages.
        """
        if self.active is None or self.flight is not None or self.unsynced.batches:
            return False
        self._leave_active()
        return True

    def drop(self, info: SegmentInfo) -> Drop:
        """Forget a sealed segment of this log; the returned task deletes its file.

        The segment's end must be durable elsewhere (the ledger's P or finished ranges): otherwise
        the next run may assign its indexes again if the clock is set back.
        """
        segment = next(s for s in self.files if s.path == info.path)
        assert self.active is None or segment is not self.active.segment
        self._cache.discard_all(self._owner, segment.extents.firsts)
        position = self.files.index(segment)
        del self.files[position], self.firsts[position]
        segment.index_ends = True
        self._recent = None
        return Drop(self.place, segment.path, segment.size)

    def close(self) -> None:
        """Close the file; no commit is in flight. This syncs nothing."""
        assert self.flight is None
        if self.active is not None:
            self.active.cut()
        self._leave_active()
        for segment in self.files:
            self._cache.discard_all(self._owner, segment.extents.firsts)


# The log of an ephemeral topic

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
    """The log of an ephemeral topic: an ordinary log on a disk that stores nothing.

    Messages stay in a cache of the log's own, which evicts nothing, until their segment is dropped.
    The log's owner enforces the limits of an ephemeral topic (messages and bytes) by `size_bytes`.
    """

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
