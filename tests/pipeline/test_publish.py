"""The messages of a channel in a query: their columns, their batch's time."""

import time

from sparq.pipeline.publish import messages as stream_of
from sparq.pipeline.publish import with_batch_time
from tests.support.servers import free_port


def test_the_stream_has_only_the_required_columns(spark):
    """The stream has only the required columns of the source."""
    given = {"topic": "clicks", "nsqd_tcp_addresses": f"127.0.0.1:{free_port()}"}
    frame = stream_of(spark, "archive", given)

    assert frame.isStreaming
    assert ["nsqd", "id", "index", "timestamp", "body"] == frame.columns


def test_all_messages_of_a_batch_have_the_same_time(messages):
    """All messages of a batch have the same time in ms; outside a stream, the current time."""
    before_ms = time.time() * 1000
    rows = with_batch_time(messages([b"a", b"b", b"c"])).collect()

    (batch_ms,) = {row.batch_ms for row in rows}
    assert before_ms - 1 <= batch_ms <= time.time() * 1000
    assert [b"a", b"b", b"c"] == sorted(bytes(row.body) for row in rows)
