"""Helpers for tests of the log: open, publish, read everything."""

import struct
from collections.abc import Iterable, Sequence

from sparq.log.block import Block, BlockCache
from sparq.log.commit import Commit
from sparq.log.disk import Disk
from sparq.log.log import Log, LogOptions
from sparq.log.reading import BlockRead
from sparq.log.upkeep import Drop
from sparq.protocol import batch
from sparq.protocol.frames import BodySlices
from sparq.testing import ManualClock, MemoryDisk

DIRECTORY = "/data/topics/t-clicks"
NODE = 7


def open_log(
    disk: Disk,
    clock: ManualClock,
    directory: str = DIRECTORY,
    *,
    floor_index: int = 0,
    log_id: bytes | None = None,
    cache: BlockCache | None = None,
    believes_indexes: bool = True,
    **options: int,
) -> Log:
    """Open the log in the directory."""
    return Log.open(
        disk,
        directory,
        node_id=NODE,
        options=LogOptions(**options),
        now=clock.now(),
        floor_index=floor_index,
        log_id=log_id,
        cache=cache,
        believes_indexes=believes_indexes,
    )


def commit(
    log: Log,
    bodies: Iterable[bytes],
    clock: ManualClock,
    dues: list[tuple[int, int]] | None = None,
    *,
    sync: bool | None = None,
) -> Commit:
    """Append the bodies as one batch; returns the finished commit."""
    begun = log.begin([BodySlices.of(list(bodies))], clock.now(), dues, sync)
    begun.run()
    log.finish(begun)
    return begun


def publish(log: Log, bodies: Sequence[bytes], clock: ManualClock) -> int:
    """Append the bodies, which must succeed; returns the first index."""
    done = commit(log, bodies, clock)
    assert done.error is None
    return done.first_index


def publish_each(log: Log, bodies: Iterable[bytes], clock: ManualClock) -> dict[int, bytes]:
    """Append each body as a batch of its own; returns the messages."""
    return {publish(log, [body], clock): body for body in bodies}


def sync(log: Log) -> Commit:
    """Sync what is unsynced; returns the finished commit."""
    task = log.sync_task()
    assert task is not None
    task.run()
    log.finish(task)
    return task


def load(log: Log, index: int) -> BlockRead:
    """Read the extent with this index, and keep it; returns the read."""
    read = log.load(index)
    read.run()
    log.store(read)
    return read


def drop(log: Log, number: int = 0) -> Drop:
    """Drop a segment, and delete its file."""
    task = log.drop(log.segments()[number])
    task.run()
    return task


def run_upkeep(log: Log) -> None:
    """Run all upkeep, including the creation of the next segment."""
    if log.active is not None and log.active.segment.size >= log.upkeep.spare_due_size:
        task = log.upkeep.prepare(log.active)
        task.run()
        log.upkeep.finish(task)
    while tasks := log.upkeep.tasks(log.active, log.synced_end):
        for task in tasks:
            task.run()
            log.upkeep.finish(task)
            if task.error is not None:
                return


def block_of(first: int, bodies: list[bytes], time_ns: int = 5) -> Block:
    """A block of messages published in one batch."""
    data, ends = batch.encode_frames([BodySlices.of(bodies)], first, NODE, time_ns)
    return Block(first, len(bodies), ends, data, first - 100)


def bodies_of(frames: bytes | memoryview) -> list[tuple[int, bytes]]:
    """(index, body) of each message in a run of frames."""
    found = []
    data = bytes(frames)
    at = 0
    while at < len(data):
        size, kind = struct.unpack_from(">ii", data, at)
        assert kind == 2
        raw = int(data[at + 18 : at + 34], 16)
        assert raw >> 54 == NODE
        found.append((raw & ((1 << 54) - 1), data[at + 34 : at + 4 + size]))
        at += 4 + size
    return found


def read_all(log: Log, first: int = 0) -> dict[int, bytes]:
    """Every stored message by index, in the order in which a consumer reads the log."""
    found: dict[int, bytes] = {}
    index = log.next_stored(first)
    while index < log.written_end:
        block = log.block(index)
        if block is None:
            assert load(log, index).error is None
            block = log.block(index)
        if block is not None:
            run = bodies_of(block.slice(index, block.end))
            assert [at for at, _ in run] == list(range(index, block.end))
            found.update(run)
            index = block.end
        index = log.next_stored(index)
    return found


BATCHES = 6


def small_log(disk: MemoryDisk, clock: ManualClock) -> dict[int, bytes]:
    """Write a closed log of one small segment; returns its messages."""
    log = open_log(disk, clock)
    messages: dict[int, bytes] = {}
    for number in range(BATCHES):
        bodies = [b"%d-%d" % (number, k) for k in range(2)]
        messages.update(enumerate(bodies, publish(log, bodies, clock)))
        clock.advance(1_000_000)
    log.close()
    return messages


def the_path(disk: MemoryDisk) -> str:
    (path,) = disk.paths()
    return path
