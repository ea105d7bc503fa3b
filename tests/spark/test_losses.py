"""Lost messages: what counts as a loss, what does not, and that each loss is reported once."""

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from sparq.spark.errors import DataLossError
from tests.spark.range_server import key
from tests.spark.reading import indexes, rows_of

pytestmark = pytest.mark.usefixtures("no_long_pauses")

ALL = ReadAllAvailable()


def test_a_log_that_was_replaced_is_data_loss(servers, readers):
    """A log that was replaced, as by deleting and creating its topic, raises DataLossError.

    Without failOnDataLoss, the old log is marked as gone and the new one is read from its start.
    """
    reader = readers(servers[1])
    start = reader.latestOffset(reader.initialOffset(), ReadMaxRows(2))
    servers[1].stop()
    old = key(servers[1])
    servers[1].log = "ef" * 16
    servers[1].start()

    with pytest.raises(DataLossError, match=r"its log cdcd.* no longer exists"):
        while True:
            reader.latestOffset(start, ALL)

    follower = readers(servers[1], failOnDataLoss="false")
    joined = follower.latestOffset(start, ALL)
    assert {old: 2, key(servers[1]): 0} == indexes(joined)
    assert joined[old]["gone"]
    assert {old: 2, key(servers[1]): 6} == indexes(follower.latestOffset(joined, ALL))


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
