"""Damage loses only the affected batches, is reported, and never gives a wrong body (P5, P6)."""

import errno

import pytest

from sparq.log.log import Log
from sparq.log.segment import COPY_OFFSET, DATA_START
from sparq.testing import Fault, ManualClock, MemoryDisk
from tests.log.log_operations import (
    load,
    open_log,
    publish,
    read_all,
    small_log,
    the_path,
)


def reported(log: Log) -> bool:
    return bool(log.damage) or log.torn_bytes > 0


def test_every_flipped_byte_loses_at_most_one_batch_and_is_reported(
    disk: MemoryDisk, clock: ManualClock
) -> None:
    """A flipped byte of a segment gives no wrong body, loses at most a batch, and is reported."""
    messages = small_log(disk, clock)
    data = disk.data(the_path(disk))
    costs = set()
    for at in range(len(data)):
        if 256 < at < COPY_OFFSET or COPY_OFFSET + 256 < at < DATA_START:
            continue  # zeros between the two headers
        data[at] ^= 1 << (at % 8)
        log = open_log(disk, clock)
        found = read_all(log)
        data[at] ^= 1 << (at % 8)
        assert found.items() <= messages.items()
        lost = messages.keys() - found.keys()
        costs.add(len(lost))
        assert len(lost) in (0, 2)
        assert reported(log) == bool(lost)
        if log.damage:
            assert [(d.first, d.end, d.messages) for d in log.damage] == [
                (min(lost), max(lost) + 1, 2)
            ]
        log.close()
    assert costs == {0, 2}


def test_copy_of_a_batch_in_a_body_is_not_read_as_a_batch(
    disk: MemoryDisk, clock: ManualClock, log: Log
) -> None:
    """A body that contains a copy of a batch is not read as a batch.

    The scan meets it when it looks for the next batch after damage.
    """
    first = publish(log, [b"honest"], clock)
    (path,) = disk.paths()
    forged = bytes(disk.data(path)[DATA_START:])
    for shift in range(8):
        publish(log, [bytes(shift) + forged + bytes(8 - shift)], clock)
    end = publish(log, [b"end"], clock)
    messages = read_all(log)
    log.close()
    at = disk.data(path).index(b"SPQB", DATA_START + 8)
    for _ in range(8):
        # Damage the header of each batch that contains the forged one: the scan must resync.
        disk.data(path)[at + 40] ^= 0xFF
        size = int.from_bytes(disk.data(path)[at + 68 : at + 72], "little")
        at += size

    log = open_log(disk, clock)

    assert read_all(log) == {first: b"honest", end: b"end"}
    assert [(d.first, d.end, d.messages) for d in log.damage] == [(first + 1, end, 8)]
    assert len(messages) == 10


def test_unreadable_page_loses_only_its_batches(disk: MemoryDisk, clock: ManualClock) -> None:
    """EIO on a page loses the batches on it, not the log."""
    messages = small_log(disk, clock)
    log = open_log(disk, clock)
    disk.fail(Fault(2, errno.EIO, frozenset({"read"}), times=1_000))
    read = load(log, min(messages))
    disk.fault = None

    assert read.error is None
    assert [(d.first, d.end) for d in log.damage] == [(min(messages), max(messages) + 1)]
    assert log.next_stored(0) == log.written_end
    later = publish(log, [b"goes on"], clock)
    assert read_all(log) == {later: b"goes on"}


@pytest.mark.parametrize("times", [1, 2, 3])
def test_temporary_read_errors_lose_nothing(
    times: int, disk: MemoryDisk, clock: ManualClock
) -> None:
    """One to three temporary read errors lose nothing, at a start or later."""
    messages = small_log(disk, clock)
    disk.fail(Fault(1, errno.EIO, frozenset({"read"}), times=times))
    log = open_log(disk, clock)
    disk.fail(Fault(1, errno.EIO, frozenset({"read"}), times=times))
    load(log, min(messages))

    assert not log.damage
    assert read_all(log) == messages


def test_failed_read_is_not_damage(disk: MemoryDisk, clock: ManualClock) -> None:
    """A segment that cannot be opened is not damage: a later read succeeds."""
    messages = small_log(disk, clock)
    log = open_log(disk, clock)
    disk.fail(Fault(1, errno.EMFILE, frozenset({"open"})))
    read = load(log, min(messages))

    assert read.error is not None
    assert (log.damage, read_all(log)) == ([], messages)


def test_range_read_counts_missing_messages(disk: MemoryDisk, clock: ManualClock) -> None:
    """A range read across damage returns the rest and the number of missing messages."""
    messages = small_log(disk, clock)
    first, end = min(messages), max(messages) + 1
    log = open_log(disk, clock)
    data = disk.data(the_path(disk))
    at = data.index(b"SPQB", DATA_START + 8)
    data[at + 90] ^= 1

    read = log.range_read(first + 1, end, 1 << 20)
    read.run()

    assert (read.error, read.next_index, read.lost) == (None, end, 2)
    assert len(read.batches) == 2
