"""Inspecting a log larger than memory: its parts, and single messages."""

from __future__ import annotations

import pytest

from sparq.log import inspection as log_inspection
from sparq.log.block import BlockCache
from sparq.log.inspection import LogInspection, SingleMessageRead, wanted_parts
from sparq.testing import ManualClock, MemoryDisk
from tests.log.log_operations import open_log, publish

EVERYTHING = 1 << 54


@pytest.fixture(scope="module")
def inspection() -> LogInspection:
    """200 uncached messages of 6 KB, in several segments of several extents."""
    clock = ManualClock()
    log = open_log(MemoryDisk(), clock, max_bytes_per_file=400_000, cache=BlockCache(1))
    for number in range(200):
        publish(log, [b"%06d" % number + b"." * 5994], clock)
        clock.advance(1_000_000_000)
    return log.inspection


def test_parts_cover_the_log(inspection: LogInspection) -> None:
    """Parts cover the log in order and without gaps.

    Adjacent extents of a segment form one part, up to the size of one read.
    """
    indexes = inspection.stored_from(0, EVERYTHING, 1000)
    parts = inspection.parts(0, EVERYTHING, 1000)

    assert len(indexes) == 200
    assert indexes == [index for part in parts for index in range(part.first, part.end)]
    assert 1 < len(parts) < 12
    assert len(inspection.parts(indexes[7], indexes[9], 1000)) == 1
    assert len(inspection.parts(0, EVERYTHING, 2)) == 2
    assert inspection.stored_from(indexes[5], indexes[9], 3) == indexes[5:8]
    assert inspection.part(indexes[-1] + 1) is None


def test_single_messages_are_read_up_to_a_limit_of_bytes(
    inspection: LogInspection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Single messages are read in any order.

    The bytes read and the bytes kept are limited.
    """
    indexes = inspection.stored_from(0, EVERYTHING, 1000)
    chosen = [indexes[at] for at in (150, 3, 151, 77, 4)]
    wanted, covered = wanted_parts(inspection, [*chosen, 5], 1 << 30)
    read = SingleMessageRead(inspection.disk, wanted, 6)
    read.run()
    assert covered == 6
    found = {index: stored.body for index, stored in read.found.items()}
    assert found == {indexes[at]: b"%06d" % at for at in (150, 3, 151, 77, 4)}
    assert {stored.size for stored in read.found.values()} == {6000}
    assert wanted_parts(inspection, chosen, 1)[1] == 1

    monkeypatch.setattr(log_inspection, "SINGLES_BYTES_MAX", 10)
    read = SingleMessageRead(inspection.disk, wanted, 6)
    read.run()
    assert len(read.found) == 2
    assert read.left == set(chosen) - set(read.found)
