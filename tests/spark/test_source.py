"""The readers as Spark calls them: streams, drained runs, limits, and batch reads."""

import json
import operator
import threading
import time
from datetime import UTC, datetime, timedelta

import hypothesis
import pytest
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from sparq.protocol import commands
from sparq.spark import source
from sparq.spark.offsets import Key
from sparq.spark.options import NO_LIMIT, OptionError, SourceOptions
from sparq.spark.ranges import SCHEMA
from sparq.spark.source import CLOCK_SET_BACK_NS, NsqBatchReader, NsqFilteredReader, TimeBounds
from tests.spark.range_server import RangeServer, at, key
from tests.spark.reading import bodies_of, drain, indexes, rows_of

ALL = ReadAllAvailable()


pytestmark = pytest.mark.usefixtures("no_long_pauses")


def test_without_a_limit_a_batch_reads_to_the_logs_ends(servers, readers):
    """Without a limit, a batch reads all messages up to the logs' ends."""
    reader = readers()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)

    assert {key(servers[0]): 204, key(servers[1]): 6} == indexes(end)
    assert {name: end[name] for name in indexes(end)} == reader.reportLatestOffset()
    assert sorted(
        [(servers[0].address, body) for body in (b"0a", b"0b", b"1a", b"1b")]
        + [(servers[1].address, body) for body in (b"0a", b"0b", b"0c", b"1a", b"1b", b"1c")]
    ) == sorted(rows_of(reader, start, end))


def test_a_limit_applies_to_every_batch_and_all_rows_are_read_once(servers, readers):
    """maxOffsetsPerTrigger limits every batch; together the batches return every row once."""
    reader = readers(maxOffsetsPerTrigger="3")
    batches = drain(reader)

    assert [3, 3, 3, 1] == [len(rows) for rows in batches]
    assert 10 == len({row for rows in batches for row in rows})
    assert ReadMaxRows(3) == reader.getDefaultReadLimit()
    for options in ({"minOffsetsPerTrigger": "3"}, {"maxBytesPerTrigger": "3"}):
        assert ReadMaxRows(NO_LIMIT) == readers(**options).getDefaultReadLimit()
    assert ALL == readers().getDefaultReadLimit()


def test_an_idle_query_waits_for_new_messages(servers, readers, monkeypatch):
    """latestOffset returns the start after NEWS_WAIT_SECONDS, or new messages as they arrive."""
    reader = readers(servers[1])
    start = reader.latestOffset(reader.initialOffset(), ALL)
    begun = time.monotonic()

    assert start == reader.latestOffset(start, ALL)
    assert time.monotonic() - begun >= 0.05

    monkeypatch.setattr(source, "NEWS_WAIT_SECONDS", 30)
    threading.Timer(0.1, servers[1].add, [[b"new"]]).start()

    assert {key(servers[1]): 7} == indexes(reader.latestOffset(start, ALL))


def test_the_cursor_follows_sparks_commits(servers, readers):
    """latestOffset moves the channel's cursor to its start offset, if that has changed.

    A start before the cursor moves it back, so that nsqd keeps the messages.
    """
    server = servers[1]
    server.committed = 5
    reader = readers(server)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(2))
    assert 0 == server.committed

    reader.latestOffset(end, ReadMaxRows(2))
    reader.latestOffset(end, ReadMaxRows(2))
    assert 2 == server.committed
    reader.commit(at(server, 4))
    assert 4 == server.committed
    heard = [heard.index for heard in server.heard if isinstance(heard, commands.CommitRange)]
    assert [0, 2, 4] == heard


@pytest.mark.parametrize("options", [{}, {"minOffsetsPerTrigger": "99"}])
def test_a_new_nsqd_is_added_in_its_own_batch(servers, readers, options):
    """A new nsqd's log is added to the offset at its first index; the next batch reads it.

    It is added immediately, also while a batch is held back.
    """
    reader = readers(servers[0], **options)
    limit = reader.getDefaultReadLimit()
    start = reader.latestOffset(reader.initialOffset(), limit)
    servers[1].committed = 6
    reader._fleet.remember([Key(servers[1].address, "")])
    joined = reader.latestOffset(start, limit)

    assert indexes(start) | {key(servers[1]): 0} == indexes(joined)
    assert ([], 0) == (reader.partitions(start, joined), servers[1].committed)
    read = rows_of(reader, joined, reader.latestOffset(joined, limit))
    assert (0 if options else 6) == len(read)


def test_the_first_batch_begins_again_where_it_began(servers, readers):
    """The first batch has the same rows when it runs again, although `latest` has moved on.

    Its beginning is in no earlier offset: Spark calls initialOffset again.
    """
    server = servers[1]
    reader = readers(server, startingOffsets="latest")
    start = reader.initialOffset()
    server.add([b"2a", b"2b"])
    end = reader.latestOffset(start, ALL)
    server.add([b"3a"])

    later = readers(server, startingOffsets="latest")
    again = json.loads(json.dumps(end))
    assert [b"2a", b"2b"] == bodies_of(later, later.initialOffset(), again)
    assert [b"3a"] == bodies_of(later, end, later.latestOffset(end, ALL))


# How much one micro-batch reads: messages, bytes, and how long it waits for them. test_batches.py
# tests the arithmetic; the tests here use it with logs.


def test_batches_grow_while_messages_are_left(servers, readers):
    """Batches begin with firstOffsetsPerTrigger, and grow fourfold up to maxOffsetsPerTrigger."""
    server = servers[1]
    server.add([b"more"] * 60)
    reader = readers(server, firstOffsetsPerTrigger="2", maxOffsetsPerTrigger="20")
    assert [2, 8, 20, 20, 16] == [len(rows) for rows in drain(reader)]

    start = at(server, server.end)
    server.add([b"late"] * 15)
    limit = reader.getDefaultReadLimit()
    assert 15 == len(rows_of(reader, start, reader.latestOffset(start, limit)))


@pytest.mark.parametrize(("delay", "messages"), [("1h", [b"2d"]), ("300ms", [])])
def test_a_batch_waits_for_the_minimum_of_messages(servers, readers, monkeypatch, delay, messages):
    """With minOffsetsPerTrigger, only the first batch starts without enough messages.

    The others wait for the minimum, or until maxTriggerDelay has passed.
    """
    server = servers[1]
    reader = readers(server, minOffsetsPerTrigger="4", maxTriggerDelay=delay)
    limit = reader.getDefaultReadLimit()
    start = reader.latestOffset(reader.initialOffset(), limit)
    assert {key(server): 6} == indexes(start)

    server.add([b"2a", b"2b", b"2c"])
    assert start == reader.latestOffset(start, limit)
    monkeypatch.setattr(source, "NEWS_WAIT_SECONDS", 30)
    begun = time.monotonic()
    if messages:
        threading.Timer(0.1, server.add, [messages]).start()
    end = reader.latestOffset(start, limit)
    assert 3 + len(messages) == len(rows_of(reader, start, end))
    assert time.monotonic() - begun < 20


def test_a_drained_run_ignores_the_minimum_of_messages(servers, readers):
    """A drained run (availableNow) ignores minOffsetsPerTrigger."""
    reader = readers(minOffsetsPerTrigger="100", maxOffsetsPerTrigger="100")
    reader.prepareForTriggerAvailableNow()

    assert [10] == [len(rows) for rows in drain(reader)]


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KINDS = {
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    EqualTo: operator.eq,
}


def batch_reader(*servers: RangeServer, **options: str) -> NsqBatchReader:
    given = {
        "topic": "clicks",
        "nsqd_tcp_addresses": ",".join(server.address for server in servers),
        "nsqdTimeoutMs": "10000",
    }
    return NsqFilteredReader(SourceOptions.of(given | options, stream=False), SCHEMA.names)


def batch_rows(reader: NsqBatchReader) -> list[bytes]:
    return [
        body
        for partition in reader.partitions()
        for rows in reader.read(partition)
        for body in rows.column("body").to_pylist()
    ]


def test_starting_and_ending_offsets_limit_a_batch_read(servers):
    """startingOffsets and endingOffsets limit the read; without them it returns all messages.

    It sends no ATTACH: it uses no channel.
    """
    begin, end = f'{{"{servers[1].address}": 1}}', f'{{"{key(servers[1])}": 4}}'

    assert [b"0b", b"0c", b"1a"] == batch_rows(
        batch_reader(servers[1], startingOffsets=begin, endingOffsets=end)
    )
    assert 10 == len(batch_rows(batch_reader(*servers)))
    assert not any(isinstance(heard, commands.Attach) for heard in servers[0].heard)


def test_ending_offsets_outside_the_log_are_refused(servers):
    """endingOffsets before the log or the start, or after the log's end, raises OptionError."""
    address = servers[0].address
    servers[0].first = 102
    for start, end, text in (
        (
            "earliest",
            (address, 50),
            "index 50 is before index 102, where the read of topic clicks ",
        ),
        (f'{{"{address}": 203}}', (address, 202), "index 202 is before index 203"),
        ("earliest", (address, 999), "index 999 is after index 204, the end of"),
        ("earliest", ("h:1", 5), "no log of topic clicks .* h:1"),
    ):
        ending = json.dumps(dict([end]))
        reader = batch_reader(servers[0], startingOffsets=start, endingOffsets=ending)
        with pytest.raises(OptionError, match=f"^option endingOffsets: {text}"):
            reader.partitions()


def test_predicates_on_the_timestamp_limit_ranges(servers):
    """Predicates on `timestamp` limit the ranges, with a margin of 1 h at the upper bound."""
    server = servers[1]
    at = datetime(2026, 1, 1, tzinfo=UTC)
    begin_ns = int(at.timestamp()) * 10**9
    end_ns = begin_ns + 1000 + CLOCK_SET_BACK_NS
    server.times |= {begin_ns: 2, end_ns: 5}
    predicates = [
        GreaterThanOrEqual(("timestamp",), at),
        LessThanOrEqual(("timestamp",), at),
        GreaterThan(("index",), 3),
    ]
    reader = batch_reader(server, pushDownPredicate="true")

    assert predicates == list(reader.pushFilters(predicates))
    assert [b"0c", b"1a", b"1b"] == batch_rows(reader)
    assert 6 == len(batch_rows(batch_reader(server, pushDownPredicate="true")))

    bounded = batch_reader(
        server,
        startingOffsets=f'{{"{server.address}": 3}}',
        endingOffsets=f'{{"{server.address}": 4}}',
        pushDownPredicate="true",
    )
    bounded.pushFilters(predicates)
    assert [b"1a"] == batch_rows(bounded)
    server.times |= {begin_ns: 5, end_ns: 2}
    reader.pushFilters(predicates)
    assert [] == batch_rows(reader)


def moment(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


@hypothesis.given(
    st.lists(st.tuples(st.sampled_from(list(KINDS)), st.integers(-2, 9)), max_size=4),
    st.integers(0, 9_999),
)
def test_timestamp_bounds_equal_the_predicates(given_predicates, stamp_ns):
    """A message is within the bounds exactly if its row's timestamp satisfies every predicate."""
    bounds = TimeBounds.of([kind(("timestamp",), moment(us)) for kind, us in given_predicates])
    passes = all(KINDS[kind](stamp_ns // 1000, us) for kind, us in given_predicates)
    begin = -1 if bounds.begin_ns is None else bounds.begin_ns
    end = 10_000 if bounds.end_ns is None else bounds.end_ns

    assert passes == (begin <= stamp_ns < end)


def test_other_predicates_set_no_bound():
    """Predicates on other columns, of other kinds, or with a text or naive time set no bound."""
    others = [
        GreaterThan(("index",), moment(5)),
        GreaterThan(("timestamp", "x"), moment(5)),
        GreaterThan(("timestamp",), "2020-01-01"),
        GreaterThan(("timestamp",), moment(5).replace(tzinfo=None)),
        Not(GreaterThan(("timestamp",), moment(5))),
        In(("timestamp",), (moment(5),)),
    ]

    assert TimeBounds() == TimeBounds.of(others)
    assert None is TimeBounds().read_until_ns
    berlin = datetime.fromisoformat("2026-01-01T01:00:00+01:00")
    midnight_ns = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 10**9
    bounds = TimeBounds.of([*others, LessThan(("timestamp",), berlin)])
    assert (None, midnight_ns) == bounds
    assert midnight_ns + CLOCK_SET_BACK_NS == bounds.read_until_ns
