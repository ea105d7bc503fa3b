"""The ledger on a full disk: finishes are kept in the reserve, by checkpoints, or until later."""

import pytest

from sparq.log.disk import DiskError
from sparq.log.ledger import Ledger
from sparq.log.records import ChannelState, RecordKind, TopicState
from sparq.log.reserve import Purpose, Reserve
from sparq.testing import MemoryDisk
from tests.log.ledgers import DIRECTORY, checkpoint, finished


def test_finish_on_a_full_disk_uses_the_reserve() -> None:
    """P7: without free space, 10,000 finishes and the checkpoint are written, from the reserve."""
    disk = MemoryDisk(capacity_bytes=16 << 20)
    disk.make_directory("/data")
    reserve = Reserve.open(disk, "/data")
    ledger, _ = Ledger.open(disk, DIRECTORY, reserve)
    ledger.note(RecordKind.CREATED, "c", [0])
    ledger.flush()
    filler = disk.create("/data/filler")
    filler.append([bytes(disk.free_bytes("/data"))], 0)
    assert disk.free_bytes("/data") == 0

    for index in range(10_000):
        ledger.note(RecordKind.FINISHED, "c", [index * 2 + 1], [index * 2 + 2])
        ledger.flush()

    assert reserve.is_low
    ranges = [(index * 2 + 1, index * 2 + 2) for index in range(10_000)]
    state = TopicState(None, False, {"c": ChannelState(0, 0, ranges)})
    assert checkpoint(ledger, state) is None
    assert len(finished(Ledger.open(disk.crash(1), DIRECTORY)[1])) == 10_000


def test_records_are_kept_until_there_is_space() -> None:
    """If the reserve is used up, too, what was noted is kept for the next flush."""
    disk = MemoryDisk(capacity_bytes=4096)
    disk.make_directory("/data")
    ledger, _ = Ledger.open(disk, DIRECTORY, Reserve.open(disk, "/data"))
    ledger.note(RecordKind.CREATED, "c", [0])
    ledger.flush()
    filler = disk.create("/data/filler")
    filler.append([bytes(disk.free_bytes("/data"))], 0)
    ledger.note(RecordKind.FINISHED, "c", list(range(1, 999, 2)), list(range(2, 1000, 2)))
    with pytest.raises(DiskError, match="no space left on device"):
        ledger.flush()
    filler.truncate(0)
    disk.capacity_bytes = 1 << 20

    ledger.flush()

    assert len(finished(Ledger.open(disk, DIRECTORY)[1])) == 499


def full_disk(held_bytes: int) -> tuple[MemoryDisk, Ledger]:
    """A disk whose only free space is a reserve of `held_bytes`, and a ledger with one channel."""
    disk = MemoryDisk(capacity_bytes=1 << 20)
    disk.make_directory("/data")
    disk.create("/data/reserve").reserve(held_bytes)
    ledger, _ = Ledger.open(disk, DIRECTORY, Reserve.open(disk, "/data", held_bytes))
    ledger.note(RecordKind.CREATED, "c", [0])
    ledger.flush()
    disk.create("/data/filler").append([bytes(disk.free_bytes("/data"))], 0)
    return disk, ledger


def test_checkpoints_free_space_without_end() -> None:
    """P7: with a reserve of 100 KB, 100,000 single FINs are kept, each flushed.

    Whenever a flush finds no space, a checkpoint frees what the ledger has taken.
    """
    disk, ledger = full_disk(100_000)
    refused = 0
    for index in range(100_000):
        ledger.note(RecordKind.FINISHED, "c", [index], [index + 1])
        try:
            ledger.flush()
        except DiskError as error:
            assert error.is_full
            refused += 1
            state = TopicState(None, False, {"c": ChannelState(index + 1, index + 1)})
            assert checkpoint(ledger, state, Purpose.CHECKPOINT) is None
            assert ledger.written_mark == ledger.synced_mark == ledger.appended_mark

    assert 0 < refused < 1_000
    assert Ledger.open(disk, DIRECTORY)[1].channels["c"].start == 100_000


def test_a_checkpoint_without_space_changes_nothing() -> None:
    """A checkpoint that does not fit creates no file; what was noted stays for the next flush."""
    disk, ledger = full_disk(30_000)
    ranges = [(index * 2 + 1, index * 2 + 2) for index in range(5_000)]
    ledger.note(
        RecordKind.FINISHED, "c", [first for first, _ in ranges], [end for _, end in ranges]
    )
    with pytest.raises(DiskError, match="no space left on device"):
        ledger.flush()
    paths = disk.paths()
    state = TopicState(None, False, {"c": ChannelState(0, 0, ranges)})

    for _ in range(3):
        with pytest.raises(DiskError, match="no space left on device"):
            ledger.checkpoint_task(state, Purpose.CHECKPOINT)

    assert disk.paths() == paths
    disk.capacity_bytes = 2 << 20
    ledger.flush()
    assert len(finished(Ledger.open(disk, DIRECTORY)[1])) == 5_000


def test_a_new_topic_uses_nothing_of_the_reserve() -> None:
    """On a full disk a new topic is refused, as publishes are: the reserve is for FINs."""
    disk, ledger = full_disk(100_000)
    with pytest.raises(DiskError, match="no space left on device"):
        Ledger.open(disk, "/data/topics/t-new", ledger._reserve)
    ledger.close()

    reserve = Reserve.open(disk, "/data")
    Ledger.open(disk, DIRECTORY, reserve)

    assert reserve.held_bytes == 100_000


def test_a_torn_ledger_is_opened_on_a_full_disk() -> None:
    """A torn ledger is opened: its next file is created in the space for checkpoints."""
    disk, ledger = full_disk(16 * 1024)
    ledger.close()
    (path,) = [path for path in disk.paths() if "ledger-" in path]
    disk.data(path).extend(b"torn")
    assert disk.free_bytes("/data") == 0

    _, state = Ledger.open(disk, DIRECTORY, Reserve.open(disk, "/data"))

    assert list(state.channels) == ["c"]
