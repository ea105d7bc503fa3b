"""Batch reads in the driver: their rows, errors in their bounds, and predicates."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
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

from sparq.protocol import commands
from sparq.protocol.errors import RemoteError
from sparq.spark.decode import SCHEMA
from sparq.spark.errors import SparkNsqError
from sparq.spark.options import OptionError
from sparq.spark.reader import CLOCK_SET_BACK_NS, NsqBatchReader, NsqFilteredReader, TimeBounds
from sparq.spark.source_options import SourceOptions
from tests.spark.range_server import RangeServer, key

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KINDS = {
    GreaterThan: lambda stamp, at: stamp > at,
    GreaterThanOrEqual: lambda stamp, at: stamp >= at,
    LessThan: lambda stamp, at: stamp < at,
    LessThanOrEqual: lambda stamp, at: stamp <= at,
    EqualTo: lambda stamp, at: stamp == at,
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


def test_a_batch_read_returns_everything_and_uses_no_channel(servers):
    """A batch read returns all messages and sends no ATTACH: it uses no channel."""
    assert 10 == len(batch_rows(batch_reader(*servers)))
    assert not any(isinstance(heard, commands.Attach) for heard in servers[0].heard)


def test_starting_and_ending_offsets_limit_a_batch_read(servers):
    """startingOffsets and endingOffsets limit the read to the messages between them."""
    address = servers[1].address
    reader = batch_reader(
        servers[1],
        startingOffsets=f'{{"{address}": 1}}',
        endingOffsets=f'{{"{key(servers[1])}": 4}}',
    )

    assert [b"0b", b"0c", b"1a"] == batch_rows(reader)


def test_a_topic_that_no_nsqd_has_is_an_error(servers):
    """An nsqd without the topic is skipped; if no nsqd has it, the read fails."""
    servers[0].refuse["ReadEnds"] = RemoteError("E_RANGE_FAILED", "ENDS failed topic not found")
    assert 6 == len(batch_rows(batch_reader(*servers)))

    with pytest.raises(SparkNsqError, match="topic not found at any nsqd: clicks"):
        batch_reader(servers[0]).partitions()


def test_ending_offsets_outside_the_log_are_refused(servers):
    """endingOffsets before the log or the start, or after the log's end, raises OptionError."""
    address = servers[0].address
    servers[0].first = 102
    for start, end, text in (
        ("earliest", 50, "index 50 is before index 102, where the read of topic clicks at nsqd"),
        (f'{{"{address}": 203}}', 202, "index 202 is before index 203"),
        ("earliest", 999, "index 999 is after index 204, the end of"),
    ):
        reader = batch_reader(
            servers[0], startingOffsets=start, endingOffsets=f'{{"{address}": {end}}}'
        )
        with pytest.raises(OptionError, match=f"^option endingOffsets: {text}"):
            reader.partitions()
    reader = batch_reader(servers[0], endingOffsets='{"h:1": 5}')
    with pytest.raises(OptionError, match=r"^option endingOffsets: no log of topic clicks .* h:1"):
        reader.partitions()


def test_a_batch_read_may_end_at_a_timestamp(servers):
    """endingTimestamp ends each log before its first message at or after the time.

    A log whose start is after that message gives no rows.
    """
    first, second = servers
    for server, index in ((first, 201), (second, 2)):
        server.times[5_000_000] = index
    bodies = batch_rows(batch_reader(*servers, endingTimestamp="5"))
    assert [b"0a", b"0a", b"0b", b"0b", b"0c"] == sorted([*bodies, b"0c"])

    named = f'{{"{second.address}": 4}}'
    rows = batch_rows(batch_reader(*servers, startingOffsets=named, endingTimestamp="5"))
    assert [b"0a", b"0b"] == sorted(rows)


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


def at(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


@given(
    st.lists(st.tuples(st.sampled_from(list(KINDS)), st.integers(-2, 9)), max_size=4),
    st.integers(0, 9_999),
)
def test_timestamp_bounds_equal_the_predicates(given_predicates, stamp_ns):
    """A message is within the bounds exactly if its row's timestamp satisfies every predicate."""
    bounds = TimeBounds.of([kind(("timestamp",), at(us)) for kind, us in given_predicates])
    passes = all(KINDS[kind](stamp_ns // 1000, us) for kind, us in given_predicates)
    begin = -1 if bounds.begin_ns is None else bounds.begin_ns
    end = 10_000 if bounds.end_ns is None else bounds.end_ns

    assert passes == (begin <= stamp_ns < end)


def test_other_predicates_set_no_bound():
    """Predicates on other columns, of other kinds, or with a text or naive time set no bound."""
    others = [
        GreaterThan(("index",), at(5)),
        GreaterThan(("timestamp", "x"), at(5)),
        GreaterThan(("timestamp",), "2020-01-01"),
        GreaterThan(("timestamp",), at(5).replace(tzinfo=None)),
        Not(GreaterThan(("timestamp",), at(5))),
        In(("timestamp",), (at(5),)),
    ]

    assert TimeBounds() == TimeBounds.of(others)
    assert None is TimeBounds().read_until_ns
    berlin = datetime(2026, 1, 1, 1, tzinfo=datetime.strptime("+0100", "%z").tzinfo)
    midnight_ns = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 10**9
    bounds = TimeBounds.of([*others, LessThan(("timestamp",), berlin)])
    assert (None, midnight_ns) == bounds
    assert midnight_ns + CLOCK_SET_BACK_NS == bounds.read_until_ns
