"""Commits: padding after a segment's last batch, refused batches, failed syncs."""

import errno

import numpy as np

from sparq.log.commit import PendingBatch
from sparq.log.disk import PAGE_BYTES
from sparq.log.log import Log
from sparq.testing import Fault, ManualClock, MemoryDisk
from tests.log.log_operations import (
    block_of,
    commit,
    open_log,
    publish,
    read_all,
    sync,
)


def test_a_segment_is_padded_after_a_small_batch(
    disk: MemoryDisk, clock: ManualClock, log: Log
) -> None:
    """A segment is padded to whole pages, so that small batches do not change its length.

    A sync then has no new length to write. Closing removes the padding.
    """
    messages = {publish(log, [b"a"], clock): b"a"}
    (path,) = disk.paths()

    assert len(disk.data(path)) == 2 * PAGE_BYTES
    assert disk.data(path).endswith(b"(unused)")
    for at in range(20):
        body = b"%d" % at
        messages[publish(log, [body], clock)] = body
        assert len(disk.data(path)) == 2 * PAGE_BYTES
    for dead in (disk.killed(), *map(disk.crash, range(4))):
        again = open_log(dead, clock)
        assert (again.torn_bytes, again.damage, read_all(again)) == (0, [], messages)

    messages[publish(log, [bytes(2 * PAGE_BYTES)], clock)] = bytes(2 * PAGE_BYTES)
    size = log.segments()[0].size_bytes
    assert len(disk.data(path)) == size
    messages[publish(log, [b"b"], clock)] = b"b"
    assert len(disk.data(path)) % PAGE_BYTES == 0
    log.close()
    assert len(disk.data(path)) == log.segments()[0].size_bytes > size
    assert read_all(open_log(disk, clock)) == messages


def test_a_stamped_block_knows_its_oldest_time() -> None:
    """After `stamp` the block knows the oldest of the new times."""
    stored = PendingBatch(block_of(100, [b"a", b"b", b"c"], 10), 10, None, 0)
    stored.block.oldest_published_ns = 10
    stored.stamp(np.array([7, 3, 9]))

    assert 3 == stored.block.oldest_published_ns
    assert [7, 3, 9] == stored.block.timestamps(np.array([100, 101, 102])).tolist()


def test_indexes_of_a_refused_commit_are_never_used_again(
    disk: MemoryDisk, clock: ManualClock, log: Log
) -> None:
    """Messages of a failed write are not stored, and their indexes are never used again."""
    first = publish(log, [b"a"], clock)
    disk.fail(Fault(1, errno.ENOSPC, frozenset({"write"}), part=0.5))
    failed = commit(log, [b"refused", b"too"], clock)

    assert str(failed.error).endswith("no space left on device")
    assert (log.written_end, log.end_index) == (first + 1, first + 3)
    again = publish(log, [b"b"], clock)
    assert again == first + 3
    assert read_all(log) == {first: b"a", again: b"b"}
    assert (log.end_ordinal, log.ordinal_at(again)) == (2, 1)
    runs = log.stored_runs(0, again + 1)
    assert [run.tolist() for run in runs] == [[first, again], [first + 1, again + 1]]
    assert log.next_stored(first + 1) == again
    assert read_all(open_log(disk, clock)) == {first: b"a", again: b"b"}


def test_refused_batch_that_cannot_be_truncated_is_not_read(
    disk: MemoryDisk, clock: ManualClock
) -> None:
    """A refused batch that was written completely and cannot be truncated is not read.

    The next segment begins at its index.
    """
    log = open_log(disk, clock, sync_every=100)
    first = publish(log, [b"a"], clock)
    disk.fail(Fault(1, errno.EIO, frozenset({"write", "truncate"}), times=2, part=1.0))
    failed = commit(log, [b"refused"], clock)
    assert failed.error is not None
    assert "is abandoned" in failed.notes[0]
    later = publish(log, [b"b"], clock)

    assert read_all(log) == {first: b"a", later: b"b"}
    log.close()
    # The unsynced batches of the abandoned segment are in the new one.
    for seed in range(4):
        assert read_all(open_log(disk.crash(seed), clock)) == {first: b"a", later: b"b"}
    assert read_all(open_log(disk, clock)) == {first: b"a", later: b"b"}
    assert later == first + 2


def test_failed_sync_writes_unsynced_batches_to_a_new_segment(
    disk: MemoryDisk, clock: ManualClock
) -> None:
    """P8: after a failed sync, unsynced batches are written to a new segment.

    It is synced before the commit is answered.
    """
    log = open_log(disk, clock, sync_every=100)
    first = publish(log, [b"synced"], clock)
    sync(log)
    second = publish(log, [b"unsynced"], clock)
    disk.fail(Fault(1, errno.EIO, frozenset({"sync"})))

    done = commit(log, [b"new"], clock, sync=True)

    assert done.error is None
    assert "its unsynced batches are written to a new file" in done.notes[0]
    expected = {first: b"synced", second: b"unsynced", second + 1: b"new"}
    assert [(s.first_index, s.end_index) for s in log.segments()] == [
        (first, first + 1),
        (second, second + 2),
    ]
    assert read_all(log) == expected
    for seed in range(5):
        assert read_all(open_log(disk.crash(seed), clock)) == expected


def test_replacement_at_the_same_index_gets_the_next_generation(
    disk: MemoryDisk, clock: ManualClock
) -> None:
    """A replacement that begins at the same index gets the next generation in its name."""
    log = open_log(disk, clock, sync_every=100)
    first = publish(log, [b"a"], clock)
    disk.fail(Fault(1, errno.EIO, frozenset({"sync"})))
    commit(log, [b"b"], clock, sync=True)

    assert [path.rpartition("/")[2] for path in disk.paths()] == [
        f"{first:016x}.1.log",
        f"{first:016x}.log",
    ]
    assert list(read_all(open_log(disk.crash(1), clock)).values()) == [b"a", b"b"]
