"""Recovery of a damaged log at start: damage is reported and loses only what it affects."""

import errno

import pytest

from sparq.log.disk import DiskError
from sparq.log.log import Log
from sparq.log.segment import COPY_OFFSET, DATA_START
from sparq.testing import Fault, ManualClock, MemoryDisk
from tests.log.log_operations import (
    DIRECTORY,
    commit,
    drop,
    open_log,
    publish,
    publish_each,
    read_all,
    small_log,
    the_path,
)


def test_a_header_that_cannot_be_read_now_is_not_lost(disk: MemoryDisk, clock: ManualClock) -> None:
    """While the disk cannot read a file's header, the log does not open; later it loses nothing."""
    messages = small_log(disk, clock)

    disk.fail(Fault(1, errno.EIO, frozenset({"read"}), times=1000))
    with pytest.raises(DiskError, match="read "):
        open_log(disk, clock)

    assert read_all(open_log(disk.killed(), clock)) == messages


@pytest.mark.parametrize("at", [0, COPY_OFFSET])
def test_header_copy_of_another_segment_is_ignored(
    at: int, disk: MemoryDisk, clock: ManualClock
) -> None:
    """A header copy of another segment is ignored, and nothing is lost."""
    log = open_log(disk, clock, max_bytes_per_file=5_500)
    messages = publish_each(log, (b"%d" % k * 60 for k in range(30)), clock)
    log.close()
    one, other = disk.paths()[:2]
    disk.data(one)[at : at + 128] = disk.data(other)[at : at + 128]

    log = open_log(disk, clock)

    assert (read_all(log), log.damage) == (messages, [])


@pytest.mark.parametrize("size", [0, 100, DATA_START, DATA_START + 9])
def test_lost_segment_is_detected_by_the_next_one(
    size: int, disk: MemoryDisk, clock: ManualClock
) -> None:
    """A segment that lost its header and messages is reported with their number.

    It looks like one under creation, but the next segment shows how many messages are missing.
    """
    log = open_log(disk, clock, max_bytes_per_file=5_500)
    messages = publish_each(log, (b"%d" % k * 60 for k in range(30)), clock)
    log.close()
    path = disk.paths()[1]
    (gone,) = [s for s in log.segments() if s.path == path]
    data = disk.data(path)
    data[:COPY_OFFSET] = bytes(COPY_OFFSET)
    data[COPY_OFFSET:DATA_START] = bytes(DATA_START - COPY_OFFSET)
    del data[size:]

    log = open_log(disk, clock)

    kept = {i: body for i, body in messages.items() if not gone.first_index <= i < gone.end_index}
    assert read_all(log) == kept
    assert [(d.first, d.end, d.messages, d.path) for d in log.damage] == [
        (gone.first_index, gone.end_index, gone.messages, path)
    ]


def test_lost_end_of_a_segment_is_detected_by_the_next_one(
    disk: MemoryDisk, clock: ManualClock
) -> None:
    """The next segment's base ordinal shows how many messages an older one has lost."""
    messages = small_log(disk, clock)
    path = the_path(disk)
    log = open_log(disk, clock)
    later = publish(log, [b"later"], clock)
    log.close()
    del disk.data(path)[-100:]

    log = open_log(disk, clock)

    last = max(messages)
    assert read_all(log) == {**{i: messages[i] for i in sorted(messages)[:-2]}, later: b"later"}
    assert [(d.first, d.end, d.messages) for d in log.damage] == [(last - 1, later, 2)]
    assert log.ordinal_at(later) == 12
    assert log.ordinal_at(last - 1) == 10
    assert log.ordinal_at(last) == 11


def test_dropped_segment_is_not_damage(disk: MemoryDisk, clock: ManualClock) -> None:
    """A gap left by a dropped segment is not damage, although ordinals are missing."""
    log = open_log(disk, clock, max_bytes_per_file=5_000)
    publish_each(log, (b"%d" % k * 50 for k in range(12)), clock)
    drop(log, 1)
    log.close()

    assert open_log(disk, clock).damage == []


def test_files_of_another_log_are_left_alone(disk: MemoryDisk, clock: ManualClock) -> None:
    """A segment of another log is reported, and its messages are never delivered."""
    messages = small_log(disk, clock)
    stray = open_log(disk, clock, "/data/topics/t-other")
    clock.advance(1_000_000_000)
    publish(stray, [b"not ours"], clock)
    stray.close()
    strayed = next(path for path in disk.paths() if "other" in path)
    clock.advance(1_000_000_000)
    log = open_log(disk, clock)
    log_id = log.log_id
    ours = publish(log, [b"ours"], clock)
    log.close()
    disk.rename(strayed, f"{DIRECTORY}/{strayed.rpartition('/')[2]}")

    log = open_log(disk, clock)

    assert log.log_id == log_id
    assert read_all(log) == {**messages, ours: b"ours"}
    assert [damage.reason for damage in log.damage] == ["file of another log"]


def test_swapped_segment_names_lose_nothing(disk: MemoryDisk, clock: ManualClock) -> None:
    """Swapped segment names lose nothing: the header counts, not the name."""
    log = open_log(disk, clock, max_bytes_per_file=5_000)
    messages = publish_each(log, (b"%d" % k * 60 for k in range(9)), clock)
    log.close()
    one, two = disk.paths()[:2]
    for old, new in [(one, "/data/x"), (two, one), ("/data/x", two)]:
        disk.rename(old, new)

    assert read_all(open_log(disk, clock)) == messages


def test_incomplete_batch_is_reported_once_and_not_truncated(
    disk: MemoryDisk, clock: ManualClock
) -> None:
    """P6: an incomplete batch is reported once, stays in its file, and is never delivered."""
    messages = small_log(disk, clock)
    path = the_path(disk)
    disk.data(path).extend(b"SPQB" + b"x" * 60)
    size = len(disk.data(path))

    log = open_log(disk, clock)
    later = publish(log, [b"later"], clock)
    log.close()

    assert log.torn_bytes == 64
    assert log.damage == []
    assert len(disk.data(path)) == size
    again = open_log(disk, clock)
    assert (again.torn_bytes, again.damage) == (0, [])
    assert read_all(again) == {**messages, later: b"later"}


def test_due_times_are_restored_from_valid_batches(
    disk: MemoryDisk, clock: ManualClock, log: Log
) -> None:
    """P4: due times are restored from valid batches, not from damaged ones."""
    first = publish(log, [b"now"], clock)
    commit(log, [b"a", b"later", b"b", b"much later"], clock, [(1, 500), (3, 900)])
    commit(log, [b"last"], clock, [(0, 100)])
    log.close()
    path = the_path(disk)

    assert open_log(disk, clock).due_entries == [
        (first + 2, 500),
        (first + 4, 900),
        (first + 5, 100),
    ]
    disk.data(path)[disk.data(path).index(b"much later")] ^= 1
    assert open_log(disk, clock).due_entries == [(first + 5, 100)]


def test_incomplete_batch_is_never_counted_at_later_starts(
    disk: MemoryDisk, clock: ManualClock
) -> None:
    """An incomplete batch is never counted, also at later starts.

    The next run uses its ordinals again.
    """
    messages = small_log(disk, clock)
    path = the_path(disk)
    disk.data(path)[-20] ^= 1  # the last batch's payload; its header stays whole
    second = open_log(disk, clock)
    assert second.torn_bytes > 0
    torn = sorted(messages)[-2:]
    messages[publish(second, [b"next"], clock)] = b"next"
    second.close()

    third = open_log(disk, clock)

    assert third.end_ordinal == len(messages) - 2
    assert third.messages_between(torn[0], torn[1] + 1) == 0
    assert third.ordinal_at(torn[1] + 1) == len(messages) - 3
    assert read_all(third) == {at: body for at, body in messages.items() if at not in torn}
    assert third.damage == []


def test_a_start_verifies_all_payloads_that_may_be_unsynced(
    disk: MemoryDisk, clock: ManualClock, log: Log
) -> None:
    """Damage before the last batches is reported at the start, before anything is read."""
    for _ in range(4):
        publish(log, [bytes(70_000)], clock)
    log.close()
    disk.data(the_path(disk))[DATA_START + 1_000] ^= 1

    assert [1] == [damage.messages for damage in open_log(disk, clock).damage]
