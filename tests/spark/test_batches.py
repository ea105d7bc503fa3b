"""What a batch reads: where logs begin and end, how much, its partitions, and lost messages."""

import math
import os
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

from sparq.spark.batches import Backlog, admit, share, share_bytes
from sparq.spark.errors import DataLossError
from sparq.spark.offsets import Key
from sparq.spark.options import NO_LIMIT, OptionError, ReadLimits
from tests.spark.range_server import at, key
from tests.spark.reading import indexes, rows_of

"""Seconds since the last batch, if there was none yet."""


backlogs = st.dictionaries(st.text("abcdef", min_size=1, max_size=2), st.integers(0, 10_000))


@given(st.integers(1, 20_000), backlogs)
def test_shares_keep_to_limit_and_backlogs(limit, counts):
    """Shares add up to the limit or to all backlogs; no share exceeds its backlog.

    Every log with messages gets at least one, if the limit allows. A log with three times the
    backlog gets three times the share.
    """
    assert {"a": 250, "b": 750} == share(1000, {"a": 100_000, "b": 300_000})
    shares = share(limit, counts)

    assert sum(shares.values()) == min(limit, sum(counts.values()))
    assert all(0 < shares[key] <= counts[key] for key in shares)
    if limit >= len(counts):
        assert shares.keys() == {key for key, count in counts.items() if count}


@given(st.integers(1, 10_000), backlogs)
def test_shares_of_bytes_never_exceed_the_limit(limit, sizes):
    """If all bytes fit, each log may give all; otherwise a proportional share, rounded down."""
    shares = share_bytes(limit, sizes)

    assert shares.keys() == sizes.keys()
    assert sum(shares.values()) <= limit or shares == {}
    assert all(shares[key] <= sizes[key] for key in sizes)
    if sum(sizes.values()) <= limit:
        assert sizes == shares
    else:
        assert sum(shares.values()) > limit - len(sizes)


counted = st.dictionaries(
    st.text("abc", min_size=1, max_size=2),
    st.integers(0, 50).flatmap(lambda n: st.builds(Backlog, st.just(n), st.integers(0, n))),
)


@given(
    counted,
    st.builds(
        ReadLimits,
        st.sampled_from([1, 7, 60, NO_LIMIT]),
        st.integers(0, 80),
        st.sampled_from([0.0, 2.0]),
    ),
    st.sampled_from([0.0, 1.0, 2.0, math.inf]),
)
def test_a_batch_is_held_back_or_as_large_as_all_limits_allow(backlogs, limits, waited):
    """A batch is either held back or reads as much as all limits together allow."""
    taken = admit(backlogs, limits, waited)
    there = sum(backlog.messages for backlog in backlogs.values())
    allowed = sum(backlog.allowed for backlog in backlogs.values())
    too_few = there < limits.messages_min and allowed == there
    if too_few and waited < limits.delay_seconds:
        assert {} == taken
    else:
        assert min(allowed, limits.messages_max) == sum(taken.values())
    assert all(0 < taken[key] <= backlogs[key].allowed for key in taken)


pytestmark = pytest.mark.usefixtures("no_long_pauses")

ALL = ReadAllAvailable()


def test_a_query_starts_at_starting_offsets(servers, readers):
    """startingOffsets is earliest, latest, committed, or JSON with an index or word per nsqd."""
    first, second = servers
    first.committed = 101
    named = f'{{"{first.address}": 201, "{key(second)}": "latest"}}'

    for options, expected in (
        ({"startingOffsets": "committed"}, (101, 0)),
        ({}, (0, 0)),
        ({"startingOffsets": "latest"}, (204, 6)),
        ({"startingOffsets": named}, (201, 6)),
    ):
        initial = readers(**options).initialOffset()
        assert dict(zip((key(first), key(second)), expected, strict=True)) == indexes(initial)
        assert {first.ordinal_at(expected[0]), expected[1]} == {
            place["ordinal"] for place in initial.values()
        }


def test_offsets_outside_every_log_are_refused(servers, readers):
    """An unknown nsqd or an index after the log's end in startingOffsets raises OptionError."""
    with pytest.raises(
        OptionError, match="option startingOffsets: no log of topic clicks was found for h:1"
    ):
        readers(startingOffsets='{"h:1": 5}').initialOffset()
    with pytest.raises(OptionError, match="option startingOffsets: index 7 is after index 6"):
        readers(startingOffsets=f'{{"{servers[1].address}": 7}}').initialOffset()


def test_an_offset_before_the_logs_first_message_is_data_loss(servers, readers):
    """A start index whose message was deleted raises DataLossError.

    Without failOnDataLoss, reading starts at the log's first message.
    """
    servers[0].first = 102
    named = f'{{"{servers[0].address}": 50}}'

    with pytest.raises(
        DataLossError, match="from index 50 to index 102, where the log now starts, were deleted"
    ):
        readers(startingOffsets=named).initialOffset()
    reader = readers(startingOffsets=named, failOnDataLoss="false")
    assert {"index": 102, "ordinal": 2} == reader.initialOffset()[key(servers[0])]


def test_a_log_that_disconnects_while_it_joins_is_added_later(servers, readers):
    """A log whose nsqd disconnects while it joins is added later; the others are read."""
    first, second = servers
    reader = readers(first, startingTimestamp="5")
    start = reader.latestOffset(reader.initialOffset(), ALL)
    first.add([b"new"])
    reader._fleet.remember([Key(second.address, "")])
    second.hang_up_after["ReadEnds"] = 1
    assert {key(first): first.end} == indexes(reader.latestOffset(start, ALL))
    start, deadline = reader.latestOffset(start, ALL), time.monotonic() + 30
    while key(second) not in start:
        start = reader.latestOffset(start, ALL)
        assert time.monotonic() < deadline


def test_messages_deleted_before_they_were_read_are_data_loss(servers, readers, caplog):
    """A log that starts at a higher ordinal than the offset has lost the messages between."""
    server = servers[0]
    start = {key(server): {"index": 1, "ordinal": 1}}
    server.first = 201

    lost = f"1 messages of topic clicks at nsqd {server.address} are lost"
    for call in (
        lambda reader: reader.latestOffset(start, ALL),
        lambda reader: reader.partitions(start, {key(server): {"index": 204, "ordinal": 4}}),
    ):
        with pytest.raises(DataLossError, match=lost):
            call(readers(server))

    follower = readers(server, failOnDataLoss="false")
    end = follower.latestOffset(start, ALL)
    assert [b"1a", b"1b"] == [body for _, body in rows_of(follower, start, end)]
    assert 1 == sum(lost in line for line in caplog.messages)


def test_a_gap_of_indexes_is_no_data_loss(servers, readers):
    """A log that starts at a higher index, but at the offset's ordinal, has lost nothing."""
    server = servers[0]
    start = {key(server): {"index": 102, "ordinal": 2}}
    server.first = server.committed = 202

    reader = readers(server)
    end = reader.latestOffset(start, ALL)

    assert {"index": 204, "ordinal": 4} == end[key(server)]
    assert [b"1a", b"1b"] == [body for _, body in rows_of(reader, start, end)]


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
