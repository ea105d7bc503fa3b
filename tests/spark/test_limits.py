"""How much one micro-batch takes: by messages, by bytes, and how long it waits for them.

The arithmetic is in test_admission.py; here it meets logs.
"""

import threading
import time

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from sparq.client.range_reader import NoRangesError
from sparq.spark import source
from sparq.spark.offsets import Key
from tests.spark.range_server import key
from tests.spark.reading import indexes, rows_of

ALL = ReadAllAvailable()


@pytest.fixture(autouse=True)
def no_long_pauses(monkeypatch):
    """An idle query asks again at once."""
    monkeypatch.setattr(source, "NEWS_WAIT_SECONDS", 0.05)


def drain(reader, limit=None) -> list[int]:
    """Reads to the end; how many rows each batch had."""
    limit = limit or reader.getDefaultReadLimit()
    start, counts = reader.initialOffset(), []
    while (end := reader.latestOffset(start, limit)) != start:
        counts.append(len(rows_of(reader, start, end)))
        start = end
    return counts


def bytes_between(servers, start, end) -> int:
    """What the stored batches between two offsets take."""
    return sum(
        server.size_of(position)
        for server in servers
        for position, (at, _) in enumerate(server.batches)
        if start[key(server)]["index"] <= at < end[key(server)]["index"]
    )


def test_bytes_bound_a_batch(servers, readers):
    """maxBytesPerTrigger: whole stretches of the logs, in proportion, one of each log at least."""
    first = servers[0]
    for number in range(6):
        first.add([bytes([number]) * 500])
    limit = 2 * first.size_of(2)
    reader = readers(maxBytesPerTrigger=str(limit))
    start, rows = reader.initialOffset(), 0
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        assert 0 < bytes_between(servers, start, end) <= limit
        rows += len(rows_of(reader, start, end))
        start = end
    assert 16 == rows

    for given, counts in (
        ({"maxBytesPerTrigger": str(limit)}, [5, 2, 2, 1]),
        ({"maxBytesPerTrigger": "1"}, [2, 2, 1, 1, 1, 1, 1, 1]),
        ({"maxBytesPerTrigger": "1", "maxOffsetsPerTrigger": "1"}, [1] * 10),
        ({"maxBytesPerTrigger": "1m"}, [10]),
    ):
        assert counts == drain(readers(first, **given))
    assert [10] == drain(readers(first, maxBytesPerTrigger="1"), ALL)  # the trigger once


def test_an_older_nsqd_cannot_bound_bytes(servers, readers):
    """It is named: the bound must not silently be none."""
    servers[1].ranges = 1
    reader = readers(servers[1], maxBytesPerTrigger="1k")

    with pytest.raises(NoRangesError, match=f"nsqd {servers[1].address} is too old to report"):
        reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())


def test_a_batch_waits_for_enough_messages(servers, readers, monkeypatch):
    """minOffsetsPerTrigger: the first batch goes at once, the next waits for messages or time."""
    server = servers[1]
    reader = readers(server, minOffsetsPerTrigger="4", maxTriggerDelay="1h")
    limit = reader.getDefaultReadLimit()
    start = reader.initialOffset()
    start, begun = reader.latestOffset(start, limit), start
    assert 6 == len(rows_of(reader, begun, start))

    server.add([b"2a", b"2b", b"2c"])
    assert start == reader.latestOffset(start, limit)
    monkeypatch.setattr(source, "NEWS_WAIT_SECONDS", 30)
    threading.Timer(0.1, server.add, [[b"2d"]]).start()
    end = reader.latestOffset(start, limit)
    assert 4 == len(rows_of(reader, start, end))


def test_a_batch_waits_only_so_long(servers, readers, monkeypatch):
    """maxTriggerDelay: what is there by then is read, however little it is."""
    monkeypatch.setattr(source, "NEWS_WAIT_SECONDS", 30)
    server = servers[1]
    reader = readers(server, minOffsetsPerTrigger="4", maxTriggerDelay="300ms")
    limit = reader.getDefaultReadLimit()
    start = reader.latestOffset(reader.initialOffset(), limit)
    begun = time.monotonic()
    server.add([b"2a"])
    end = reader.latestOffset(start, limit)

    assert 1 == len(rows_of(reader, start, end))
    assert 0.2 < time.monotonic() - begun < 20


def test_a_drained_run_waits_for_no_minimum(servers, readers):
    """availableNow reads what is there and ends: nothing more would come."""
    reader = readers(minOffsetsPerTrigger="100", maxOffsetsPerTrigger="100")
    reader.prepareForTriggerAvailableNow()

    assert [10] == drain(reader)


def test_a_log_joins_while_a_batch_is_held_back(servers, readers):
    """A new nsqd enters the offset at once: only its messages wait."""
    first, second = servers
    reader = readers(first, minOffsetsPerTrigger="99")
    limit = reader.getDefaultReadLimit()
    start = reader.latestOffset(reader.initialOffset(), limit)
    reader._fleet.remember([Key(second.address, "")])
    joined = reader.latestOffset(start, limit)

    assert indexes(start) | {key(second): 0} == indexes(joined)
    assert joined == reader.latestOffset(joined, limit)
