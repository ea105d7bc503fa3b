"""Makes data paths with millions of queued messages, without an nsqd, for bench.restart.

sparq's log and ledger write them, so the files are the same as nsqd's. To save time, syncs are
skipped and small writes are joined.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from bench.load import body
from sparq.broker.catalog import Catalog
from sparq.log.disk import Buffer, File, RealDisk
from sparq.log.ledger import Ledger
from sparq.log.log import Log, LogOptions
from sparq.protocol.frames import BodySlices
from sparq.protocol.instant import Instant

TOPIC: Final = "bench"
CHANNEL: Final = "queue"
GATHER_BYTES: Final = 1 << 20
DAY_NS: Final = 86_400_000_000_000
LEDGER_RANGES: Final = 1 << 14
"""Number of finished ranges in one ledger record."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """The messages of a data path.

    Attributes:
        messages: number of messages.
        per_batch: messages per commit.
        body_bytes: size of each body.
        deferred_every: every N-th message is deferred by a day, and all others are finished;
            0: none is deferred, none finished.
        requeued: number of messages that were delivered and requeued; no two are neighbours.
    """

    messages: int
    per_batch: int = 1
    body_bytes: int = 200
    deferred_every: int = 0
    requeued: int = 0


class GatheringFile:
    """A file that writes its appends to the disk 1 MiB at a time, and whose syncs do nothing."""

    def __init__(self, file: File) -> None:
        self.path = file.path
        self._file = file
        self._parts: list[Buffer] = []
        self._size = 0
        self._at = 0

    def append(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Keep the buffers; write everything kept when it reaches GATHER_BYTES."""
        if not self._parts:
            self._at = offset
        for buffer in buffers:
            self._parts.append(buffer)
            self._size += len(buffer)
        if self._size >= GATHER_BYTES:
            self._write()

    def _write(self) -> None:
        if self._parts:
            self._file.append([b"".join(self._parts)], self._at)
            self._parts, self._size = [], 0

    def overwrite(self, data: Buffer, offset: int) -> None:
        """Write what is kept, then overwrite."""
        self._write()
        self._file.overwrite(data, offset)

    def pread(self, size: int, offset: int) -> bytes:
        """Write what is kept, then read."""
        self._write()
        return self._file.pread(size, offset)

    def sync(self) -> None:
        """Do nothing."""

    def truncate(self, size: int) -> None:
        """Write what is kept, then truncate."""
        self._write()
        self._file.truncate(size)

    def reserve(self, size: int) -> None:
        """Do nothing."""

    def size(self) -> int:
        """Size of the file, with what is kept."""
        self._write()
        return self._file.size()

    def close(self) -> None:
        """Write what is kept, then close."""
        self._write()
        self._file.close()


class GatheringDisk(RealDisk):
    """The real disk, but its files are `GatheringFile`s."""

    def create(self, path: str) -> GatheringFile:
        """Create a file."""
        return GatheringFile(super().create(path))

    def open(self, path: str) -> GatheringFile:
        """Open an existing file."""
        return GatheringFile(super().open(path))

    def sync_directory(self, path: str) -> None:
        """Do nothing."""


def make(folder: Path, backlog: Backlog) -> int:
    """Fill a new data path, and return the size of its log in bytes."""
    disk = GatheringDisk()
    catalog = Catalog(disk, str(folder), 1)
    catalog.load()
    place = catalog.make_folder(TOPIC)
    ledger, _ = Ledger.open(disk, place)
    now = Instant(time.time_ns(), time.monotonic_ns())
    options = LogOptions(sync_every=1 << 62, unsynced_bytes_max=GATHER_BYTES)
    log = Log.open(disk, place, node_id=1, options=options, now=now, log_id=ledger.log_id)
    begin = log.end_index
    ledger.created(CHANNEL, begin)
    ledger.flush()
    deferred = _publish(log, backlog, now)
    if backlog.deferred_every:
        _finish_others(ledger, begin, np.array(deferred, np.int64), log.written_end)
    if backlog.requeued:
        _requeue(ledger, begin, backlog.requeued)
    size = log.size_bytes
    log.close()
    ledger.flush()
    ledger.close()
    return size


def _publish(log: Log, backlog: Backlog, now: Instant) -> list[int]:
    """Publish all messages, and return the indexes of the deferred ones."""
    text = body(backlog.body_bytes)
    full = [BodySlices.of([text] * backlog.per_batch)]
    every = backlog.deferred_every
    deferred: list[int] = []
    done = 0
    while done < backlog.messages:
        count = min(backlog.per_batch, backlog.messages - done)
        pieces = full if count == backlog.per_batch else [BodySlices.of([text] * count)]
        dues = None
        if every:
            positions = range(-done % every, count, every)
            dues = [(position, now.wall_ns + DAY_NS + done) for position in positions] or None
        commit = log.begin(pieces, now, dues)
        commit.run()
        log.finish(commit)
        assert commit.error is None, commit.error
        deferred += [commit.first_index + position for position, _ in dues or ()]
        done += count
    return deferred


def _finish_others(ledger: Ledger, begin: int, deferred: np.ndarray, end: int) -> None:
    """Record in the ledger that all messages but the deferred ones are finished."""
    starts = np.concatenate(([begin], deferred + 1))
    ends = np.append(deferred, end)
    kept = ends > starts
    starts, ends = starts[kept], ends[kept]
    for at in range(0, len(starts), LEDGER_RANGES):
        part = slice(at, at + LEDGER_RANGES)
        ledger.finished(CHANNEL, starts[part], ends[part])
        ledger.flush()
    ledger.cursor(CHANNEL, end)


def _requeue(ledger: Ledger, begin: int, count: int) -> None:
    """Record that every second message, `count` in all, was delivered once and requeued."""
    indexes = begin + 2 * np.arange(count, dtype=np.int64)
    ledger.requeued(CHANNEL, indexes, np.zeros(count, np.int64), np.full(count, 2, np.uint32))
    ledger.flush()
