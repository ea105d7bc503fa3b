"""The report of `nsq_check` about a data path before, during and after its import by nsqd."""

from pathlib import Path

from sparq.log.check import CheckReport, CheckRow
from sparq.log.disk import RealDisk
from sparq.log.ledger import Ledger
from sparq.log.log import Log, LogOptions
from sparq.log.metadata import DataPathMetadata
from sparq.migration.check import check
from sparq.protocol.frames import BodySlices
from sparq.testing import ManualClock
from tests.support.go_data import GoQueue, write_metadata

CLOCK = ManualClock()


def checked(folder: Path) -> CheckReport:
    found = check(RealDisk(), str(folder), CLOCK.now(), lambda _size: None)
    assert found is not None
    return found


def rows(report: CheckReport) -> dict[tuple[str, str], CheckRow]:
    return {(row.topic, row.channel): row for row in report.rows}


def write_log(folder: Path, count: int) -> None:
    """Write a sparq topic with `count` messages and no channel."""
    disk = RealDisk()
    ledger, _ = Ledger.open(disk, str(folder))
    log = Log.open(disk, str(folder), node_id=7, options=LogOptions(), now=CLOCK.now())
    commit = log.begin([BodySlices.of([b"%d" % n for n in range(count)])], CLOCK.now())
    commit.run()
    log.finish(commit)
    log.close()
    ledger.close()


def test_depths_are_those_after_an_import(tmp_path: Path) -> None:
    """A topic's own queue counts in the depth of each channel, unless the topic is paused."""
    write_metadata(tmp_path, {"clicks": {"a": False, "b": True}, "held": {"c": False}}, "held")
    GoQueue(tmp_path, "clicks:a").put(b"1", b"2", b"3").put(b"4", b"5", attempts=2).close()
    GoQueue(tmp_path, "clicks").put(b"6", b"7").close()
    GoQueue(tmp_path, "held").put(b"8", b"9", b"10").close()

    report = checked(tmp_path)

    found = {name: (row.depth, row.attempted, row.paused) for name, row in rows(report).items()}
    assert found == {
        ("clicks", ""): (0, 0, False),
        ("clicks", "a"): (7, 2, False),
        ("clicks", "b"): (2, 0, True),
        ("held", ""): (3, 0, True),
        ("held", "c"): (0, 0, False),
    }
    assert ("go", []) == (report.kind, report.all_damage())
    note = "clicks: 2 messages in the topic's own queue will be copied to each of its channels"
    assert [note] == report.all_notes()


def test_damage_and_a_wrong_depth_are_reported(tmp_path: Path) -> None:
    """Damage is reported for its channel; a depth that differs from the metadata is a note."""
    write_metadata(tmp_path, {"clicks": {"a": False, "b": False}})
    queue = GoQueue(tmp_path, "clicks:a").put(*[b"%d" % n for n in range(10)]).close()
    queue.damage_length(4)
    GoQueue(tmp_path, "clicks:b").put(b"1").close().put(b"2")

    found = rows(checked(tmp_path))

    assert (9, 1) == (found["clicks", "a"].depth, len(found["clicks", "a"].damage))
    assert (2, []) == (found["clicks", "b"].depth, found["clicks", "b"].damage)
    assert "its metadata file reports 1 messages" in found["clicks", "b"].notes


def test_metadata_that_cannot_be_read_are_damage(tmp_path: Path) -> None:
    """An unreadable nsqd.dat is damage: the import would refuse it."""
    (tmp_path / "nsqd.dat").write_text("{")

    report = checked(tmp_path)

    assert ("go", []) == (report.kind, report.rows)
    assert ["move it away to import without it" in text for text in report.all_damage()] == [True]


def test_both_kinds_of_data_are_reported(tmp_path: Path) -> None:
    """If sparq's topics and Go's queues exist, both are reported, and that nsqd will not start."""
    (tmp_path / "topics" / "t-ours").mkdir(parents=True)
    write_log(tmp_path / "topics" / "t-ours", 3)
    GoQueue(tmp_path, "theirs").put(b"1", b"2").close()

    report = checked(tmp_path)

    assert "both" == report.kind
    assert {("ours", ""): 3, ("theirs", ""): 2} == {n: row.depth for n, row in rows(report).items()}
    assert ["nsqd will refuse to start" in note for note in report.notes].count(True) == 1


def test_an_interrupted_import_is_reported(tmp_path: Path) -> None:
    """Before an import's rename Go's files are reported, after it the new logs; both are noted."""
    write_metadata(tmp_path, {"clicks": {}})
    GoQueue(tmp_path, "clicks").put(b"1", b"2").close()
    (tmp_path / "sparq.json").write_bytes(DataPathMetadata(1, 7, 0).encode())
    (tmp_path / "go-import.tmp" / "topics").mkdir(parents=True)
    before = checked(tmp_path)
    (tmp_path / "go-import.tmp").rename(tmp_path / "go-import")
    (tmp_path / "go-import" / "topics" / "t-clicks").mkdir()
    write_log(tmp_path / "go-import" / "topics" / "t-clicks", 5)
    after = checked(tmp_path)

    assert ("go", 2) == (before.kind, rows(before)["clicks", ""].depth)
    restarts, finishes = "nsqd will restart it", "nsqd will finish it"
    facts = "format 1, node id 7"
    assert [f"an import was interrupted: {restarts}", facts] == before.notes
    assert ("sparq", 5) == (after.kind, rows(after)["clicks", ""].depth)
    assert [facts, f"an import was interrupted at its last step: {finishes}"] == after.notes


def test_a_folder_without_data_has_no_report(tmp_path: Path) -> None:
    """A folder with other files only has no report."""
    (tmp_path / "nsqd.log").write_text("started")

    assert check(RealDisk(), str(tmp_path), CLOCK.now(), lambda _size: None) is None
