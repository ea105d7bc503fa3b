"""Checking a data path: its contents and its damage are reported; nothing is changed."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from sparq.log.check import CheckReport, CheckRow, check, size_of
from sparq.log.disk import DiskError, ReadOnlyDisk, RealDisk
from sparq.log.ledger import Ledger
from sparq.log.log import Log, LogOptions
from sparq.log.metadata import DataPathMetadata
from sparq.log.segment import DATA_START
from sparq.protocol.frames import BodySlices
from sparq.testing import Fault, ManualClock, MemoryDisk
from tests.log.log_operations import commit, open_log

PATH = "/data"
TOPIC = f"{PATH}/topics/t-clicks"


def write(disk: MemoryDisk, path: str, text: bytes) -> None:
    """Create a file with this text."""
    file = disk.create(path)
    file.append([text], 0)
    file.close()


@pytest.fixture
def disk() -> MemoryDisk:
    """A topic of 100 messages, of which the channel has finished 30 and delayed 1."""
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
    """The depth counts messages that are neither finished nor deferred.

    Every byte of the log is read and no file is changed.
    """
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


def test_damage_is_reported_and_its_batch_is_not_in_the_depth(disk: MemoryDisk) -> None:
    """A flipped byte in a batch of 60 messages is reported, and they do not count in the depth."""
    (path,) = (path for path in disk.paths() if path.endswith(".log"))
    disk.data(path)[DATA_START + 200] ^= 1
    report = check(disk, PATH, ManualClock().now(), lambda _size: None)

    assert report is not None
    (damage,) = report.all_damage()
    assert damage.startswith(f"{path}: damaged batch")
    assert damage.endswith("60 messages lost")
    assert 39 == report.rows[1].depth


def test_missing_metadata_and_an_unreadable_log_are_damage(disk: MemoryDisk) -> None:
    """A missing `sparq.json` and a log that cannot be opened are damage.

    A directory that is no topic's is noted.
    """
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
    """A directory without data has no report."""
    disk = MemoryDisk()
    disk.make_directory(PATH)
    assert check(disk, PATH, ManualClock().now(), lambda _size: None) is None


def test_a_folder_that_cannot_be_read_is_an_error(disk: MemoryDisk) -> None:
    """A directory that cannot be listed raises DiskError."""
    disk.fail(Fault(1, errno.EACCES, frozenset({"list"}), times=10))
    with pytest.raises(DiskError):
        check(disk, PATH, ManualClock().now(), lambda _size: None)


CLOCK = ManualClock()
LATER_NS = CLOCK.wall_ns + 3_600_000_000_000


class Topic:
    """The topic `clicks` with two batches of 10 messages each.

    Attributes:
        first: the index of the first message.
        log_file: the file of its one segment.
    """

    def __init__(self, data_path: Path) -> None:
        folder = data_path / "topics" / "t-clicks"
        folder.mkdir(parents=True)
        (data_path / "sparq.json").write_bytes(DataPathMetadata(1, 7, 0).encode())
        disk = RealDisk()
        self.ledger, _ = Ledger.open(disk, str(folder))
        log = Log.open(disk, str(folder), node_id=7, options=LogOptions(), now=CLOCK.now())
        self.first = log.end_index
        for batch in (b"a", b"b"):
            bodies = BodySlices.of([batch * 100 + b"%d" % n for n in range(10)])
            commit = log.begin([bodies], CLOCK.now())
            commit.run()
            log.finish(commit)
            assert commit.error is None
        log.close()
        (self.log_file,) = folder.glob("*.log")

    def close(self) -> None:
        self.ledger.flush()
        self.ledger.close()


def checked(data_path: Path) -> CheckReport:
    found = check(ReadOnlyDisk(), str(data_path), CLOCK.now(), lambda _size: None)
    assert found is not None
    return found


def row(report: CheckReport, channel: str) -> CheckRow:
    (found,) = [row for row in report.rows if row.channel == channel]
    return found


def test_a_channels_depth_excludes_finished_and_deferred_messages(tmp_path: Path) -> None:
    """A channel's depth excludes finished messages and those not due yet.

    Messages requeued after a delivery are counted as attempted.
    """
    topic = Topic(tmp_path)
    first = topic.first
    topic.ledger.created("archive", first)
    topic.ledger.finished("archive", [first, first + 8], [first + 3, first + 9])
    again = [first + 4, first + 5, first + 6]
    topic.ledger.requeued("archive", again, [0, LATER_NS, 0], [1, 3, 0])
    topic.ledger.mark(first + 20)
    topic.close()

    report = checked(tmp_path)

    archive = row(report, "archive")
    assert (15, 1, 2) == (archive.depth, archive.deferred, archive.attempted)
    assert 0 == row(report, "").depth
    assert [] == report.all_damage()
    assert "format 1, node id 7" in report.all_notes()


def test_held_back_messages_are_in_the_depth_of_the_paused_topic(tmp_path: Path) -> None:
    """Messages at or after P count in the depth of the paused topic, not of its channels."""
    topic = Topic(tmp_path)
    topic.ledger.created("archive", topic.first)
    topic.ledger.mark(topic.first + 10)
    topic.ledger.paused(None, True)
    topic.ledger.paused("archive", True)
    topic.close()

    report = checked(tmp_path)

    own, archive = row(report, ""), row(report, "archive")
    assert (10, True) == (own.depth, own.paused)
    assert (10, True) == (archive.depth, archive.paused)


def test_damage_is_reported_and_reduces_the_depth(tmp_path: Path) -> None:
    """A flipped byte in a batch of 10 messages is reported, and they do not count in the depth."""
    topic = Topic(tmp_path)
    topic.ledger.created("archive", topic.first)
    topic.close()
    data = bytearray(topic.log_file.read_bytes())
    data[data.index(b"aaa") + 50] ^= 1
    topic.log_file.write_bytes(data)

    report = checked(tmp_path)

    (text,) = report.all_damage()
    assert "10 messages lost" in text
    assert 10 == row(report, "archive").depth
    assert bytes(data) == topic.log_file.read_bytes()


def test_an_incomplete_last_batch_is_not_damage(tmp_path: Path) -> None:
    """An incomplete last batch, as a kill leaves it, is a note, not damage.

    Its messages were never acknowledged.
    """
    topic = Topic(tmp_path)
    topic.close()
    data = topic.log_file.read_bytes()
    topic.log_file.write_bytes(data[: data.rindex(b"bbb") - 20])

    report = checked(tmp_path)

    assert [] == report.all_damage()
    assert 10 == row(report, "").depth
    assert any("unfinished write at the end of its log" in note for note in report.all_notes())


@pytest.mark.parametrize(
    ("content", "expected"), [(None, "is missing"), (b"{", "is damaged"), (b"[]", "is damaged")]
)
def test_the_metadata_of_the_data_path_are_checked(
    tmp_path: Path, content: bytes | None, expected: str
) -> None:
    """A missing or invalid `sparq.json` is damage: nsqd does not start with it."""
    Topic(tmp_path).close()
    if content is None:
        (tmp_path / "sparq.json").unlink()
    else:
        (tmp_path / "sparq.json").write_bytes(content)

    (text,) = checked(tmp_path).all_damage()

    assert text.startswith(f"{tmp_path}/sparq.json {expected}")


def test_folders_that_are_not_topics_are_noted(tmp_path: Path) -> None:
    """Directories that are not topics are noted, but are not damage and not counted."""
    Topic(tmp_path).close()
    (tmp_path / "topics" / "lost+found").mkdir()

    report = checked(tmp_path)

    assert ["clicks"] == [row.topic for row in report.rows]
    assert f"{tmp_path}/topics/lost+found is not a topic folder" in report.notes
    assert [] == report.all_damage()


def test_size_of_counts_logs_only(tmp_path: Path) -> None:
    """`size_of`, used for progress, counts logs only.

    Ledgers are small.
    """
    topic = Topic(tmp_path)
    topic.close()

    assert topic.log_file.stat().st_size == size_of(ReadOnlyDisk(), str(tmp_path))


def test_a_folder_without_data_has_no_report(tmp_path: Path) -> None:
    """A directory with neither topics nor `sparq.json` has no report."""
    assert check(ReadOnlyDisk(), str(tmp_path), CLOCK.now(), lambda _size: None) is None
