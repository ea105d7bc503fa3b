"""The assertions of go-diskqueue's tests, made about sparq's log, which replaces the disk queue."""

import threading
from collections import Counter
from pathlib import Path

import pytest

from sparq.log.disk import RealDisk
from sparq.log.segment import DATA_START
from sparq.protocol.batch import batch_size
from sparq.protocol.layout import FRAME_OVERHEAD
from sparq.testing import ManualClock, MemoryDisk
from tests.log.log_operations import DIRECTORY, commit, open_log, publish, read_all

BODY = b"0123456789"
BATCH = batch_size(1, FRAME_OVERHEAD + len(BODY), 0)


@pytest.mark.behaviour("diskqueue.TestDiskQueue")
def test_a_message_is_written_and_read(clock: ManualClock) -> None:
    """One message is written and read, and the count is 1."""
    log = open_log(MemoryDisk(), clock)
    index = publish(log, [BODY], clock)

    assert {index: BODY} == read_all(log)
    assert 1 == log.end_ordinal


@pytest.mark.behaviour("diskqueue.TestDiskQueueRoll")
def test_the_eleventh_message_starts_a_new_file(clock: ManualClock) -> None:
    """With files of ten messages, eleven are in two files, and all are read in order."""
    log = open_log(MemoryDisk(), clock, max_bytes_per_file=DATA_START + 10 * BATCH)
    bodies = [b"%010d" % number for number in range(11)]
    for body in bodies:
        publish(log, [body], clock)

    assert [(10, True), (1, False)] == [(s.messages, s.sealed) for s in log.segments()]
    assert DATA_START + BATCH == log.segments()[1].size_bytes
    assert bodies == list(read_all(log).values())


@pytest.mark.behaviour("diskqueue.TestDiskQueuePeek")
def test_reading_changes_nothing(clock: ManualClock) -> None:
    """Reading any number of times changes neither count nor order."""
    log = open_log(MemoryDisk(), clock)
    for number in range(10):
        publish(log, [b"%d" % number], clock)

    readings = [read_all(log) for _ in range(3)]

    assert readings[0] == readings[1] == readings[2]
    assert [b"%d" % number for number in range(10)] == list(readings[0].values())
    assert 10 == log.end_ordinal


@pytest.mark.behaviour("diskqueue.TestDiskQueueEmpty")
def test_the_log_is_emptied_twice_and_reused(clock: ManualClock) -> None:
    """Emptying the log deletes all files, also while it is read, and works twice in a row.

    A message written afterwards is kept.
    """
    disk = MemoryDisk()
    log = open_log(disk, clock, max_bytes_per_file=DATA_START + 10 * BATCH)
    for kept in range(2):
        for _ in range(25):
            publish(log, [BODY], clock)
        assert 25 + kept == len(read_all(log))
        assert log.end_file()
        first = publish(log, [b"next"], clock)
        for _ in range(2):
            for segment in [s for s in log.segments() if s.sealed]:
                task = log.drop(segment)
                task.run()
                assert task.error is None
        assert {first: b"next"} == read_all(log)
        assert 1 == len([path for path in disk.paths() if path.endswith(".log")])
        assert log.end_file()


@pytest.mark.behaviour("diskqueue.TestDiskQueueSyncAfterRead")
def test_a_commit_is_synced_after_the_timeout(clock: ManualClock) -> None:
    """An unsynced commit is due for a sync after the timeout; then it survives a power cut."""
    disk = MemoryDisk()
    log = open_log(disk, clock, sync_every=1_000, sync_timeout_ns=50_000_000)
    publish(log, [BODY], clock)
    read_all(log)
    assert not log.sync_due(clock.now())
    clock.advance(50_000_000)
    assert log.sync_due(clock.now())
    sync = log.sync_task()
    assert sync is not None
    sync.run()
    log.finish(sync)

    for seed in range(20):
        assert [BODY] == list(read_all(open_log(disk.crash(seed), clock)).values())


@pytest.mark.behaviour("diskqueue.TestDiskQueueTorture")
def test_four_threads_use_one_log(tmp_path: Path, clock: ManualClock) -> None:
    """Four threads commit to one log in turn; after a reopening four threads read exactly that."""
    log = open_log(RealDisk(), clock, str(tmp_path), max_bytes_per_file=20_000)
    turn = threading.Lock()

    def write(writer: int) -> None:
        for number in range(150):
            with turn:
                assert commit(log, [b"%d-%d" % (writer, number)], clock, sync=False).error is None

    _run_in_four_threads(write)
    log.close()
    again = open_log(RealDisk(), clock, str(tmp_path))
    counts: list[Counter[bytes]] = []
    starts = [segment.first_index for segment in again.segments()]
    reads = [again.load(start) for start in starts for _ in range(4)]

    def read(reader: int) -> None:
        for task in reads[reader::4]:
            task.run()
        with turn:
            for task in reads[reader::4]:
                again.store(task)
            counts.append(Counter(read_all(again).values()))

    _run_in_four_threads(read)

    expected = Counter(b"%d-%d" % (w, n) for w in range(4) for n in range(150))
    assert [expected] * 4 == counts


def _run_in_four_threads(work: object) -> None:
    """Run it in four threads, each with a number."""
    assert callable(work)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.behaviour("diskqueue.TestDiskQueueResize")
@pytest.mark.parametrize("limits", [(10, 3), (3, 10)], ids=["smaller", "larger"])
def test_a_log_opens_with_another_file_size_limit(
    clock: ManualClock, limits: tuple[int, int]
) -> None:
    """A log opened with another file size limit has all its messages, and accepts more."""
    disk = MemoryDisk()
    written = 0
    for limit in limits:
        log = open_log(disk, clock, DIRECTORY, max_bytes_per_file=DATA_START + limit * BATCH)
        assert written == len(read_all(log))
        for _ in range(25):
            publish(log, [BODY], clock)
        written += 25
        assert max(limits) >= max(segment.messages for segment in log.segments())
        log.close()
        clock.advance(1_000_000_000)

    assert 50 == len(read_all(open_log(disk, clock)))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()
