"""The assertions of go-diskqueue's tests, made about sparq's log, which replaces the disk queue."""

import pytest

from sparq.log.segment import DATA_START
from sparq.protocol.batch import batch_size
from sparq.protocol.layout import FRAME_OVERHEAD
from sparq.testing import ManualClock, MemoryDisk
from tests.log.log_operations import DIRECTORY, open_log, publish, read_all

BODY = b"0123456789"
BATCH = batch_size(1, FRAME_OVERHEAD + len(BODY), 0)


@pytest.mark.behaviour("diskqueue.TestDiskQueueResize")
@pytest.mark.parametrize("limits", [(10, 3), (3, 10)], ids=["smaller", "larger"])
def test_a_log_opens_with_another_file_size_limit(limits: tuple[int, int]) -> None:
    """A log opened with another file size limit has all its messages, and accepts more."""
    clock, disk, written = ManualClock(), MemoryDisk(), 0
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
