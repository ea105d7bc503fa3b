"""The partitions of a batch: of equal size, and the same each time the batch is run."""

import os
import threading

from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.spark.range_server import at
from tests.spark.reading import rows_of

ALL = ReadAllAvailable()


def test_a_range_is_cut_into_equal_parts(servers, readers):
    """minPartitions and maxRecordsPerPartition split a range into equal parts with all its rows."""
    start, end = at(servers[1], 0), at(servers[1], 6)
    for options, count in (
        ({"minPartitions": "3"}, 3),
        ({"maxRecordsPerPartition": "4"}, 2),
        ({"minPartitions": "99"}, 6),
        ({}, 1),
    ):
        reader = readers(servers[1], **options)
        cut = [partition.value for partition in reader.partitions(start, end)]

        assert count == len(cut)
        assert [6 // count] * count == [part.messages for part in cut]
        assert 6 == len(rows_of(reader, start, end))


def bounds(partitions) -> list[tuple[int, int, int]]:
    """First index, end and number of messages of each partition."""
    return [(part.value.first, part.value.end, part.value.messages) for part in partitions]


def test_a_repeated_batch_has_the_same_partitions(servers, readers, monkeypatch):
    """A batch that is run again has the same partitions.

    The options and the number of cores may differ, and an nsqd may be away for a while.
    """
    first, second = servers
    planned = readers(minPartitions="4")
    start = planned.initialOffset()
    end = planned.latestOffset(start, ALL)
    expected = bounds(planned.partitions(start, end))
    assert [2, 2, 3, 3] == [messages for _, _, messages in expected]

    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert expected == bounds(readers(minPartitions="10").partitions(start, end))
    assert expected == bounds(readers(maxRecordsPerPartition="1").partitions(start, end))

    replayed = readers()
    first.hang_up_after["ReadEnds"] = 3
    second.stop()
    threading.Timer(0.2, second.start).start()
    assert expected == bounds(replayed.partitions(start, end))


def test_a_loss_does_not_change_the_other_partitions(servers, readers):
    """A loss shortens or empties partitions; their number and the others do not change."""
    _, second = servers
    planned = readers(minPartitions="10")
    start = planned.initialOffset()
    end = planned.latestOffset(start, ALL)
    expected = bounds(planned.partitions(start, end))
    second.first = 3
    replayed = readers(failOnDataLoss="false")

    assert 10 == len(expected)
    found = bounds(replayed.partitions(start, end))
    assert expected[:4] == found[:4]
    assert [(3, 3, 0)] * 3 + expected[7:] == found[4:]

    second.stop()
    second.log = "ef" * 16
    second.start()
    found = bounds(readers(failOnDataLoss="false").partitions(start, end))
    assert expected[:4] + [(6, 6, 0)] * 6 == found


def test_a_planned_range_waits_for_its_nsqd(servers, readers):
    """A range is read although its nsqd restarts, if it is back within nsqdTimeoutMs."""
    reader = readers(servers[1])
    servers[1].stop()
    threading.Timer(0.2, servers[1].start).start()

    assert 6 == len(rows_of(reader, at(servers[1], 0), at(servers[1], 6)))
