"""Inspecting a log larger than memory: its parts, and single messages."""

from __future__ import annotations

import numpy as np
import pytest

from sparq.log import looking as log_looking
from sparq.log.block import BlockCache
from sparq.log.log import Log, LogOptions
from sparq.log.looking import Errand, Glance, Looking, wanted_parts
from sparq.testing import ManualClock, MemoryDisk
from tests.log.conversations import DIRECTORY, NODE, publish

EVERYTHING = 1 << 54


@pytest.fixture(scope="module")
def looking() -> Looking:
    """200 uncached messages of 6 KB, in several segments of several extents."""
    clock = ManualClock()
    log = Log.open(
        MemoryDisk(),
        DIRECTORY,
        node_id=NODE,
        options=LogOptions(max_bytes_per_file=400_000),
        now=clock.now(),
        cache=BlockCache(1),
    )
    for number in range(200):
        publish(log, [b"%06d" % number + b"." * 5994], clock)
        clock.advance(1_000_000_000)
    return log.looking


def test_parts_cover_the_log(looking: Looking) -> None:
    """Parts cover the log in order and without gaps.

    Adjacent extents of a segment form one part, up to the size of one read.
    """
    indexes = looking.stored_from(0, EVERYTHING, 1000)
    parts = looking.parts(0, EVERYTHING, 1000)

    assert len(indexes) == 200
    assert indexes == [index for part in parts for index in range(part.first, part.end)]
    assert 1 < len(parts) < 12
    assert len(looking.parts(indexes[7], indexes[9], 1000)) == 1
    assert len(looking.parts(0, EVERYTHING, 2)) == 2
    assert looking.stored_from(indexes[5], indexes[9], 3) == indexes[5:8]
    assert looking.part(indexes[-1] + 1) is None


def test_single_messages_are_read_until_there_are_enough(
    looking: Looking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Single messages are read in any order.

    The bytes read and the bytes kept are limited.
    """
    indexes = looking.stored_from(0, EVERYTHING, 1000)
    chosen = [indexes[at] for at in (150, 3, 151, 77, 4)]
    wanted, covered = wanted_parts(looking, [*chosen, 5], 1 << 30)
    glance = Glance(looking.disk, wanted, 6)
    glance.run()
    assert covered == 6
    found = {index: stored.body for index, stored in glance.found.items()}
    assert found == {indexes[at]: b"%06d" % at for at in (150, 3, 151, 77, 4)}
    assert {stored.size for stored in glance.found.values()} == {6000}
    assert wanted_parts(looking, chosen, 1)[1] == 1

    monkeypatch.setattr(log_looking, "GLANCE_BYTES_MAX", 10)
    glance = Glance(looking.disk, wanted, 6)
    glance.run()
    assert len(glance.found) == 2
    assert glance.left == set(chosen) - set(glance.found)


def test_an_errand_computes_something() -> None:
    """An Errand calls its function."""
    told: list[int] = []
    Errand(lambda: told.append(1)).run()
    assert told == [1]
    assert np.array(told).sum() == 1
