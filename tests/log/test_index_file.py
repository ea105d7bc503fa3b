"""Index files save the scan at start; a bad one loses nothing."""

import random
from collections.abc import Callable

import numpy as np
import pytest

from sparq.log import index_file
from sparq.log.log import Log
from sparq.log.segment import DATA_START, decode_header
from sparq.testing import ManualClock, MemoryDisk
from tests.log.log_operations import commit, open_log, publish_each, read_all, run_upkeep, sync

BODY = b"z" * 9_000
MESSAGES = 50
"""One batch each, with bodies of 9,000 bytes: seven full extents, and one that still grows."""


def filled(disk: MemoryDisk, clock: ManualClock, **options: int) -> Log:
    """An open log of many batches, some deferred, with current index files."""
    log = open_log(disk, clock, **options)
    for number in range(MESSAGES):
        dues = [(0, clock.wall_ns + number)] if number % 9 == 4 else None
        clock.advance(1_000_000)
        commit(log, [b"%d " % number + BODY], clock, dues)
        if number % 20 == 19:
            run_upkeep(log)
    run_upkeep(log)
    return log


def scanned(disk: MemoryDisk, clock: ManualClock) -> tuple[dict[int, bytes], list[tuple[int, int]]]:
    """The log's messages and due times according to its own headers."""
    log = open_log(disk, clock, believes_indexes=False)
    return read_all(log), sorted(log.due_entries)


def indexes(disk: MemoryDisk) -> list[str]:
    """The index files."""
    return [path for path in disk.paths() if path.endswith(index_file.SUFFIX)]


def check(disk: MemoryDisk, clock: ManualClock) -> Log:
    """Open the log with its index files; its contents must match its own headers."""
    expected, dues = scanned(disk, clock)
    log = open_log(disk, clock)
    assert expected == read_all(log)
    assert dues == sorted(log.due_entries)
    assert [] == log.damage
    return log


def test_a_start_reads_no_header_that_an_index_file_contains(
    disk: MemoryDisk, clock: ManualClock
) -> None:
    """A start uses the index files of all segments.

    At most one extent of the newest segment is not in its index file.
    """
    log = filled(disk, clock, max_bytes_per_file=300_000)
    log.close()
    created = len(indexes(disk))

    reopened = check(disk, clock)

    assert 2 == created
    assert all(segment.indexed for segment in reopened.files)
    newest = reopened.files[-1]
    assert len(newest.extents) - newest.index_count <= 1


def test_scanned_segments_get_complete_index_files(disk: MemoryDisk, clock: ManualClock) -> None:
    """After a start without index files, one upkeep writes complete ones."""
    filled(disk, clock, max_bytes_per_file=300_000).close()
    for path in indexes(disk):
        disk.unlink(path)

    log = check(disk, clock)
    run_upkeep(log)
    log.close()
    again = check(disk, clock)

    assert all(segment.indexed for segment in again.files)
    assert all(len(s.extents) == s.index_count for s in again.files)


def test_unsynced_messages_are_in_no_index_file(disk: MemoryDisk, clock: ManualClock) -> None:
    """Index files contain synced messages only.

    A power cut could lose unsynced ones, and the index file would be wrong.
    """
    log = open_log(disk, clock, sync_every=1_000)
    publish_each(log, (b"%d " % number + BODY for number in range(30)), clock)
    run_upkeep(log)

    assert [] == indexes(disk)

    sync(log)
    run_upkeep(log)

    assert 1 == len(indexes(disk))


def test_a_truncated_index_file_loses_nothing(disk: MemoryDisk, clock: ManualClock) -> None:
    """A truncated index file loses nothing."""
    filled(disk, clock).close()
    (path,) = indexes(disk)
    whole = bytes(disk.data(path))
    for size in range(0, len(whole), 7):
        disk.data(path)[:] = whole[:size]
        check(disk, clock).close()


def test_flipped_bits_of_an_index_file_lose_nothing() -> None:
    """A flipped bit in an index file loses nothing: each part has a checksum."""
    disk, clock, chance = MemoryDisk(), ManualClock(), random.Random(5)
    filled(disk, clock).close()
    (path,) = indexes(disk)
    whole = bytes(disk.data(path))
    for at in range(0, len(whole), 3):
        disk.data(path)[at] ^= 1 << chance.randrange(8)
        check(disk, clock).close()
        disk.data(path)[:] = whole


def test_an_index_file_that_lacks_newer_messages_is_used(
    disk: MemoryDisk, clock: ManualClock, log: Log
) -> None:
    """An index file that lacks newer messages is used; those are scanned."""
    publish_each(log, (b"%d" % number + BODY for number in range(20)), clock)
    run_upkeep(log)
    (path,) = indexes(disk)
    old = bytes(disk.data(path))
    publish_each(log, (b"%d" % number + BODY for number in range(40)), clock)
    run_upkeep(log)
    log.close()
    disk.data(path)[:] = old

    reopened = check(disk, clock)

    assert reopened.files[0].indexed


def test_the_index_file_of_another_segment_is_ignored(disk: MemoryDisk, clock: ManualClock) -> None:
    """Index files swapped between two segments are ignored: their salts differ."""
    filled(disk, clock, max_bytes_per_file=300_000).close()
    one, other = indexes(disk)
    disk.data(one)[:], disk.data(other)[:] = bytes(disk.data(other)), bytes(disk.data(one))

    reopened = check(disk, clock)

    assert not any(segment.indexed for segment in reopened.files)


def test_missing_messages_of_a_shortened_segment_are_reported(
    disk: MemoryDisk, clock: ManualClock
) -> None:
    """If a segment is shorter than its index file says, the missing messages are reported."""
    filled(disk, clock, max_bytes_per_file=300_000).close()
    first = sorted(path for path in disk.paths() if path.endswith(".log"))[0]
    del disk.data(first)[-5_000:]

    log = open_log(disk, clock)

    assert MESSAGES - 1 == len(read_all(log))
    assert [1] == [damage.messages for damage in log.damage]


def _forge(disk: MemoryDisk, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Replace the index file by a changed one with valid checksums."""
    (path,) = indexes(disk)
    (log_path,) = (path for path in disk.paths() if path.endswith(".log"))
    header = decode_header(bytes(disk.data(log_path)[:DATA_START]))
    assert header is not None
    contents = index_file._parse(bytes(disk.data(path)), header)
    assert contents is not None
    begin = len(index_file.HEADER.encode(index_file.facts_of(header)))
    block = index_file.encode(
        change(contents.rows.copy()), contents.dues, contents.first_time_ns, begin, header.salt
    )
    disk.data(path)[:] = index_file.HEADER.encode(index_file.facts_of(header)) + block


def _other_bounds(rows: np.ndarray) -> np.ndarray:
    """Let the second extent begin 8 bytes later than it does."""
    rows[4, 0] += 8
    rows[3, 1] += 8
    rows[4, 1] -= 8
    return rows


def _other_indexes(rows: np.ndarray) -> np.ndarray:
    """Move the boundary between the first two extents by one message."""
    rows[1, 0] += 1
    rows[0, 1] += 1
    rows[2, 1] += 1
    return rows


def _one_left_out(rows: np.ndarray) -> np.ndarray:
    return np.delete(rows, 2, axis=1)


def _higher(rows: np.ndarray) -> np.ndarray:
    rows[:2] += 1
    return rows


def _twice(rows: np.ndarray) -> np.ndarray:
    return np.concatenate([rows, rows[:, -1:]], axis=1)


@pytest.mark.parametrize("change", [_other_bounds, _other_indexes, _one_left_out, _higher, _twice])
def test_a_wrong_index_file_with_valid_checksums_loses_nothing(
    change: Callable[[np.ndarray], np.ndarray], disk: MemoryDisk, clock: ManualClock
) -> None:
    """A wrong index file with valid checksums loses nothing: the segment's headers count."""
    filled(disk, clock).close()
    _forge(disk, change)

    check(disk, clock)


def test_damage_is_reported_despite_an_index_file() -> None:
    """A damaged header or payload loses one batch and is reported, despite an index file."""
    for at in (DATA_START + 9_100 * 3, DATA_START + 9_208 * 2 + 20):
        disk, clock = MemoryDisk(), ManualClock()
        filled(disk, clock).close()
        (path,) = (path for path in disk.paths() if path.endswith(".log"))
        disk.data(path)[at] ^= 4

        log = open_log(disk, clock)

        assert MESSAGES - 1 == len(read_all(log))
        assert [1] == [damage.messages for damage in log.damage]
