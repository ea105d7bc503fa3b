"""Segments are created in advance and deleted in steps, and both survive power cuts."""

import errno

import pytest

from sparq.log import upkeep
from sparq.log.disk import DiskError
from sparq.log.log import Log
from sparq.log.segment import DATA_START, NEXT
from sparq.log.upkeep import GONE
from sparq.testing import Fault, ManualClock, MemoryDisk, PowerCut
from tests.log.log_operations import DIRECTORY, drop, open_log, publish, read_all, run_upkeep
from tests.log.publish_record import PublishRecord

LIMIT = 12_000
HALF_BODY = b"h" * 3_500


def files(disk: MemoryDisk, suffix: str) -> list[str]:
    """The files with this suffix."""
    return [path for path in disk.paths() if path.endswith(suffix)]


def half_full(disk: MemoryDisk, clock: ManualClock) -> Log:
    """A log whose next segment has been created in advance."""
    log = open_log(disk, clock, max_bytes_per_file=LIMIT)
    publish(log, [HALF_BODY], clock)
    run_upkeep(log)
    assert 1 == len(files(disk, NEXT))
    return log


def test_a_commit_that_begins_a_segment_creates_no_file(
    disk: MemoryDisk, clock: ManualClock
) -> None:
    """A commit that begins a segment uses the one created in advance.

    It creates no file and syncs no directory.
    """
    log = half_full(disk, clock)
    before = len(disk.trace)

    publish(log, [b"x" * 8_000], clock)

    done = [operation for operation, _ in disk.trace[before:]]
    assert {"create", "syncdir", "unlink"}.isdisjoint(done)
    assert 2 == len(files(disk, ".log"))
    assert [] == files(disk, NEXT)
    assert log.upkeep.spare is None


def test_the_next_segment_is_created_once(disk: MemoryDisk, clock: ManualClock) -> None:
    """The next segment is created once, when the current one is half full."""
    log = open_log(disk, clock, max_bytes_per_file=LIMIT)
    publish(log, [b"little"], clock)
    run_upkeep(log)
    assert [] == files(disk, NEXT)
    publish(log, [HALF_BODY], clock)
    run_upkeep(log)
    run_upkeep(log)

    assert 1 == len(files(disk, NEXT))


def test_a_segment_that_lost_its_new_name_is_found(disk: MemoryDisk, clock: ManualClock) -> None:
    """A segment that lost its new name in a crash is found, with its messages."""
    log = half_full(disk, clock)
    publish(log, [b"x" * 8_000], clock)
    expected = read_all(log)
    log.close()
    newest = files(disk, ".log")[-1]
    disk.rename(newest, f"{DIRECTORY}/0000000000000001{NEXT}")

    reopened = open_log(disk, clock)

    assert expected == read_all(reopened)
    assert newest in files(disk, ".log")


@pytest.mark.parametrize("operation", ["rename", "open", "write", "sync"])
def test_a_failed_next_segment_is_replaced(
    operation: str, disk: MemoryDisk, clock: ManualClock
) -> None:
    """If the next segment fails, the commit creates another one."""
    log = half_full(disk, clock)
    disk.fail(Fault(1, errno.EIO, frozenset({operation})))

    publish(log, [b"x" * 8_000], clock)

    assert 2 == len(read_all(log))
    log.close()
    assert 2 == len(read_all(open_log(disk.crash(), clock)))


def test_failure_to_create_the_next_segment_is_reported_once(
    disk: MemoryDisk, clock: ManualClock
) -> None:
    """A failure to create the next segment is reported once, and publishing continues."""
    log = open_log(disk, clock, max_bytes_per_file=LIMIT)
    publish(log, [HALF_BODY], clock)
    assert log.active is not None
    task = log.upkeep.prepare(log.active)
    disk.fail(Fault(1, errno.ENOSPC, frozenset({"create"})))
    task.run()

    assert "no space" in log.upkeep.finish(task)
    assert log.active.segment.size < log.upkeep.spare_due_size
    publish(log, [b"x" * 8_000], clock)
    assert 2 == len(read_all(log))


def three_runs(disk: MemoryDisk, clock: ManualClock, record: PublishRecord) -> None:
    """Three runs with upkeep after each publish; the oldest segments are dropped."""
    for start in range(3):
        log = open_log(disk, clock, max_bytes_per_file=LIMIT)
        for number in range(6):
            record.publish(log, 10 * start + number, clock, sync=True)
            publish_filler(log, record, clock)
            run_upkeep(log)
            sealed = [info for info in log.segments() if info.sealed]
            if len(sealed) > 2:
                for index in range(sealed[0].first_index, sealed[0].end_index):
                    record.acknowledged.pop(index, None)
                drop(log)
        log.close()


def publish_filler(log: Log, record: PublishRecord, clock: ManualClock) -> None:
    """Publish a large message: three fill a segment."""
    first = log.end_index
    record.attempted[first] = HALF_BODY
    publish(log, [HALF_BODY], clock)
    record.acknowledged[first] = HALF_BODY


@pytest.mark.parametrize("part", [0.0, 0.6])
def test_power_cut_at_every_operation(part: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut at any operation of upkeep loses no acknowledged message.

    This covers index files, segments created in advance and segments being deleted.
    """
    monkeypatch.setattr(upkeep, "STEP_BYTES", 2_000)
    disk = MemoryDisk()
    three_runs(disk, ManualClock(), PublishRecord())
    assert any(path.endswith(GONE) for _, path in disk.trace)
    for at in range(1, disk.count + 1):
        cut, clock, record = MemoryDisk(), ManualClock(), PublishRecord()
        cut.fail(Fault(at, None, part=part))
        with pytest.raises(PowerCut):
            three_runs(cut, clock, record)
        for seed in range(2):
            clock = ManualClock(wall_ns=1_750_000_000_000_000_000)
            after = cut.crash(seed)
            log = open_log(after, clock, max_bytes_per_file=LIMIT)
            found = read_all(log)
            assert record.acknowledged.items() <= found.items()
            assert {index: record.attempted[index] for index in found} == found
            assert [] == [str(damage) for damage in log.damage]
            assert log.end_index > max(found, default=0)
            run_upkeep(log)
            assert [] == [*files(after, NEXT), *files(after, GONE)]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_failure_at_every_operation(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error at any operation no acknowledged message is lost."""
    monkeypatch.setattr(upkeep, "STEP_BYTES", 2_000)
    changes = frozenset({"create", "write", "sync", "syncdir", "rename", "unlink", "truncate"})
    disk = MemoryDisk()
    three_runs(disk, ManualClock(), PublishRecord())
    for at in range(1, disk.count + 1):
        failing, clock, record = MemoryDisk(), ManualClock(), PublishRecord()
        failing.fail(Fault(at, number, changes))
        try:
            three_runs(failing, clock, record)
        except (DiskError, AssertionError):
            # The publish, or the start, that met the failure was refused.
            failing.fault = None
        log = open_log(failing, clock)
        assert record.acknowledged.items() <= read_all(log).items()
        assert [] == [str(damage) for damage in log.damage if damage.messages]


def test_a_large_segment_is_deleted_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large segment is first renamed, so that no start sees it, then truncated in steps.

    Its index file is deleted first.
    """
    monkeypatch.setattr(upkeep, "STEP_BYTES", 4_000)
    disk, clock = MemoryDisk(), ManualClock()
    log = open_log(disk, clock, max_bytes_per_file=LIMIT)
    for _ in range(5):
        publish(log, [HALF_BODY], clock)
    run_upkeep(log)
    info = log.segments()[0]
    before = len(disk.trace)

    assert drop(log).error is None
    assert info.path not in disk.paths()
    done = [operation for operation, _ in disk.trace[before:]]
    assert ["unlink", "rename", "syncdir", "open", "truncate"] == done[:5]
    assert info.size_bytes > DATA_START
