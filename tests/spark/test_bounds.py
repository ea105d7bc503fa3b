"""Where reading starts and ends in a log, with nsqds that serve from memory."""

import time

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from sparq.protocol import commands
from sparq.spark.errors import DataLossError
from sparq.spark.offsets import Key
from sparq.spark.options import OptionError
from tests.spark.range_server import at, key
from tests.spark.reading import indexes
from tests.support.servers import free_port

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


def test_a_query_may_start_at_a_timestamp(servers, readers):
    """startingTimestamp overrides startingOffsets; nsqd gets it in nanoseconds."""
    reader = readers(startingTimestamp="1763687000000")

    assert {key(server): server.end for server in servers} == indexes(reader.initialOffset())
    asked = [heard for heard in servers[0].heard if isinstance(heard, commands.ReadEnds)]
    assert 1763687000000000000 == asked[-1].value


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


def test_a_topic_that_appears_is_read_from_its_first_message(servers, readers):
    """A topic whose channel the query has just created is read from its first message.

    If the query already reads the topic at another nsqd, or if the channel existed, reading starts
    at
    the channel's cursor.
    """
    for server in servers:
        server.created, server.committed = True, server.end
    absent = f"127.0.0.1:{free_port()}"
    reader = readers(servers[0], startingOffsets="committed")
    reader._fleet.remember([Key(servers[1].address, "")])
    start = reader.latestOffset({}, ALL)
    assert {key(servers[0]): 0, key(servers[1]): 0} == indexes(start)
    assert [0, 0] == [server.committed for server in servers]

    servers[1].committed = servers[1].end
    reader = readers(servers[0], startingOffsets="committed")
    start = reader.latestOffset(at(servers[0], 202, absent), ALL)
    reader._fleet.remember([Key(servers[1].address, "")])
    assert 6 == indexes(reader.latestOffset(start, ALL))[key(servers[1])]

    servers[1].created = False
    reader = readers(servers[1], startingOffsets="committed")
    assert {key(servers[1]): 6} == indexes(reader.latestOffset({}, ALL))


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
