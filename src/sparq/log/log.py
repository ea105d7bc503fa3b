"""A topic's log: append bodies -> indexes; read runs; trim; find an index by time or ordinal.

In the loop unless said otherwise. Work objects (`Commit`, `BlockRead`, `RangeRead`, `Drop`) are run
elsewhere and then handed back: `finish(commit)`, `store(block_read)`, nothing for the others.

1. `end_index` is the next index to be given; indexes of failed commits are burned, so it may run
   ahead of what is stored. Below `written_end` everything stored can be read; below `synced_end` it
   is on the disk for good. Both only rise, and rise in `finish`.
2. Indexes have gaps (between runs of nsqd, burned ones, damage); ordinals count messages.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from sparq.log.block import Block
from sparq.log.cache import BlockCache
from sparq.log.disk import Disk, DiskError
from sparq.log.task import TaskKind
from sparq.protocol.frames import Bodies
from sparq.protocol.instant import Instant


@dataclass(frozen=True, slots=True)
class LogOptions:
    max_bytes_per_file: int = 100 << 20
    sync_every: int = 1
    sync_timeout_ns: int = 2_000_000_000
    unsynced_bytes_max: int = 8 << 20


class Damage(NamedTuple):
    """Stored messages that cannot be read: indexes in [first, end), `messages` of them."""

    first: int
    end: int
    messages: int
    path: str
    offset: int
    size_bytes: int
    reason: str


class SegmentInfo(NamedTuple):
    first_index: int
    end_index: int
    size_bytes: int
    messages: int
    sealed: bool
    first_time_ns: int
    last_time_ns: int


class Commit:
    """One append on its way. `pieces` may be empty: then it only syncs (see `sync_task`)."""

    kind = TaskKind.COMMIT
    error: DiskError | None
    first_index: int
    end_index: int
    count: int
    block: Block | None  # set by finish on success
    notes: list[
        str
    ]  # what went wrong and was mended (failed sync, segment abandoned): to be logged

    def run(self) -> None: ...


class BlockRead:
    kind = TaskKind.READ
    error: DiskError | None
    blocks: list[Block]
    damage: list[Damage]

    def run(self) -> None: ...


class RangeRead:
    kind = TaskKind.READ
    error: DiskError | None
    batches: list[bytes | memoryview]
    next_index: int
    lost: int

    def run(self) -> None: ...


class Drop:
    kind = TaskKind.HOUSEKEEPING
    error: DiskError | None

    def run(self) -> None: ...


class Log:
    log_id: bytes  # 16 bytes
    node_id: int
    epoch: int
    directory: str
    first_index: int  # of the oldest stored message; written_end when there is none
    end_index: int
    written_end: int
    synced_end: int
    first_ordinal: int
    end_ordinal: int
    unsynced_count: int
    damage: list[Damage]  # grows also while running: reads may find more
    torn_bytes: int
    busy: bool  # a commit or sync is in flight: no other may begin

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
    ) -> "Log":
        """Recover what the folder holds. `floor_index`: no index below it is given, and
        written_end is at least this; `log_id`: of a log without files (pass `ledger.log_id`).
        Raises DiskError."""

    def begin(
        self,
        pieces: list[Bodies],
        now: Instant,
        dues: list[tuple[int, int]] | None = None,
        sync: bool | None = None,
    ) -> Commit:
        """`dues`: (position among the bodies, due wall ns). `sync` None: as the options say."""

    def finish(self, commit: Commit) -> None: ...

    def sync_due(self, now: Instant) -> bool:
        """Whether something has been unsynced for longer than the options allow."""

    def sync_task(self) -> Commit | None:
        """None: nothing is unsynced, or a commit is in flight (finish it first)."""

    def block(self, index: int) -> Block | None:
        """The block in memory that holds the index; None: not in memory (or not stored)."""

    def load(self, index: int) -> BlockRead: ...

    def store(self, read: BlockRead) -> None:
        """Blocks go to the cache; damage found is taken out of the index (next_stored skips it)."""

    def next_stored(self, index: int) -> int:
        """The smallest stored index >= index; written_end if there is none."""

    def stored_run(self, index: int) -> tuple[int, int]:
        """[first, end) of the contiguous stored indexes from next_stored(index) on; (e, e) at end."""

    def ordinal_at(self, index: int) -> int: ...

    def index_at_ordinal(self, ordinal: int) -> int:
        """The smallest stored index with at least `ordinal` messages before it."""

    def index_at_time(self, wall_ns: int) -> int | None:
        """First index published at or after; None: run load_time(wall_ns), store it, ask again."""

    def load_time(self, wall_ns: int) -> BlockRead: ...

    def range_read(self, first: int, end: int, max_bytes: int) -> RangeRead: ...

    def segments(self) -> list[SegmentInfo]: ...

    def seal(self) -> None:
        """The next commit begins a new segment, so that the present one may be dropped."""

    def drop(self, segment: SegmentInfo) -> Drop:
        """Forget a sealed segment now; `run` deletes its file."""

    def due_entries(self) -> list[tuple[int, int]]:
        """(index, due wall ns) of the deferred publishes found at recovery."""

    def close(self) -> None: ...
