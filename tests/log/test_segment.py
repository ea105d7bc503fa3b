"""One segment of a log: its header, its name, and when the next one begins."""

import errno
from itertools import pairwise

import pytest

from sparq.log.commit import CommitState
from sparq.log.log import Log
from sparq.log.segment import (
    CEILING_SPAN,
    DATA_START,
    first_index_of,
)
from sparq.protocol.batch import BatchError
from sparq.protocol.frames import BodySlices
from sparq.testing import Fault, ManualClock, MemoryDisk
from tests.log.log_operations import commit, open_log, publish, read_all


def test_a_segment_ends_at_its_size_limit_or_ceiling(disk: MemoryDisk, clock: ManualClock) -> None:
    """A segment ends at its size limit or ceiling; a batch above the limit gets its own segment."""
    log = open_log(disk, clock, max_bytes_per_file=DATA_START + 1_000)
    for _ in range(8):
        publish(log, [b"x" * 300], clock)
    publish(log, [b"y" * 5_000], clock)
    sizes = [segment.size_bytes for segment in log.segments()]
    assert sizes[:4] == [DATA_START + 2 * 424] * 4
    assert sizes[4] > DATA_START + 5_000
    assert log.size_bytes == sum(sizes)
    assert all(a.end_index == b.first_index for a, b in pairwise(log.segments()))

    log.end_index = log.files[-1].header.ceiling - 1
    publish(log, [b"1", b"2"], clock)
    assert log.segments()[-1].messages == 2
    log._now_ns = 0
    with pytest.raises(BatchError, match="too large"):
        log.begin(
            [BodySlices(b"", [0] * (CEILING_SPAN + 1), [0] * (CEILING_SPAN + 1))], clock.now()
        )


@pytest.mark.parametrize("is_unsynced", [False, True])
def test_a_message_after_many_refused_ones_is_below_the_ceiling(
    is_unsynced: bool, disk: MemoryDisk, clock: ManualClock
) -> None:
    """A new file begins at the first refused index, or at the first unsynced message.

    Publishes that a full or failing disk refused have used up millions of indexes since. An
    acknowledged message is read all the same after a restart.
    """
    log = open_log(disk, clock, sync_every=1_000)
    expected = []
    if is_unsynced:
        publish(log, [b"unsynced"], clock)
        expected.append(b"unsynced")
    disk.fail(Fault(1, errno.EIO, frozenset({"sync", "create"}), times=99))
    assert commit(log, [b"refused"], clock, sync=True).error is not None
    log.end_index += CEILING_SPAN
    disk.fault = None

    assert commit(log, [b"acknowledged"], clock, sync=True).error is None
    expected.append(b"acknowledged")
    log.close()
    clock.advance(10**9)
    log = open_log(disk, clock)

    assert expected == list(read_all(log).values())
    assert [] == log.damage


def test_a_new_file_that_fails_and_can_be_deleted_is_a_plain_refusal(
    disk: MemoryDisk, clock: ManualClock, log: Log
) -> None:
    """Nothing is left behind, so the file before it may go on."""
    disk.fail(Fault(1, errno.EIO, frozenset({"syncdir"})))
    refused = commit(log, [b"refused"], clock)

    assert (CommitState.REFUSED, [], []) == (refused.state, refused.notes, disk.paths())


@pytest.mark.parametrize(
    "name", ["", "0123456789abcdef", "123.log", "0123456789abcdeg.log", "0123456789abcdef.next"]
)
def test_invalid_names_are_not_segments(name: str) -> None:
    """A name with a wrong suffix or wrong digits is not a segment's."""
    assert first_index_of(name) is None
