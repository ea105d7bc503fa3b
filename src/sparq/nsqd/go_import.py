"""Makes logs of the queues of Go's nsqd, topic by topic.

1. Each channel's queue is appended in turn, its channel beginning there and the rest voided for it;
   then the topic's own queue, which all channels have before them (decision 34). So every channel
   has exactly what its queue held, in that order.
2. A message keeps its body, its timestamp and its attempts; its id becomes one of the log's.
3. The mark P is where the topic's own queue begins while nothing may flow from there: the topic is
   paused or has no channel.
4. Memory holds one batch of messages, however long a queue is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from sparq.log.block import BlockCache
from sparq.log.disk import Disk
from sparq.log.go_queue import GoQueue, GoTopic, read_queue
from sparq.log.go_records import LENGTH_SIZE, BadBytes, Records
from sparq.log.ledger import Ledger
from sparq.log.log import Log, LogOptions
from sparq.protocol.instant import Instant

BATCH_BYTES = 256 << 10
BATCH_COUNT = 4096
"""The sizes of a commit; see decision 20."""

CACHE_BYTES = 1 << 20
"""Nobody reads what is imported until nsqd has started."""

REPORT_NS = 5_000_000_000
MIB = 1 << 20

logger = logging.getLogger(__name__)

Clock = Callable[[], Instant]


class ImportStopped(Exception):
    """nsqd was told to stop; nothing of the data path has changed."""


@dataclass(slots=True)
class Tally:
    """What has been imported so far.

    Attributes:
        total_bytes: what there is to read.
        damaged: places in files that could not be read.
    """

    total_bytes: int
    clock: Clock
    is_stopping: Callable[[], bool]
    messages: int = 0
    size_bytes: int = 0
    damaged: int = 0
    reported_ns: int = 0

    def add(self, messages: int, size_bytes: int) -> None:
        """So much more is done.

        Raises:
            ImportStopped: there shall be no more.
        """
        self.messages += messages
        self.size_bytes += size_bytes
        if self.is_stopping():
            raise ImportStopped
        now_ns = self.clock().mono_ns
        if now_ns - self.reported_ns >= REPORT_NS:
            if self.reported_ns:
                done, total = self.size_bytes / MIB, self.total_bytes / MIB
                text = "importing Go's data: %s messages, %.1f of %.1f MiB"
                logger.info(text, f"{self.messages:,}", done, total)
            self.reported_ns = now_ns


class Target:
    """The new log and ledger of a topic."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        *,
        node_id: int,
        floor_index: int,
        max_bytes_per_file: int,
        clock: Clock,
    ) -> None:
        """Begin them in a folder that is made for it; raises DiskError."""
        self._clock = clock
        self.ledger, _ = Ledger.open(disk, folder)
        self.log = Log.open(
            disk,
            folder,
            node_id=node_id,
            # Synced at the end; between, as often as what is unsynced would fill the memory.
            options=LogOptions(max_bytes_per_file=max_bytes_per_file, sync_every=1 << 62),
            now=clock(),
            floor_index=floor_index,
            log_id=self.ledger.log_id,
            cache=BlockCache(CACHE_BYTES),
        )

    def append(self, records: list[Records]) -> int:
        """Store messages as one batch; returns the first one's index; raises DiskError."""
        stamps = np.concatenate([piece.timestamps() for piece in records])
        now = self._clock()
        # What seeks by time go by; a damaged timestamp must not lie in the future.
        published_ns = min(max(int(stamps.max()), 0), now.wall_ns)
        published = Instant(published_ns, now.mono_ns)
        commit = self.log.begin([piece.bodies() for piece in records], published)
        assert commit.batch is not None
        commit.batch.stamp(stamps)
        commit.run()
        self.log.finish(commit)
        if commit.error is not None:
            raise commit.error
        return commit.first_index

    def finish(self) -> None:
        """Have everything on the disk for good; raises DiskError."""
        commit = self.log.sync_task()
        if commit is not None:
            commit.run()
            self.log.finish(commit)
            if commit.error is not None:
                raise commit.error
        self.ledger.flush()
        work = self.ledger.sync_task()
        if work is not None:
            work.run()
            self.ledger.finish(work)
            if work.error is not None:
                raise work.error

    def close(self) -> None:
        """Let go of the files."""
        self.log.close()
        self.ledger.close()


def import_topic(disk: Disk, data_path: str, topic: GoTopic, target: Target, tally: Tally) -> None:
    """Write a topic of Go's into a new log and ledger.

    Raises:
        DiskError: something could not be read, or written.
        ImportStopped: the tally says so.
    """
    ledger, log = target.ledger, target.log
    ends: dict[str, int] = {}
    for name, channel in topic.channels.items():
        ledger.created(name, log.end_index)
        for first, records in _append(disk, data_path, channel.queue, target, tally):
            attempts = np.concatenate([piece.attempts() for piece in records])
            again = np.flatnonzero(attempts)
            if len(again):
                ledger.requeued(name, again + first, np.zeros_like(again), attempts[again])
            ledger.flush()
        ends[name] = log.end_index
    own = log.end_index
    for name, end in ends.items():
        if end < own:
            ledger.voided(name, [end], [own])
        if topic.channels[name].paused:
            ledger.paused(name, True)
    for _ in _append(disk, data_path, topic.queue, target, tally):
        pass
    flows = topic.channels and not topic.paused
    ledger.mark(log.end_index if flows else own)
    if topic.paused:
        ledger.paused(None, True)
    target.finish()


def _append(
    disk: Disk, data_path: str, queue: GoQueue, target: Target, tally: Tally
) -> Iterator[tuple[int, list[Records]]]:
    """Append a queue's messages; yields each batch with its first index, once it is written."""
    for note in queue.notes:
        logger.info("%s: %s", queue.name, note)
    before, damaged = tally.messages, tally.damaged

    def whole() -> Iterator[Records]:
        for found in read_queue(disk, data_path, queue):
            if isinstance(found, BadBytes):
                tally.damaged += 1
                logger.warning("damaged, not imported: %s", found)
            else:
                yield found

    for records in batches(whole()):
        yield target.append(records), records
        sizes = sum(int(piece.sizes.sum()) + LENGTH_SIZE * len(piece) for piece in records)
        tally.add(sum(map(len, records)), sizes)
    messages, lost = tally.messages - before, tally.damaged - damaged
    if messages or lost:
        text = "imported %s: %s messages, %d damaged places"
        logger.info(text, queue.name, f"{messages:,}", lost)
    if not lost and queue.positions is not None and queue.positions.depth != messages:
        text = "%s: its metadata count %d messages, its files hold %d; theirs are imported"
        logger.info(text, queue.name, queue.positions.depth, messages)


def batches(pieces: Iterable[Records]) -> Iterator[list[Records]]:
    """The same messages in runs of the size of a commit; a larger message is alone in its run."""
    waiting: list[Records] = []
    size = count = 0
    for piece in pieces:
        for part in _parts(piece):
            part_bytes = int(part.sizes.sum())
            if waiting and (size + part_bytes > BATCH_BYTES or count + len(part) > BATCH_COUNT):
                yield waiting
                waiting, size, count = [], 0, 0
            waiting.append(part)
            size, count = size + part_bytes, count + len(part)
    if waiting:
        yield waiting


def _parts(piece: Records) -> Iterator[Records]:
    """The piece in runs of at most BATCH_COUNT messages and, if they are several, BATCH_BYTES."""
    filled = np.cumsum(piece.sizes)
    first = 0
    while first < len(piece):
        before = int(filled[first - 1]) if first else 0
        end = int(np.searchsorted(filled, before + BATCH_BYTES, "right"))
        end = min(max(end, first + 1), first + BATCH_COUNT)
        yield piece.part(first, end)
        first = end
