"""The publish times of a log's messages, counted per time column."""

from __future__ import annotations

import pytest

from sparq.inspection import times
from sparq.log import looking as log_looking
from tests.broker.house import SECOND_NS, House
from tests.inspection.stored import house_with, looking_of

EVERYTHING = 1 << 54


def counts(house: House, columns: int) -> list[int]:
    """The number of messages per column."""
    work = times.columns_of(looking_of(house), columns)
    assert work is not None
    work.run()
    return work.counts.tolist()


def test_each_message_has_its_column(house: House) -> None:
    """Each message counts in its column, even if an extent spans several columns."""
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
    """Above the read limits, an extent's messages are spread over its time span.

    None is missing or counted twice. With too many segments only each one's first and last time is
    used.
    """
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
    """A column without messages has count 0 and the index of the next message."""
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
