"""The reserve: disk space for FINs, released in steps and refilled automatically."""

import errno

import pytest

from sparq.log.disk import DiskError
from sparq.log.reserve import (
    BLOCK_BYTES,
    CATALOG_BYTES,
    RESERVE_BYTES,
    SHARE,
    SLACK_BYTES,
    Account,
    Purpose,
    Reserve,
    with_reserve,
)
from sparq.testing import Fault, MemoryDisk


def small_disk(capacity_bytes: int) -> MemoryDisk:
    disk = MemoryDisk(capacity_bytes=capacity_bytes)
    disk.make_directory("/data")
    return disk


def test_share_of_a_small_disk() -> None:
    """On a disk of 8 MiB the reserve takes an eighth, and no more when it is reopened."""
    disk = small_disk(8 << 20)
    reserve = Reserve.open(disk, "/data")
    assert reserve.held_bytes == (8 << 20) // SHARE
    reserve.close()

    again = Reserve.open(disk, "/data")

    assert again.held_bytes == reserve.held_bytes
    assert not again.is_low


def test_nsqd_starts_on_a_full_disk() -> None:
    """nsqd starts on a full disk, so that consumers can finish messages."""
    disk = small_disk(8 << 20)
    disk.create("/data/filler").append([bytes(8 << 20)], 0)
    disk.unlink("/data/filler")
    disk.fail(Fault(2, errno.ENOSPC, frozenset({"create", "reserve"}), times=1))

    reserve = Reserve.open(disk, "/data")

    assert reserve.is_low


def test_errors_other_than_a_full_disk_prevent_the_start() -> None:
    """Errors other than a full disk prevent the start."""
    disk = small_disk(8 << 20)
    disk.fail(Fault(1, errno.EIO, frozenset({"reserve"})))

    with pytest.raises(DiskError, match="reserve /data/reserve: input/output error"):
        Reserve.open(disk, "/data")


def test_a_check_tells_whether_there_is_space() -> None:
    """`check_space` returns whether there is space; it neither ends a refusal nor begins one."""
    disk = small_disk(8 << 20)
    reserve = Reserve.open(disk, "/data")
    assert not reserve.check_space(8 << 20)
    assert not reserve.is_short
    with pytest.raises(DiskError, match="no space left"):
        reserve.admit(8 << 20)
    assert reserve.is_short

    assert not reserve.check_space(8 << 20)
    assert reserve.is_short
    assert reserve.check_space(1 << 20)
    assert reserve.is_short


def test_ledgers_use_the_reserve_and_restore_refills_it() -> None:
    """Appends to ledgers use the reserve down to its floor; `restore` refills it."""
    disk = small_disk(8 << 20)
    reserve = Reserve.open(disk, "/data")
    reserve.join(Account(ledger_bytes=100_000))
    while reserve.release(5_000, Purpose.APPEND):
        pass
    # The next write is included: it may go to the ledger that needs most space.
    assert reserve.held_bytes == reserve.floor_bytes + 2 * BLOCK_BYTES > 100_000

    reserve.restore()

    assert not reserve.is_low


def test_only_checkpoints_and_catalog_files_use_the_floor() -> None:
    """Below the floor only checkpoints, and then catalog files, can use the reserve.

    They free more space than they take.
    """
    disk = small_disk(8 << 20)
    reserve = Reserve.open(disk, "/data")
    reserve.join(Account(ledger_bytes=100_000))
    while reserve.release(5_000, Purpose.APPEND):
        pass
    assert reserve.holds(100_000, Purpose.CHECKPOINT)
    while reserve.release(5_000, Purpose.CHECKPOINT):
        pass
    assert reserve.held_bytes == CATALOG_BYTES

    assert reserve.release(5_000, Purpose.CATALOG)

    assert reserve.held_bytes == 0
    assert not reserve.release(5_000, Purpose.CATALOG)


def test_freed_space_refills_the_floor_first() -> None:
    """Freed space refills the floor first, for the next checkpoint."""
    disk = small_disk(8 << 20)
    reserve = Reserve.open(disk, "/data")
    reserve.join(Account(ledger_bytes=100_000))
    while reserve.release(5_000, Purpose.CATALOG):
        pass
    disk.create("/data/filler").append([bytes(disk.free_bytes("/data") - 90_000)], 0)

    reserve.restore()

    assert (reserve.held_bytes, disk.free_bytes("/data")) == (90_000, 0)


def test_target_follows_the_disk() -> None:
    """A reserve opened on a nearly full disk grows to its share once there is space.

    No log gets that space before.
    """
    disk = small_disk(16 << 20)
    filler = disk.create("/data/filler")
    filler.append([bytes((16 << 20) - 300_000)], 0)
    reserve = Reserve.open(disk, "/data")
    assert reserve.target_bytes == 300_000 // SHARE
    filler.truncate(0)

    reserve.admit(1000)

    assert reserve.held_bytes == reserve.target_bytes == (16 << 20) // SHARE


def test_target_counts_the_ledgers() -> None:
    """The target includes space for a checkpoint of each ledger.

    It is limited to half of a small disk.
    """
    disk = small_disk(8 << 20)
    reserve = Reserve.open(disk, "/data")
    accounts = [Account() for _ in range(200)]
    for account in accounts:
        reserve.join(account)
    reserve.restore()
    assert reserve.held_bytes == reserve.floor_bytes + 200 * 2 * BLOCK_BYTES

    for account in accounts:
        reserve.leave(account)

    assert not reserve.is_low
    assert reserve.target_bytes == (8 << 20) // SHARE


def test_commits_leave_slack_bytes_free() -> None:
    """A commit that would leave less than `SLACK_BYTES` free is refused before any write."""
    disk = small_disk(8 << 20)
    reserve = Reserve.open(disk, "/data")
    free = disk.free_bytes("/data")
    with pytest.raises(DiskError, match="no space left on device"):
        reserve.admit(free - SLACK_BYTES + 1)
    assert reserve.is_short

    reserve.admit(free - SLACK_BYTES)

    assert not reserve.is_short


def test_commits_check_the_free_space_before_it_is_used_up() -> None:
    """Commits check the free space only from time to time, but before it can be used up."""
    disk = small_disk(8 << 20)
    reserve = Reserve.open(disk, "/data")
    filler = disk.create("/data/filler")
    taken = 0
    with pytest.raises(DiskError, match="no space left on device"):
        while True:
            reserve.admit(1000)
            filler.append([bytes(1000)], taken)
            taken += 1000
    assert SLACK_BYTES <= disk.free_bytes("/data") < SLACK_BYTES + 1000


def test_a_disk_that_refuses_whatever_is_released_is_given_up_soon() -> None:
    """If released space does not help, an action is tried a few times, not once for each block."""
    reserve = Reserve.open(small_disk(1 << 30), "/data")
    tries: list[int] = []

    def action() -> None:
        tries.append(reserve.held_bytes)
        raise DiskError("write", "/data/x", errno.ENOSPC)

    with pytest.raises(DiskError):
        with_reserve(action, reserve, 100)

    assert tries[0] == RESERVE_BYTES
    assert len(tries) < 20


def test_a_quota_that_refuses_to_truncate_is_met_by_deleting() -> None:
    """Where the disk refuses to shrink a file, the reserve is deleted and made again smaller."""
    disk = small_disk(1 << 30)
    reserve = Reserve.open(disk, "/data")
    disk.fail(Fault(1, errno.EDQUOT, frozenset({"truncate"}), times=10**6))

    assert reserve.release(100)
    assert 0 < len(disk.data("/data/reserve")) == reserve.held_bytes < RESERVE_BYTES
    disk.fail(Fault(1, errno.EDQUOT, frozenset({"truncate", "unlink"}), times=10**6))
    assert not reserve.release(100)
    disk.fail(Fault(1, errno.EDQUOT, frozenset({"truncate"}), times=10**6))
    reserve.restore()
    assert len(disk.data("/data/reserve")) == reserve.held_bytes == RESERVE_BYTES
    assert disk.paths() == ["/data/reserve"]


def test_a_quotas_step_that_could_not_be_deleted_is_replaced() -> None:
    """A file that a failed deletion left behind does not stop the reserve from being restored."""
    disk = small_disk(1 << 30)
    reserve = Reserve.open(disk, "/data")
    disk.fail(Fault(1, errno.EDQUOT, frozenset({"truncate"}), times=1))
    assert reserve.release(100)
    disk.fail(Fault(1, errno.EIO, frozenset({"unlink"}), times=10**6))
    reserve.restore()
    assert "/data/reserve.step" in disk.paths()
    disk.fault = None

    assert reserve.release(100)
    reserve.restore()

    assert len(disk.data("/data/reserve")) == reserve.held_bytes == RESERVE_BYTES
    assert disk.paths() == ["/data/reserve"]


def test_space_that_the_disk_frees_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """While space is missing, every few checks wait for what the file system has yet to free."""
    disk = small_disk(8 << 20)
    reserve = Reserve.open(disk, "/data")
    filler = disk.create("/data/filler")
    filler.append([bytes(disk.free_bytes("/data"))], 0)
    settled: list[str] = []

    def settle(path: str) -> None:
        settled.append(path)
        filler.truncate(0)

    monkeypatch.setattr(disk, "settle", settle)
    checks = [reserve.check_space(1 << 20)]
    while not settled:
        checks.append(reserve.check_space(1 << 20))

    assert [False] * (len(checks) - 1) + [True] == checks
    assert len(checks) > 1


def test_a_moved_data_path_gives_logs_no_space() -> None:
    """Logs are refused, with the reason, until the folder is back in its place."""
    disk = small_disk(8 << 20)
    reserve = Reserve.open(disk, "/data")

    disk.rename("/data", "/elsewhere")
    reserve.check_place()
    with pytest.raises(DiskError, match="find /data"):
        reserve.refuse_if_blocked()
    disk.rename("/elsewhere", "/data")
    reserve.check_place()
    reserve.refuse_if_blocked()
