"""What stands behind the last batch of a file, so that a sync has no new length to write."""

import errno

from sparq.log.disk import PAGE_BYTES
from sparq.testing import Fault, ManualClock, MemoryDisk
from tests.log.conversations import commit, open_log, publish, read_all


def test_filling_behind_a_small_batch() -> None:
    """The file is as long as its page, whatever the next batches of it; its end is cut off."""
    disk, clock = MemoryDisk(), ManualClock()
    log = open_log(disk, clock)
    messages = {publish(log, [b"a"], clock): b"a"}
    (path,) = disk.paths()

    assert len(disk.data(path)) == 2 * PAGE_BYTES
    assert disk.data(path).endswith(b"(unused)")
    for at in range(20):
        body = b"%d" % at
        messages[publish(log, [body], clock)] = body
        assert len(disk.data(path)) == 2 * PAGE_BYTES
    for dead in (disk.killed(), *map(disk.crash, range(4))):
        again = open_log(dead, clock)
        assert (again.torn_bytes, again.damage, read_all(again)) == (0, [], messages)

    messages[publish(log, [bytes(2 * PAGE_BYTES)], clock)] = bytes(2 * PAGE_BYTES)
    size = log.segments()[0].size_bytes
    assert len(disk.data(path)) == size
    messages[publish(log, [b"b"], clock)] = b"b"
    assert len(disk.data(path)) % PAGE_BYTES == 0
    log.close()
    assert len(disk.data(path)) == log.segments()[0].size_bytes > size
    assert read_all(open_log(disk, clock)) == messages


def test_filling_goes_with_a_refused_batch_and_with_the_file() -> None:
    """A failed write cuts it off, the next one has it again; a file that is full has none."""
    disk, clock = MemoryDisk(), ManualClock()
    log = open_log(disk, clock, max_bytes_per_file=6000)
    first = publish(log, [b"a"], clock)
    (path,) = disk.paths()
    disk.fail(Fault(1, errno.ENOSPC, frozenset({"write"}), part=0.5))
    assert commit(log, [b"refused"], clock).error is not None

    assert len(disk.data(path)) == log.segments()[0].size_bytes
    second = publish(log, [b"b"], clock)
    assert len(disk.data(path)) == 2 * PAGE_BYTES
    third = publish(log, [bytes(1500)], clock)
    assert [len(disk.data(info.path)) for info in log.segments()] == [
        log.segments()[0].size_bytes,
        2 * PAGE_BYTES,
    ]
    assert read_all(log) == {first: b"a", second: b"b", third: bytes(1500)}
