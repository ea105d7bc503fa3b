"""The source's side in the driver: what it answers to the calls that Spark makes, in their order.

No Spark session runs here; `tests/scenarios/spark/test_session.py` has one.
"""

import threading
import time

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from sparq.client.range_reader import NoRangesError
from sparq.protocol import commands
from sparq.spark import source
from sparq.spark.errors import UnreachableError
from sparq.spark.offsets import Key
from sparq.spark.source_options import NO_LIMIT
from tests.spark.range_server import key
from tests.spark.reading import indexes, rows_of

ALL = ReadAllAvailable()


pytestmark = pytest.mark.usefixtures("no_long_pauses")


def test_a_batch_goes_to_the_end(servers, readers):
    """Without a limit a batch takes all there is, and its rows are exactly these."""
    reader = readers()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)

    assert {key(servers[0]): 204, key(servers[1]): 6} == indexes(end)
    assert {name: end[name] for name in indexes(end)} == reader.reportLatestOffset()
    assert sorted(
        [(servers[0].address, body) for body in (b"0a", b"0b", b"1a", b"1b")]
        + [(servers[1].address, body) for body in (b"0a", b"0b", b"0c", b"1a", b"1b", b"1c")]
    ) == sorted(rows_of(reader, start, end))


def test_a_limit_is_shared_out_and_all_is_read_in_the_end(servers, readers):
    """maxOffsetsPerTrigger holds for each batch; batch after batch gives every row once."""
    reader = readers(maxOffsetsPerTrigger="3")
    limit = reader.getDefaultReadLimit()
    assert ReadMaxRows(3) == limit
    start, counts, found = reader.initialOffset(), [], []
    while (end := reader.latestOffset(start, limit)) != start:
        rows = rows_of(reader, start, end)
        counts.append(len(rows))
        found += rows
        start = end

    assert [3, 3, 3, 1] == counts
    assert 10 == len(set(found))
    for options in ({"minOffsetsPerTrigger": "3"}, {"maxBytesPerTrigger": "3"}):
        assert ReadMaxRows(NO_LIMIT) == readers(**options).getDefaultReadLimit()
    assert ALL == readers().getDefaultReadLimit()


def test_an_idle_query_waits_for_news(servers, readers, monkeypatch):
    """Without news the answer is the start, after a while; with news it comes at once."""
    reader = readers(servers[1])
    start = reader.latestOffset(reader.initialOffset(), ALL)
    begun = time.monotonic()

    assert start == reader.latestOffset(start, ALL)
    assert time.monotonic() - begun >= 0.05

    monkeypatch.setattr(source, "NEWS_WAIT_SECONDS", 30)
    threading.Timer(0.1, servers[1].add, [[b"new"]]).start()

    assert {key(servers[1]): 7} == indexes(reader.latestOffset(start, ALL))


def test_the_cursor_follows_what_spark_has_committed(servers, readers):
    """nsqd hears of progress with the next latestOffset already, and only of progress."""
    reader = readers(servers[1])
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(2))
    assert 0 == servers[1].committed

    reader.latestOffset(end, ReadMaxRows(2))
    reader.latestOffset(end, ReadMaxRows(2))
    assert 2 == servers[1].committed
    reader.commit({key(servers[1]): 4})
    assert 4 == servers[1].committed

    heard = [heard.index for heard in servers[1].heard if isinstance(heard, commands.CommitRange)]
    assert [2, 4] == heard


def test_a_reader_that_asks_again_for_an_older_place_takes_the_cursor_back(servers, readers):
    """With startingOffsets=earliest nsqd keeps all that is now to be read, from the first call."""
    servers[1].committed = 5
    readers(servers[1]).initialOffset()

    assert 0 == servers[1].committed


def test_a_new_nsqd_joins_in_a_step_of_its_own(servers, readers, monkeypatch):
    """It enters the offset with its first index; the next batch reads it from there."""
    reader = readers(servers[0])
    start = reader.latestOffset(reader.initialOffset(), ALL)
    servers[1].committed = 6
    reader._fleet.remember([Key(servers[1].address, "")])
    joined = reader.latestOffset(start, ALL)

    assert indexes(start) | {key(servers[1]): 0} == indexes(joined)
    assert [] == reader.partitions(start, joined)
    assert 0 == servers[1].committed
    end = reader.latestOffset(joined, ALL)
    assert 6 == len(rows_of(reader, joined, end))


def test_a_checkpoint_is_enough_to_go_on(servers, readers):
    """After a crash Spark asks for partitions first: no initialOffset, no latestOffset."""
    start, end = {key(servers[1]): 2}, {key(servers[1]): 5}

    assert [b"0c", b"1a", b"1b"] == [body for _, body in rows_of(readers(), start, end)]


# A drained run


def test_a_drained_run_ends_where_the_logs_ended_at_its_start(servers, readers):
    """Trigger availableNow: what is published later is left for the next run."""
    reader = readers()
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    servers[0].add([b"late"])
    end = reader.latestOffset(start, ReadMaxRows(7))
    end = reader.latestOffset(end, ReadMaxRows(7))

    assert {key(servers[0]): 204, key(servers[1]): 6} == indexes(end)
    assert end == reader.latestOffset(end, ReadMaxRows(7))


def test_a_drained_run_waits_for_an_nsqd(servers, readers):
    """It must not end without what it was to read; and not wait for ever either."""
    reader = readers(nsqdTimeoutMs="2000")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    servers[1].stop()
    threading.Timer(0.2, servers[1].start).start()
    latest = reader.latestOffset(start, ALL)
    while indexes(latest)[key(servers[1])] < 6:
        latest = reader.latestOffset(latest, ALL)

    servers[1].stop()
    with pytest.raises(UnreachableError, match=servers[1].address):
        while True:
            reader.latestOffset(latest, ALL)


# How much one micro-batch takes: by messages, by bytes, and how long it waits for them. The
# arithmetic is in test_admission.py; here it meets logs.


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
    """maxBytesPerTrigger: whole extents of the logs, in proportion, one of each log at least."""
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
