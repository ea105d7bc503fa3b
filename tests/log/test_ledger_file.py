"""Damaged ledger files: flipped bytes, incomplete ends, lost headers."""

import errno

import pytest

from sparq.log.block_file import DATA_START
from sparq.log.disk import DiskError
from sparq.log.ledger import Ledger
from sparq.log.records import RecordKind, TopicState
from sparq.testing import Fault, MemoryDisk, PowerCut
from tests.log.ledgers import DIRECTORY, finished, settle


def test_every_flipped_byte_loses_at_most_one_flush(disk: MemoryDisk, ledger: Ledger) -> None:
    """A flipped byte loses at most one flush, is reported, and adds nothing wrong."""
    ledger.note(RecordKind.CREATED, "c", [0])
    ledger.flush()
    for index in range(2, 8, 2):
        ledger.note(RecordKind.FINISHED, "c", [index], [index + 1])
        ledger.flush()
    ledger.close()
    (path,) = disk.paths()
    data = disk.data(path)
    for at in [*range(64), *range(512, 576), *range(DATA_START, len(data))]:
        data[at] ^= 1 << (at % 8)
        damaged, state = Ledger.open(disk, DIRECTORY)
        data[at] ^= 1 << (at % 8)
        known = finished(state)
        assert known <= {2, 4, 6}
        assert len(known) >= 2 or at < DATA_START
        if known != {2, 4, 6} or "c" not in state.channels:
            assert damaged.damage
        if damaged._generation > 0:
            disk.unlink(f"{DIRECTORY}/ledger-00000001")


def test_incomplete_flush_is_kept_and_a_new_file_continues(
    disk: MemoryDisk, ledger: Ledger
) -> None:
    """An incomplete last flush is reported and kept; new records go to a new file."""
    ledger.note(RecordKind.CREATED, "c", [0])
    ledger.flush()
    (path,) = disk.paths()
    disk.data(path).extend(b"SPQL torn")

    again, _ = Ledger.open(disk, DIRECTORY)
    assert "9 bytes after the last whole block" in again.damage[0]
    again.note(RecordKind.FINISHED, "c", [1], [2])
    settle(again)

    assert finished(Ledger.open(disk.crash(0), DIRECTORY)[1]) == {1}
    assert len(disk.paths()) == 2


def test_a_start_syncs_the_records_before_an_incomplete_write(
    disk: MemoryDisk, ledger: Ledger
) -> None:
    """A start syncs the complete records before an incomplete write.

    A kill can leave them in the page cache only.
    """
    ledger.note(RecordKind.CREATED, "c", [0])
    settle(ledger)
    ledger.note(RecordKind.FINISHED, "c", [0], [40])
    ledger.flush()
    ledger.note(RecordKind.FINISHED, "c", [50], [60])
    disk.fail(Fault(1, None, part=0.5))
    with pytest.raises(PowerCut):
        ledger.flush()

    Ledger.open(disk.killed(), DIRECTORY)

    for seed in range(8):
        assert set(range(40)) == finished(Ledger.open(disk.crash(seed), DIRECTORY)[1])


def test_lost_header_is_reported(disk: MemoryDisk, ledger: Ledger) -> None:
    """If both copies of the header are lost, the file's records are lost and it is reported."""
    ledger.note(RecordKind.CREATED, "c", [0])
    ledger.flush()
    (path,) = disk.paths()
    disk.data(path)[:1024] = bytes(1024)

    again, state = Ledger.open(disk, DIRECTORY)

    assert state == TopicState()
    assert "no readable file header" in again.damage[0]


def test_a_header_that_cannot_be_read_now_is_not_lost(disk: MemoryDisk, ledger: Ledger) -> None:
    """While the disk cannot read the header, the ledger does not open; later it has its channels.

    It was opened without them, and channels that came back began at the end of the log.
    """
    ledger.note(RecordKind.CREATED, "c", [7])
    settle(ledger)

    disk.fail(Fault(1, errno.EIO, frozenset({"read"}), times=1000))
    with pytest.raises(DiskError, match=r"read .*ledger"):
        Ledger.open(disk, DIRECTORY)

    ledger, state = Ledger.open(disk.killed(), DIRECTORY)
    assert list(state.channels) == ["c"]
    assert not ledger.lacks_records
