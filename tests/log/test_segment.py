"""One file of a log: its header and its name, and when the next one begins."""

from itertools import pairwise

import pytest

from sparq.log.segment import CEILING_SPAN, DATA_START
from sparq.protocol.batch import BatchError
from sparq.protocol.frames import BodySlices
from sparq.testing import ManualClock, MemoryDisk
from tests.log.conversations import open_log, publish


def test_file_rolls_at_its_size_and_at_its_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file ends before it is too large, and before an index that it has not reserved."""
    disk, clock = MemoryDisk(), ManualClock()
    log = open_log(disk, clock, max_bytes_per_file=DATA_START + 1_000)
    for _ in range(8):
        publish(log, [b"x" * 300], clock)
    publish(log, [b"y" * 5_000], clock)
    sizes = [segment.size_bytes for segment in log.segments()]
    assert sizes[:4] == [DATA_START + 2 * 424] * 4
    assert sizes[4] > DATA_START + 5_000
    assert log.size_bytes == sum(sizes)
    assert all(a.end_index == b.first_index for a, b in pairwise(log.segments()))

    log.end_index = log._index.segments[-1].header.ceiling - 1
    publish(log, [b"1", b"2"], clock)
    assert log.segments()[-1].messages == 2
    log._now_ns = 0
    with pytest.raises(BatchError, match="too large"):
        log.begin(
            [BodySlices(b"", [0] * (CEILING_SPAN + 1), [0] * (CEILING_SPAN + 1))], clock.now()
        )
