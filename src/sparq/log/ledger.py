"""The channels' memory: what each topic's channels are and what they have finished.

1. A channel owns the indexes from `start` on; what is below is settled. A finished or voided range
   that touches `start` moves it. Unfinished = [start, P) less `finished`.
2. `cursor` is how far the channel had handed out when last told: what is unfinished below it has
   been seen by a consumer (attempts + 1), above it has not.
3. `requeued` are unfinished indexes with a due time (wall ns; 0 = ready) and attempts; a finish of
   the index ends it, a seek ends all.
4. Appending only buffers; `flush` writes all that is buffered as one checksummed block: after a
   crash all of it exists or none. Marks tell when: `written_mark`, `synced_mark` rise to the value
   that `appended_mark` had.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sparq.log.disk import Disk, DiskError
from sparq.log.task import TaskKind

Indexes = Sequence[int] | NDArray[np.int64]


@dataclass(slots=True)
class ChannelState:
    start: int
    cursor: int
    finished: list[tuple[int, int]] = field(default_factory=list)  # sorted, disjoint, > start
    requeued: dict[int, tuple[int, int]] = field(default_factory=dict)  # index: (due, attempts)
    paused: bool = False


@dataclass(slots=True)
class TopicState:
    mark: int | None = None  # P; None: never told
    paused: bool = False
    channels: dict[str, ChannelState] = field(default_factory=dict)
    highest_index: int = -1  # of any record: pass floor_index=highest_index + 1 to Log.open


class LedgerWork:
    """A sync or a checkpoint."""

    kind: TaskKind
    error: DiskError | None

    def run(self) -> None: ...


class Ledger:
    log_id: bytes  # 16 bytes, random at creation: pass it to Log.open
    damage: list[str]
    appended_mark: int
    written_mark: int
    synced_mark: int
    size_bytes: int
    wants_checkpoint: (
        bool  # large, or its file can no longer be synced: hand checkpoint_task a snapshot
    )

    @classmethod
    def open(
        cls, disk: Disk, directory: str, reserve: "Reserve | None" = None
    ) -> tuple["Ledger", TopicState]: ...

    def created(self, channel: str, start: int) -> None: ...
    def deleted(self, channel: str) -> None: ...
    def paused(self, channel: str | None, flag: bool) -> None: ...
    def finished(self, channel: str, starts: Indexes, ends: Indexes) -> None: ...
    def requeued(
        self, channel: str, indexes: Indexes, dues: Indexes, attempts: Indexes
    ) -> None: ...
    def voided(self, channel: str, starts: Indexes, ends: Indexes) -> None: ...
    def seek(self, channel: str, index: int) -> None:
        """start = cursor = index; nothing finished, nothing requeued."""

    def cursor(self, channel: str, index: int) -> None: ...
    def mark(self, index: int) -> None:
        """P."""

    def flush(self) -> None:
        """One inline write of what is buffered. DiskError: all stays buffered for the next call."""

    def sync_task(self) -> LedgerWork | None:
        """None: all that is written is synced, or a sync is under way."""

    def checkpoint_task(self, snapshot: TopicState) -> LedgerWork | None:
        """A smaller ledger from the state as it is now (flushed before). None: one is under way."""

    def finish(self, work: LedgerWork) -> None: ...
    def close(self) -> None: ...


class Reserve:
    """Space kept for ledgers on a full disk: one spare file in the data path, for all topics."""

    @classmethod
    def open(cls, disk: Disk, data_path: str, size_bytes: int = 16 << 20) -> "Reserve": ...
