"""Crashes and disk errors at every operation: acknowledged messages survive, none are invented.

Each promise of the log (P1, P2, P5, P8, P9) is tested in a loop: operation N fails, for every N.
"""

import errno
import random

import pytest

from sparq.log.disk import DiskError
from sparq.log.log import Log
from sparq.testing import Fault, ManualClock, MemoryDisk, PowerCut
from tests.log.log_operations import commit, open_log, publish, read_all, sync
from tests.log.publish_record import PublishRecord

ROUNDS = 14
CHANGES = frozenset({"write", "sync", "create", "truncate", "syncdir", "mkdir", "unlink"})
"""Operations that may fail without losing a message; an unreadable page loses its messages."""


def run(disk: MemoryDisk, clock: ManualClock, record: PublishRecord, *, sync: bool | None) -> Log:
    """Publish in three runs of the log, with small files and clean stops between them."""
    log = None
    for number in range(ROUNDS):
        if log is None or number % 6 == 5:
            if log is not None:
                stop(log)
            log = open_log(disk, clock, max_bytes_per_file=6_000, sync_every=4)
        record.publish(log, number, clock, sync=sync)
    assert log is not None
    return log


def stop(log: Log) -> None:
    """Stop cleanly: sync everything, and again if that fails."""
    for _ in range(2_000):
        if not log.unsynced.batches:
            break
        sync(log)
    log.close()


def operations(*, sync: bool | None) -> int:
    """Count the disk operations of a run without faults."""
    disk = MemoryDisk()
    run(disk, ManualClock(), PublishRecord(), sync=sync)
    return disk.count


@pytest.mark.parametrize("part", [0.0, 0.6, 1.0])
def test_power_cut_at_every_operation(part: float) -> None:
    """P2, P9: with every publish synced, acknowledged batches survive a power cut completely."""
    for at in range(1, operations(sync=True) + 1):
        disk, clock, record = MemoryDisk(), ManualClock(), PublishRecord()
        disk.fail(Fault(at, None, part=part))
        with pytest.raises(PowerCut):
            run(disk, clock, record, sync=True)
        for seed in range(3):
            # The clock is set back: only the ceilings prevent that indexes are used twice.
            clock = ManualClock(wall_ns=1_750_000_000_000_000_000)
            log = open_log(disk.crash(seed), clock, max_bytes_per_file=6_000)
            record.check(log)
            again = PublishRecord()
            again.attempted = dict(record.attempted)
            again.acknowledged = dict(record.acknowledged)
            again.publish(log, 99, clock, sync=True)
            again.check(log)
            assert log.written_end - 1 in again.acknowledged
            log.close()


@pytest.mark.parametrize("part", [0.5, 1.0])
@pytest.mark.parametrize("times", [1, 2, 3, 1000])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_failure_at_every_operation(number: int, times: int, part: float) -> None:
    """P7, P8: refused messages are not stored, acknowledged ones are, and publishing resumes.

    A refused batch is found in one case only: its write failed after writing everything, it could
    not be truncated, and nsqd stopped before the next publish.
    """
    revived = part == 1.0 and times > 1
    for at in range(1, operations(sync=None) + 1):
        disk, clock, record = MemoryDisk(), ManualClock(), PublishRecord()
        disk.fail(Fault(at, number, CHANGES, times, part))
        try:
            log = run(disk, clock, record, sync=None)
        except DiskError:
            # Opening or reading failed: the daemon would not have started.
            continue
        finally:
            disk.fault = None
        record.publish(log, 77, clock, sync=True)
        assert log.written_end - 1 in record.acknowledged
        record.check(log, refused_may_be_there=revived)
        assert log.unsynced.count == 0
        log.close()
        reopened = open_log(disk.crash(at), clock)
        record.check(reopened, refused_may_be_there=revived)


def test_a_new_file_that_can_be_neither_created_nor_deleted() -> None:
    """A new file that can be neither created nor deleted does not hide later messages.

    The previous file gets no more messages, since the remains of the new file would hide them.
    """
    disk, clock = MemoryDisk(), ManualClock()
    log = open_log(disk, clock, max_bytes_per_file=30_000)
    publish(log, [b"a" * 700] * 2, clock)
    disk.fail(Fault(1, errno.EIO, frozenset({"sync", "unlink", "syncdir"}), times=4))
    refused = commit(log, [b"b" * 700] * 40, clock)
    assert refused.error is not None
    disk.fault = None
    kept = publish(log, [b"c"], clock)

    assert b"c" == read_all(log)[kept]
    assert b"c" == read_all(open_log(disk.crash(1), clock))[kept]
    assert b"c" == read_all(open_log(disk.killed(), clock))[kept]


@pytest.mark.parametrize("times", [1, 2, 9])
def test_a_new_file_whose_folder_sync_failed(times: int) -> None:
    """Messages acknowledged after a new file's folder sync failed survive a power cut.

    This holds even if the power cut brings the new file back.
    """
    for seed in range(20):
        disk, clock, acknowledged = MemoryDisk(), ManualClock(), {}
        log = open_log(disk, clock, max_bytes_per_file=30_000)
        publish(log, [b"a" * 700] * 2, clock)
        disk.fail(Fault(1, errno.EIO, frozenset({"syncdir"}), times))
        assert commit(log, [b"b" * 700] * 40, clock).error is not None
        for number in range(9):
            first, bodies = log.end_index, [b"%d" % number]
            if commit(log, bodies, clock, sync=number % 2 == 0).error is None:
                acknowledged[first] = bodies[0]
        disk.fault = None

        assert acknowledged
        assert acknowledged.items() <= read_all(open_log(disk.crash(seed), clock)).items()


@pytest.mark.parametrize("seed", range(60))
def test_random_failures_and_crashes(seed: int) -> None:
    """Random errors and crashes over several runs lose nothing acknowledged.

    The test's parameter is the seed.
    """
    chance = random.Random(seed)
    disk, clock, record = MemoryDisk(), ManualClock(), PublishRecord()
    for _ in range(5):
        log = open_log(disk, clock, max_bytes_per_file=9_000, sync_every=chance.choice([1, 9]))
        record.check(log)
        for number in range(chance.randint(1, 25)):
            if chance.random() < 0.25:
                operation = chance.choice(["write", "sync", "create", "truncate", "syncdir"])
                disk.fail(
                    Fault(
                        1,
                        chance.choice([errno.EIO, errno.ENOSPC]),
                        frozenset({operation}),
                        chance.randint(1, 3),
                        chance.random(),
                    )
                )
            record.publish(log, number, clock, sync=chance.choice([None, True]))
        disk.fault = None
        stop(log)
        assert log.unsynced.count == 0
        record.check(log)
        disk = disk.crash(chance.randint(0, 1 << 30)) if chance.random() < 0.7 else disk.killed()
