"""Looking at a log that is larger than memory: parts, single messages, and when they were sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparq.inspection import search as searching
from sparq.inspection import times
from sparq.inspection.search import Criteria, Search
from sparq.log import looking as log_looking
from sparq.log.looking import Errand, Glance, Looking, wanted_parts
from tests.broker.house import SECOND_NS, House

EVERYTHING = 1 << 54


def house_with(count: int, body_size: int, *, every: float, **options: Any) -> House:
    """Messages of one size at even distances in time, which the cache does not hold."""
    house = House(**{"cache_bytes": 1, "max_bytes_per_file": 400_000, **options})
    house.broker.create_topic("t", house.clock.now())
    for number in range(count):
        house.publish("t", b"%06d" % number + b"." * (body_size - 6))
        house.advance(every)
    return house


def looking_of(house: House) -> Looking:
    return house.broker.topics["t"].stream.log.looking


def counts(house: House, columns: int) -> list[int]:
    """Messages by column."""
    work = times.columns_of(looking_of(house), columns)
    assert work is not None
    work.run()
    return work.counts.tolist()


@pytest.fixture(scope="module")
def house() -> House:
    """200 messages of 6 KB, one a second, in several files of several extents."""
    return house_with(200, 6000, every=1.0)


def test_parts_cover_the_log(house: House) -> None:
    """In order, without a gap; neighbours of a file are one part, up to what is read at once."""
    looking = looking_of(house)
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
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any order; the bytes that are read, and those that are kept, are bounded."""
    looking = looking_of(house)
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


def test_each_message_has_its_column(house: House) -> None:
    """Where an extent spans several columns it is looked into."""
    assert counts(house, 200) == [1] * 200
    assert counts(house, 4) == [50] * 4
    work = times.columns_of(looking_of(house), 4)
    assert work is not None
    work.run()
    indexes = looking_of(house).stored_from(0, EVERYTHING, 1000)
    assert work.indexes.tolist() == indexes[::50]
    assert (work.edges[-1] - work.edges[0]) // SECOND_NS in (199, 200)


def test_beyond_what_is_read_messages_are_spread(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is missing or counted twice; of very many files only begin and end are known."""
    monkeypatch.setattr(times, "READ_BYTES_MAX", 0)
    spread = counts(house, 40)
    assert sum(spread) == 200
    assert max(spread) <= 12
    monkeypatch.setattr(log_looking, "SEGMENTS_MAX", 1)
    assert sum(counts(house, 40)) == 200
    assert sum(counts(house, 1)) == 200
    monkeypatch.undo()
    monkeypatch.setattr(times, "PARTS_MAX", 1)
    assert sum(counts(house, 40)) == 200


def test_times_without_messages_have_empty_columns() -> None:
    """A pause shows as one; its columns' index is that of what came after it."""
    house = house_with(3, 6, every=1.0, cache_bytes=1 << 20)
    house.advance(97)
    house.publish("t", b"late")
    work = times.columns_of(looking_of(house), 10)
    assert work is not None
    work.run()
    assert work.counts.tolist() == [3, *[0] * 8, 1]
    indexes = looking_of(house).stored_from(0, EVERYTHING, 9)
    assert work.indexes.tolist() == [indexes[0], *[indexes[3]] * 9]
    house.broker.create_topic("empty", house.clock.now())
    assert times.columns_of(house.broker.topics["empty"].stream.log.looking, 9) is None


@pytest.mark.parametrize("gives_up", [1, 3, 1000])
def test_a_search_reads_only_what_may_match(house: House, gives_up: int) -> None:
    """By text: a part without a hit is not taken apart. Stopped anywhere, it goes on there."""
    looking = looking_of(house)
    asked = 0

    def going() -> bool:
        nonlocal asked
        asked += 1
        return asked % gives_up != 0

    for text, expected in (
        (b"000123", [123]),
        (b"00001", [1, *range(10, 20)]),
        (b"9.", range(9, 200, 10)),
    ):
        search = Search(looking, Criteria(text=text), 0, EVERYTHING, limit=1000, body_bytes=6)
        while not search.is_over and (step := search.next_step(going)) is not None:
            step.run()
        assert [stored.body for stored in search.found] == [b"%06d" % at for at in expected]
        assert (search.scanned, search.unsearched) == (200, 0)


def test_an_answer_of_a_search_is_bounded_in_bytes(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is full before its limit."""
    monkeypatch.setattr(searching, "FOUND_BYTES_MAX", 10)
    search = Search(looking_of(house), Criteria(), 0, EVERYTHING, body_bytes=6)
    step = search.next_step(lambda: True)
    assert step is not None
    step.run()
    assert (search.is_full, len(search.found)) == (True, 2)


def test_an_errand_computes_something() -> None:
    """Whatever it is told to."""
    told: list[int] = []
    Errand(lambda: told.append(1)).run()
    assert told == [1]
    assert np.array(told).sum() == 1
