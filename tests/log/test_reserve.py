"""The reserve: space for finishes, let go bit by bit and filled up again by itself."""

import errno

import pytest

from sparq.log.disk import DiskError
from sparq.log.log import Log, LogOptions
from sparq.log.reserve import SHARE, STEP_BYTES, Reserve
from sparq.protocol.frames import Bodies
from sparq.testing import Fault, ManualClock, MemoryDisk
from tests.log.conversations import DIRECTORY, read_all


def small_disk(capacity_bytes: int) -> MemoryDisk:
    disk = MemoryDisk(capacity_bytes=capacity_bytes)
    disk.make_directory("/data")
    return disk


def test_share_of_a_small_disk() -> None:
    """On a disk of 8 MiB it takes an eighth, and not again when it is opened again."""
    disk = small_disk(8 << 20)
    reserve = Reserve.open(disk, "/data")
    assert reserve.held_bytes == (8 << 20) // SHARE
    reserve.close()

    again = Reserve.open(disk, "/data")

    assert again.held_bytes == reserve.held_bytes
    assert not again.is_low


def test_full_disk_at_the_start_is_no_error() -> None:
    """An nsqd starts on a full disk: consumers must be able to finish."""
    disk = small_disk(8 << 20)
    disk.create("/data/filler").append([bytes(8 << 20)], 0)
    disk.unlink("/data/filler")
    disk.fail(Fault(2, errno.ENOSPC, frozenset({"create", "reserve"}), times=1))

    reserve = Reserve.open(disk, "/data")

    assert reserve.is_low


def test_other_errors_are_errors() -> None:
    """A disk that fails otherwise says so at the start."""
    disk = small_disk(8 << 20)
    disk.fail(Fault(1, errno.EIO, frozenset({"reserve"})))

    with pytest.raises(DiskError, match="reserve /data/reserve: input/output error"):
        Reserve.open(disk, "/data")


def test_let_go_and_filled_up() -> None:
    """Step by step to nothing, then back."""
    disk = small_disk(8 << 20)
    reserve = Reserve.open(disk, "/data")
    steps = 0
    while reserve.release():
        steps += 1
    assert steps == reserve.target_bytes // STEP_BYTES
    assert reserve.held_bytes == 0

    reserve.refill()

    assert not reserve.is_low


def test_grows_with_the_snapshots() -> None:
    """Twice the largest snapshot fits, where the disk is large enough."""
    disk = small_disk(1 << 30)
    reserve = Reserve.open(disk, "/data", 1 << 20)
    reserve.grow(6 << 20)
    assert (reserve.target_bytes, reserve.is_low) == (6 << 20, True)
    reserve.refill()
    reserve.grow(1 << 20)

    assert (reserve.held_bytes, reserve.target_bytes) == (6 << 20, 6 << 20)


def test_logs_take_nothing_while_it_is_low() -> None:
    """P7: what is let go is the ledgers'; publishing resumes by itself when there is space."""
    disk, clock = small_disk(8 << 20), ManualClock()
    reserve = Reserve.open(disk, "/data")
    log = Log.open(
        disk,
        DIRECTORY,
        node_id=7,
        options=LogOptions(),
        now=clock.now(),
        reserve=reserve,
    )

    def publish(body: bytes) -> DiskError | None:
        commit = log.begin([Bodies.of([body])], clock.now())
        commit.run()
        log.finish(commit)
        return commit.error

    assert publish(b"before") is None
    filler = disk.create("/data/filler")
    filler.append([bytes(disk.free_bytes("/data") - 1000)], 0)
    reserve.release()
    disk.create("/data/ledger").append([bytes(100_000)], 0)

    refused = publish(b"refused")
    assert refused is not None
    assert refused.is_full
    filler.truncate(0)

    assert publish(b"after") is None
    assert not reserve.is_low
    assert list(read_all(log).values()) == [b"before", b"after"]
