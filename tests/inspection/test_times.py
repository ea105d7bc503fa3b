"""The publish times of a log's messages, counted per time column."""

from __future__ import annotations

import pytest

from sparq.inspection import times
from sparq.log import inspection as log_inspection
from sparq.options.units import SECOND
from tests.broker.harness import BrokerHarness
from tests.inspection.stored import harness_with_messages, inspection_of

EVERYTHING = 1 << 54


def counts(harness: BrokerHarness, columns: int) -> list[int]:
    """The number of messages per column."""
    task = times.columns_of(inspection_of(harness), columns)
    assert task is not None
    task.run()
    return task.counts.tolist()


def test_each_message_counts_in_its_column(harness: BrokerHarness) -> None:
    """Each message counts in its column, even if an extent spans several columns."""
    assert counts(harness, 200) == [1] * 200
    assert counts(harness, 4) == [50] * 4
    task = times.columns_of(inspection_of(harness), 4)
    assert task is not None
    task.run()
    indexes = inspection_of(harness).stored_from(0, EVERYTHING, 1000)
    assert task.indexes.tolist() == indexes[::50]
    assert (task.edges[-1] - task.edges[0]) // SECOND in (199, 200)


def test_above_the_read_limits_messages_are_spread_over_the_time_span(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the read limits, an extent's messages are spread over its time span.

    None is missing or counted twice. With too many segments only each one's first and last time is
    used.
    """
    monkeypatch.setattr(times, "READ_BYTES_MAX", 0)
    spread = counts(harness, 40)
    assert sum(spread) == 200
    assert max(spread) <= 12
    monkeypatch.setattr(log_inspection, "SEGMENTS_MAX", 1)
    assert sum(counts(harness, 40)) == 200
    assert sum(counts(harness, 1)) == 200
    monkeypatch.undo()
    monkeypatch.setattr(times, "PARTS_MAX", 1)
    assert sum(counts(harness, 40)) == 200


def test_times_without_messages_have_empty_columns() -> None:
    """A column without messages has count 0 and the index of the next message."""
    harness = harness_with_messages(3, 6, every=1.0, cache_bytes=1 << 20)
    harness.advance(97)
    harness.publish("t", b"late")
    task = times.columns_of(inspection_of(harness), 10)
    assert task is not None
    task.run()
    assert task.counts.tolist() == [3, *[0] * 8, 1]
    indexes = inspection_of(harness).stored_from(0, EVERYTHING, 9)
    assert task.indexes.tolist() == [indexes[0], *[indexes[3]] * 9]
    harness.broker.create_topic("empty", harness.clock.now())
    assert times.columns_of(harness.broker.topics["empty"].stream.log.inspection, 9) is None
