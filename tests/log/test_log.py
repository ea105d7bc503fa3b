"""The log on a working disk: messages are found by index, ordinal and time."""

import errno

from hypothesis import given, settings
from hypothesis import strategies as st

from sparq.log.block import BlockCache
from sparq.log.commit import CommitState
from sparq.log.log import Log, MemoryLog
from sparq.protocol import batch
from sparq.protocol.instant import clock_index
from sparq.testing import Fault, ManualClock, MemoryDisk
from tests.log.log_operations import (
    NODE,
    bodies_of,
    commit,
    drop,
    load,
    open_log,
    publish,
    read_all,
    sync,
)

SECOND = 1_000_000_000


def test_empty_log(disk: MemoryDisk, clock: ManualClock, log: Log) -> None:
    """An empty log has valid ends and no file."""

    assert (log.first_index, log.written_end, log.synced_end, log.end_ordinal) == (0, 0, 0, 0)
    assert log.end_index == clock_index(clock.wall_ns)
    assert (log.block(5), log.next_stored(0)) == (None, 0)
    assert (log.index_at_time(5), log.index_at_ordinal(0), log.ordinal_at(9)) == (0, 0, 0)
    assert (log.segments(), log.sync_task(), log.due_entries) == ([], None, [])
    assert disk.paths() == []
    assert load(log, 3).blocks == []


def test_all_ends_are_at_or_after_the_floor() -> None:
    """All ends are at or after the `floor_index` from the ledger, whatever the clock's time."""
    disk, clock = MemoryDisk(), ManualClock(wall_ns=0)
    log = open_log(disk, clock, floor_index=1_000, log_id=b"0123456789abcdef")

    assert (log.end_index, log.written_end, log.first_index) == (1_000, 1_000, 1_000)
    assert log.log_id == b"0123456789abcdef"
    assert publish(log, [b"x"], clock) == 1_000
    assert open_log(disk, clock).log_id == log.log_id


def test_durable_order_of_a_first_publish(disk: MemoryDisk, clock: ManualClock, log: Log) -> None:
    """P2: segment and directory are synced before the first batch, the batch before its OK."""
    before = len(disk.trace)
    publish(log, [b"x"], clock)

    assert [operation for operation, _ in disk.trace[before:]] == [
        "create",
        "write",
        "sync",
        "syncdir",
        "write",
        "sync",
    ]


def test_sync_policy(disk: MemoryDisk, clock: ManualClock) -> None:
    """`sync_every` limits unsynced messages, `sync_due` their age; both lead to a sync."""
    log = open_log(disk, clock, sync_every=4, sync_timeout_ns=2 * SECOND)
    first = publish(log, [b"1", b"2"], clock)
    assert (log.unsynced.count, log.written_end, log.synced_end) == (2, first + 2, 0)
    assert not log.sync_due(clock.now())
    publish(log, [b"3", b"4"], clock)
    assert (log.unsynced.count, log.synced_end) == (0, first + 4)
    publish(log, [b"5"], clock)
    assert not log.sync_due(clock.now())
    clock.advance(2 * SECOND)
    assert log.sync_due(clock.now())
    task = log.sync_task()
    assert task is not None
    assert log.flight is not None
    assert log.sync_task() is None
    task.run()
    log.finish(task)
    assert (log.unsynced.count, log.synced_end, log.sync_due(clock.now())) == (0, first + 5, False)
    assert commit(log, [b"6"], clock, sync=True).state is CommitState.SYNCED


def test_unsynced_bytes_are_bounded(disk: MemoryDisk, clock: ManualClock) -> None:
    """Unsynced bytes are limited to `unsynced_bytes_max`.

    After a failed sync they are written again from memory.
    """
    log = open_log(disk, clock, sync_every=1_000_000, unsynced_bytes_max=5_000)
    for _ in range(30):
        publish(log, [b"x" * 400], clock)
        assert log.unsynced.count <= 11


def test_acknowledged_messages_of_a_failed_sync_are_read_from_memory(
    disk: MemoryDisk, clock: ManualClock
) -> None:
    """Acknowledged messages whose sync failed are read from memory until they are stored again.

    They survive a power cut once a later publish succeeds.
    """
    log = open_log(disk, clock, sync_every=100, cache=BlockCache(1))
    first = publish(log, [b"owed"], clock)
    disk.fail(Fault(1, errno.EIO, frozenset({"sync", "create"}), times=3))
    assert sync(log).error is not None
    log._cache.put((0, 0), [])

    block = log.block(first)

    assert block is not None
    assert bodies_of(block.frames) == [(first, b"owed")]
    disk.fault = None
    later = publish(log, [b"later"], clock)
    assert read_all(open_log(disk.crash(4), clock)) == {first: b"owed", later: b"later"}

    files = len(log.segments())
    publish(log, [b"last"], clock)
    assert len(log.segments()) == files, "what is owed no more needs no other file"


def test_file_of_finished_messages_can_be_dropped(
    disk: MemoryDisk, clock: ManualClock, log: Log
) -> None:
    """`end_file` seals the current segment; after its drop, its indexes are not used again."""
    assert not log.end_file()
    publish(log, [b"a"], clock)
    assert [segment.sealed for segment in log.segments()] == [False]
    assert log.end_file()
    assert [segment.sealed for segment in log.segments()] == [True]
    last = publish(log, [b"b"], clock)
    assert [segment.sealed for segment in log.segments()] == [True, False]
    dropped = drop(log)
    assert dropped.error is None
    dropped.run()

    assert dropped.error is None
    assert (log.first_index, log.first_ordinal, log.end_ordinal) == (last, 1, 2)
    assert log.block(last - 1) is None
    assert len(disk.paths()) == 1
    disk.fail(Fault(1, errno.EACCES, frozenset({"unlink"})))
    assert log.end_file()
    publish(log, [b"c"], clock)
    assert drop(log).error is not None


def test_the_only_file_can_be_dropped(disk: MemoryDisk, clock: ManualClock, log: Log) -> None:
    """A log without any segment continues its indexes and ordinals, also after a restart."""
    first = publish(log, [b"a", b"b"], clock)
    assert log.end_file()
    drop(log)
    assert (disk.paths(), log.segments()) == ([], [])
    assert (log.first_index, log.end_ordinal) == (first + 2, 2)
    assert publish(log, [b"c"], clock) == first + 2
    log.close()

    again = open_log(disk, clock)

    assert (read_all(again), again.first_ordinal) == ({first + 2: b"c"}, 2)


def test_file_with_unsynced_messages_is_not_ended(disk: MemoryDisk, clock: ManualClock) -> None:
    """`end_file` refuses a segment with unsynced messages or a commit in flight.

    A failed sync would have to write those messages again.
    """
    log = open_log(disk, clock, sync_every=10)
    publish(log, [b"a"], clock)
    assert not log.end_file()
    begun = log.sync_task()
    assert begun is not None
    assert not log.end_file()
    begun.run()
    log.finish(begun)

    assert log.end_file()


@settings(max_examples=60)
@given(
    batches=st.lists(
        st.tuples(st.integers(1, 5), st.integers(0, 30_000), st.integers(0, 3)), max_size=25
    ),
    file_kib=st.integers(5, 90),
    cache_kib=st.integers(1, 200),
    reopen=st.booleans(),
)
def test_everything_is_found(
    batches: list[tuple[int, int, int]], file_kib: int, cache_kib: int, reopen: bool
) -> None:
    """Messages are found by index, ordinal and time as in a list.

    This holds for cached and uncached ones, across segments and gaps.
    """
    disk, clock = MemoryDisk(), ManualClock()
    cache = BlockCache(cache_kib << 10)
    log = open_log(disk, clock, max_bytes_per_file=file_kib << 10, cache=cache)
    rows: list[tuple[int, bytes, int]] = []
    for number, (count, size, gap) in enumerate(batches):
        if gap == 3:
            disk.fail(Fault(1, errno.EIO, frozenset({"write"})))
            commit(log, [b"refused"] * 3, clock)
        clock.advance(gap * SECOND)
        bodies = [bytes([number % 256]) * (size // (k + 1)) for k in range(count)]
        first = publish(log, bodies, clock)
        rows += [(first + k, body, clock.wall_ns) for k, body in enumerate(bodies)]
    if reopen:
        log.close()
        log = open_log(disk, clock)

    assert read_all(log) == {index: body for index, body, _ in rows}
    for ordinal, (index, _, time_ns) in enumerate(rows):
        assert log.ordinal_at(index) == ordinal
        assert log.index_at_ordinal(ordinal) == index
        assert log.messages_between(rows[0][0], index) == ordinal
        assert find_time(log, time_ns) == next(i for i, _, at in rows if at >= time_ns)
    end = log.written_end
    assert log.ordinal_at(end) == log.end_ordinal == len(rows)
    assert log.index_at_ordinal(len(rows)) == end
    assert find_time(log, clock.wall_ns + 1) == end
    assert log.messages_between(0, end) == len(rows)
    for first, last in [(rows[k][0], end) for k in range(0, len(rows), 7)]:
        check_range(log, rows, first, last)


def find_time(log: Log, time_ns: int) -> int:
    """`index_at_time`, with the read it may need."""
    index = log.index_at_time(time_ns)
    if index is None:
        read = log.load_time(time_ns)
        read.run()
        log.store(read)
        index = log.index_at_time(time_ns)
    assert index is not None
    return index


def check_range(log: Log, rows: list[tuple[int, bytes, int]], first: int, end: int) -> None:
    """Read a range in small parts; every message must be returned once."""
    found: list[tuple[int, bytes]] = []
    at = first
    while at < end:
        read = log.range_read(at, end, 20_000)
        read.run()
        assert (read.error, read.lost) == (None, 0)
        assert read.next_index > at
        for buffer in read.batches:
            for stored in batch.walk(buffer):
                found += [row for row in bodies_of(stored.frames) if at <= row[0] < read.next_index]
        at = read.next_index
    assert found == [(index, body) for index, body, _ in rows if index >= first]


def test_range_read_of_a_dropped_file_fails(disk: MemoryDisk, clock: ManualClock, log: Log) -> None:
    """A range read of a dropped segment is an error, not an empty result."""
    first = publish(log, [b"a"], clock)
    read = log.range_read(first, first + 1, 100)
    assert log.end_file()
    publish(log, [b"b"], clock)
    drop(log)
    read.run()

    assert read.error is not None
    assert read.error.is_missing
    assert read.batches == []


def test_read_of_a_file_dropped_meanwhile_is_not_stored(
    disk: MemoryDisk, clock: ManualClock, log: Log
) -> None:
    """A finished read is discarded if its segment was dropped meanwhile."""
    first = publish(log, [b"a"], clock)
    read = log.load(first)
    read.run()
    assert log.end_file()
    publish(log, [b"b"], clock)
    log.drop(log.segments()[0])
    log.store(read)

    assert log.block(first) is None


def test_messages_after_an_evicted_extent_form_a_new_cache_entry(
    disk: MemoryDisk, clock: ManualClock
) -> None:
    """After the cache evicts the newest messages, later ones form a separate cache entry."""
    cache = BlockCache(4_000)
    log = open_log(disk, clock, cache=cache)
    other = open_log(disk, clock, "/data/topics/t-other", cache=cache)
    messages = {}
    for number in range(50):
        messages[publish(log, [b"%d" % number * 30], clock)] = b"%d" % number * 30
        publish(other, [b"x" * 900], clock)

    assert read_all(log) == messages
    assert cache.size_bytes < 8_000


def test_messages_of_an_ephemeral_topic_are_found_until_their_segment_is_dropped() -> None:
    """Messages are found as in a log on disk until their segment is dropped."""
    clock = ManualClock()
    log = MemoryLog(node_id=NODE, now=clock.now())
    messages = {}
    for number in range(600):
        bodies = [b"%d" % number * 900]
        messages.update(enumerate(bodies, publish(log, bodies, clock)))
    assert read_all(log) == messages
    assert 1 < len(log.segments()) < 6
    assert log.size_bytes > sum(map(len, messages.values()))

    while log.segments()[0].sealed:
        assert drop(log).error is None

    kept = {index: body for index, body in messages.items() if index >= log.first_index}
    assert 0 < len(kept) < 600
    assert read_all(log) == kept
    assert log.size_bytes < 2 << 20
    assert (log.unsynced.count, log.synced_end) == (0, log.written_end)
