"""Checking a data path: its contents and its damage are reported; nothing is changed."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from sparq.log.check import CheckReport, check, size_of
from sparq.log.disk import DiskError
from sparq.log.ledger import Ledger
from sparq.log.metadata import DataPathMetadata
from sparq.log.records import RecordKind
from sparq.log.segment import DATA_START
from sparq.testing import Fault, ManualClock, MemoryDisk
from tests.log.log_operations import commit, open_log

PATH = "/data"
TOPIC = f"{PATH}/topics/t-clicks"
METADATA = f"{PATH}/sparq.json"
CLOCK = ManualClock()
LATER_NS = CLOCK.wall_ns + 3_600_000_000_000


class DataPath:
    """The topic `clicks`: batches of 60 and of 40 messages.

    Its channel has finished 30, and 3 are requeued: two were delivered before, one is not due.
    """

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        ledger, _ = Ledger.open(self.disk, TOPIC)
        log = open_log(self.disk, CLOCK, TOPIC)
        ledger.note(RecordKind.CREATED, "archive", [log.end_index])
        self.first = commit(log, [b"a%d" % n for n in range(60)], CLOCK).first_index
        commit(log, [b"b%d" % n for n in range(40)], CLOCK)
        first, again = self.first, [self.first + at for at in (70, 71, 72)]
        ledger.note(RecordKind.FINISHED, "archive", [first, first + 50], [first + 20, first + 60])
        ledger.note(RecordKind.REQUEUED, "archive", again, [LATER_NS, 0, 0], [3, 1, 0])
        ledger.flush()
        log.close()
        ledger.close()
        self.disk.create(METADATA).append([DataPathMetadata(1, 7, 0).encode()], 0)
        (self.log_path,) = (path for path in self.disk.paths() if path.endswith(".log"))

    def note(self, kind: RecordKind, *columns: list[int], channel: str = "") -> None:
        """Note a record about the topic, or the channel, as nsqd does."""
        ledger, _ = Ledger.open(self.disk, TOPIC)
        ledger.note(kind, channel, *columns, flag=kind is RecordKind.PAUSED)
        ledger.flush()
        ledger.close()

    def check(self, read: list[int] | None = None) -> CheckReport:
        """Check it."""
        report = check(self.disk, PATH, CLOCK.now(), ([] if read is None else read).append)
        assert report is not None
        return report


@pytest.fixture
def data_path() -> Iterator[DataPath]:
    """A data path; the check changes none of its files."""
    made = DataPath()
    yield made
    before = {path: bytes(made.disk.data(path)) for path in made.disk.paths()}
    made.disk.fault = None
    made.check()
    assert before == {path: bytes(made.disk.data(path)) for path in made.disk.paths()}


def test_depths_are_those_of_the_next_start(data_path: DataPath) -> None:
    """The depth counts messages that are neither finished nor deferred; every byte is read."""
    read: list[int] = []
    report = data_path.check(read)

    own, archive = report.rows
    assert ("sparq", []) == (report.kind, report.all_damage())
    assert ("clicks", "", 0) == (own.topic, own.channel, own.depth)
    assert ("archive", 69, 1, 2) == (
        archive.channel,
        archive.depth,
        archive.deferred,
        archive.attempted,
    )
    size = len(data_path.disk.data(data_path.log_path))
    assert size == size_of(data_path.disk, PATH) == own.size_bytes
    assert size - DATA_START == sum(read)
    assert "format 1, node id 7" in report.all_notes()


def test_held_back_messages_are_in_the_depth_of_the_paused_topic(data_path: DataPath) -> None:
    """Messages at or after P count in the depth of the paused topic, not of its channels."""
    data_path.note(RecordKind.MARK, [data_path.first + 90])
    data_path.note(RecordKind.PAUSED)
    data_path.note(RecordKind.PAUSED, channel="archive")

    own, archive = data_path.check().rows

    assert (10, True) == (own.depth, own.paused)
    assert (59, True) == (archive.depth, archive.paused)


def test_damage_is_reported_and_its_batch_is_not_in_the_depth(data_path: DataPath) -> None:
    """A flipped byte in a batch of 60 messages is reported, and they do not count in the depth."""
    data_path.disk.data(data_path.log_path)[DATA_START + 200] ^= 1
    report = data_path.check()

    (damage,) = report.all_damage()
    assert damage.startswith(f"{data_path.log_path}: damaged batch")
    assert damage.endswith("60 messages lost")
    assert 39 == report.rows[1].depth


def test_an_incomplete_last_batch_is_not_damage(data_path: DataPath) -> None:
    """An incomplete last batch, as a kill leaves it, is a note: it was never acknowledged."""
    del data_path.disk.data(data_path.log_path)[-20:]

    report = data_path.check()

    assert [] == report.all_damage()
    assert any("unfinished write at the end of its log" in note for note in report.all_notes())


@pytest.mark.parametrize(
    ("content", "expected"), [(None, "is missing"), (b"{", "is damaged"), (b"[]", "is damaged")]
)
def test_the_metadata_of_the_data_path_are_checked(
    data_path: DataPath, content: bytes | None, expected: str
) -> None:
    """A missing or invalid `sparq.json` is damage: nsqd does not start with it."""
    data_path.disk.unlink(METADATA)
    if content is not None:
        data_path.disk.create(METADATA).append([content], 0)

    (text,) = data_path.check().all_damage()

    assert text.startswith(f"{METADATA} {expected}")


def test_what_is_no_topic_and_what_cannot_be_opened(data_path: DataPath) -> None:
    """A folder that is no topic's is noted; a log that cannot be opened is damage."""
    data_path.disk.make_directory(f"{PATH}/topics/other")
    report = data_path.check()
    assert f"{PATH}/topics/other is not a topic folder" in report.all_notes()
    assert ["clicks", "clicks"] == [row.topic for row in report.rows]

    data_path.disk.fail(Fault(2, errno.EACCES, frozenset({"open"})))
    assert any(text.startswith("topic clicks cannot be") for text in data_path.check().damage)


def test_folders_without_data_and_unreadable_ones(data_path: DataPath) -> None:
    """A folder without data has no report; one that cannot be listed is an error."""
    empty = MemoryDisk()
    empty.make_directory(PATH)
    assert check(empty, PATH, CLOCK.now(), lambda _size: None) is None

    data_path.disk.fail(Fault(1, errno.EACCES, frozenset({"list"}), times=10))
    with pytest.raises(DiskError):
        data_path.check()
