"""Inspection of a data path: what it holds, and what is damaged; nothing is changed."""

from __future__ import annotations

import errno

import pytest

from sparq.log.check import check, size_of
from sparq.log.disk import DiskError
from sparq.log.ledger import Ledger
from sparq.log.metadata import DataPathMetadata
from sparq.log.segment import DATA_START
from sparq.testing import Fault, ManualClock, MemoryDisk
from tests.log.conversations import commit, open_log

PATH = "/data"
TOPIC = f"{PATH}/topics/t-clicks"


def write(disk: MemoryDisk, path: str, text: bytes) -> None:
    """A file with this text."""
    file = disk.create(path)
    file.append([text], 0)
    file.close()


@pytest.fixture
def disk() -> MemoryDisk:
    """100 messages, of which the channel has finished 30; one is delayed for a second time."""
    disk, clock = MemoryDisk(), ManualClock()
    ledger, _ = Ledger.open(disk, TOPIC)
    log = open_log(disk, clock, TOPIC)
    ledger.created("archive", log.end_index)
    first = commit(log, [b"a%d" % n for n in range(60)], clock).first_index
    commit(log, [b"b%d" % n for n in range(40)], clock)
    ledger.finished("archive", [first, first + 50], [first + 20, first + 60])
    ledger.requeued("archive", [first + 70], [clock.wall_ns * 2], [3])
    ledger.flush()
    log.close()
    ledger.close()
    write(disk, f"{PATH}/sparq.json", DataPathMetadata(1, 7, 0).encode())
    return disk


def test_depths_are_those_of_the_next_start(disk: MemoryDisk) -> None:
    """What is neither finished nor deferred; every byte of the log is read, and none changed."""
    before = {path: bytes(disk.data(path)) for path in disk.paths()}
    read: list[int] = []
    report = check(disk, PATH, ManualClock().now(), read.append)

    assert report is not None
    assert ("sparq", []) == (report.kind, report.all_damage())
    own, archive = report.rows
    assert ("clicks", "", 0) == (own.topic, own.channel, own.depth)
    assert ("archive", 69, 1, 1) == (
        archive.channel,
        archive.depth,
        archive.deferred,
        archive.attempted,
    )
    (path,) = (path for path in disk.paths() if path.endswith(".log"))
    assert len(disk.data(path)) == size_of(disk, PATH) == own.size_bytes
    assert len(disk.data(path)) - DATA_START == sum(read)
    assert before == {path: bytes(disk.data(path)) for path in disk.paths()}


def test_damage_is_named_and_costs_its_batch(disk: MemoryDisk) -> None:
    """A flipped byte of the first batch: its 60 messages are not counted."""
    (path,) = (path for path in disk.paths() if path.endswith(".log"))
    disk.data(path)[DATA_START + 200] ^= 1
    report = check(disk, PATH, ManualClock().now(), lambda _size: None)

    assert report is not None
    (damage,) = report.all_damage()
    assert damage.startswith(f"{path}: damaged batch")
    assert damage.endswith("60 messages lost")
    assert 39 == report.rows[1].depth


def test_what_is_missing_or_strange_is_told(disk: MemoryDisk) -> None:
    """No `sparq.json`, a folder that is no topic's, and a log that cannot be opened."""
    disk.unlink(f"{PATH}/sparq.json")
    disk.make_directory(f"{PATH}/topics/other")
    report = check(disk, PATH, ManualClock().now(), lambda _size: None)
    assert report is not None
    assert [f"{PATH}/sparq.json is missing"] == report.all_damage()
    assert f"{PATH}/topics/other is not a topic folder" in report.all_notes()

    disk.fail(Fault(1, errno.EACCES, frozenset({"open"})))
    report = check(disk, PATH, ManualClock().now(), lambda _size: None)
    assert report is not None
    assert any(text.startswith("topic clicks cannot be opened") for text in report.damage)


def test_a_folder_without_data_is_not_a_data_path() -> None:
    """There is nothing to report."""
    disk = MemoryDisk()
    disk.make_directory(PATH)
    assert check(disk, PATH, ManualClock().now(), lambda _size: None) is None


def test_a_folder_that_cannot_be_read_is_an_error(disk: MemoryDisk) -> None:
    """Then nothing can be said about the data path."""
    disk.fail(Fault(1, errno.EACCES, frozenset({"list"}), times=10))
    with pytest.raises(DiskError):
        check(disk, PATH, ManualClock().now(), lambda _size: None)
