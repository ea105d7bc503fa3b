"""Import the queues of Go's nsqd into logs, topic by topic.

1. The queues of the channels are appended one after the other. A channel's cursor begins at its
   own queue, and the queues of the following channels are voided for it. The topic's own queue
   comes last; every channel still has to read it. So every channel has exactly the
   messages of its queue, in the same order.
2. A message keeps its body, its timestamp and its attempts; it gets a new id from the log.
3. If the topic is paused or has no channel, the mark P is set to the beginning of the topic's own
   queue: no channel may see messages from there on.
4. Memory holds one batch of messages, however long a queue is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparq.log.block import BlockCache
from sparq.log.disk import Disk
from sparq.log.ledger import Ledger
from sparq.log.log import Log, LogOptions
from sparq.log.records import RecordKind
from sparq.migration.queues import GoQueue, GoTopic, read_queue
from sparq.migration.records import LENGTH_SIZE, BadBytes, GoRecords
from sparq.protocol.instant import Instant

BATCH_BYTES = 256 << 10
BATCH_COUNT = 4096
"""Limits on the size of a commit, as for publishes."""

CACHE_BYTES = 1 << 20
"""Size of the block cache; small, as imported messages are not read until nsqd has started."""

REPORT_NS = 5_000_000_000
MIB = 1 << 20

logger = logging.getLogger(__name__)

Clock = Callable[[], Instant]


class ImportStopped(Exception):
    """nsqd has to stop; nothing in the data path has changed."""


@dataclass(slots=True)
class Tally:
    """Count the imported messages, and log the progress.

    Attributes:
        total_bytes: total size to read, in bytes.
        damaged: number of places in files that could not be read.
    """

    total_bytes: int
    clock: Clock
    is_stopping: Callable[[], bool]
    messages: int = 0
    size_bytes: int = 0
    damaged: int = 0
    reported_ns: int = 0

    def add(self, messages: int, size_bytes: int) -> None:
        """Add imported messages and bytes; log the progress every `REPORT_NS`.

        Raises:
            ImportStopped: the import has to stop.
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
    """A topic's new log and ledger."""

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
        """Create both in `folder`, which is created, too; raises DiskError."""
        self._clock = clock
        self.ledger, _ = Ledger.open(disk, folder)
        self.log = Log.open(
            disk,
            folder,
            node_id=node_id,
            # Synced at the end, and before unsynced data exceeds its limit in memory.
            options=LogOptions(max_bytes_per_file=max_bytes_per_file, sync_every=1 << 62),
            now=clock(),
            floor_index=floor_index,
            log_id=self.ledger.log_id,
            cache=BlockCache(CACHE_BYTES),
        )

    def append(self, records: GoRecords) -> int:
        """Store messages as one batch; return the first one's index. Raises DiskError."""
        stamps = records.timestamps()
        now = self._clock()
        # Seeks by time use this timestamp; a damaged one must not lie in the future.
        published_ns = min(max(int(stamps.max()), 0), now.wall_ns)
        commit = self.log.begin([records.bodies()], Instant(published_ns, now.mono_ns))
        assert commit.batch is not None
        commit.batch.stamp(stamps)
        _complete(self.log, commit)
        return commit.first_index

    def finish(self) -> None:
        """Sync the log and the ledger to disk. Raises DiskError."""
        if (commit := self.log.sync_task()) is not None:
            _complete(self.log, commit)
        self.ledger.flush()
        if (task := self.ledger.sync_task()) is not None:
            _complete(self.ledger, task)

    def close(self) -> None:
        """Close the files."""
        self.log.close()
        self.ledger.close()


def _complete(owner: Log | Ledger, task: Any) -> None:
    """Run a task of a log or ledger, and take its result over. Raises DiskError."""
    task.run()
    owner.finish(task)
    if task.error is not None:
        raise task.error


def import_topic(disk: Disk, data_path: str, topic: GoTopic, target: Target, tally: Tally) -> None:
    """Write one of Go's topics into a new log and ledger.

    Raises:
        DiskError: a file could not be read or written.
        ImportStopped: raised by `tally.add`.
    """
    ledger, log = target.ledger, target.log
    ends: dict[str, int] = {}
    for name, queue in topic.channels.items():
        ledger.note(RecordKind.CREATED, name, [log.end_index])
        for first, records in _append(disk, data_path, queue, target, tally):
            # The log has no attempts, only the ledger's requeues have. So a message that Go's nsqd
            # had already delivered is requeued, due at once.
            attempts = records.attempts()
            again = np.flatnonzero(attempts)
            if len(again):
                ledger.note(
                    RecordKind.REQUEUED, name, again + first, np.zeros_like(again), attempts[again]
                )
            # With each batch, not once at the end: memory must not grow with the queue (rule 4).
            ledger.flush()
        ends[name] = log.end_index
    own = log.end_index
    for name, end in ends.items():
        # Everything between a channel's own queue and the topic's belongs to other channels.
        if end < own:
            ledger.note(RecordKind.VOIDED, name, [end], [own])
        if topic.channels[name].paused:
            ledger.note(RecordKind.PAUSED, name, flag=True)
    for _ in _append(disk, data_path, topic.queue, target, tally):
        pass
    flows = topic.channels and not topic.queue.paused
    # P also passes the topic's own queue only if Go's nsqd would copy it to the channels now.
    ledger.note(RecordKind.MARK, "", [log.end_index if flows else own])
    if topic.queue.paused:
        ledger.note(RecordKind.PAUSED, flag=True)
    target.finish()


def _append(
    disk: Disk, data_path: str, queue: GoQueue, target: Target, tally: Tally
) -> Iterator[tuple[int, GoRecords]]:
    """Append a queue's messages; yield each batch and its first index once it is written."""
    for note in queue.notes:
        logger.info("%s: %s", queue.name, note)
    before, damaged = tally.messages, tally.damaged
    for found in read_queue(disk, data_path, queue):
        if isinstance(found, BadBytes):
            tally.damaged += 1
            logger.warning("damaged, not imported: %s", found)
            continue
        for records in batches(found):
            yield target.append(records), records
            tally.add(len(records), int(records.sizes.sum()) + LENGTH_SIZE * len(records))
    messages, lost = tally.messages - before, tally.damaged - damaged
    if messages or lost:
        text = "imported %s: %s messages, damage in %d place%s"
        logger.info(text, queue.name, f"{messages:,}", lost, "" if lost == 1 else "s")
    if not lost and queue.positions is not None and queue.positions.depth != messages:
        text = (
            "%s: the metadata count %d messages, the files hold %d; those in the files are imported"
        )
        logger.info(text, queue.name, queue.positions.depth, messages)


def batches(records: GoRecords) -> Iterator[GoRecords]:
    """Split messages into batches of a commit's size; a larger message gets its own batch."""
    filled = np.cumsum(records.sizes)
    first = 0
    while first < len(records):
        before = int(filled[first - 1]) if first else 0
        end = int(np.searchsorted(filled, before + BATCH_BYTES, "right"))
        end = min(max(end, first + 1), first + BATCH_COUNT)
        yield records.part(first, end)
        first = end
