"""The messages of a channel in a query: their columns, their batch's time, packing."""

import time

import pyarrow as pa

from sparq.demo.generator import generate
from sparq.pipeline.messages import messages as stream_of
from sparq.pipeline.messages import packed_messages, with_batch_time
from sparq.pipeline.minutes_state import packer
from sparq.pipeline.packing import PACKED_SCHEMA
from tests.support.servers import free_port

BUCKETS = 4


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


def test_messages_are_packed_on_the_executors(messages):
    """A partition is packed into one row per bucket, with blobs made by the given function."""

    def blobs_of(rows: pa.Table, buckets: int) -> list[bytes]:
        return [str(len(rows)).encode()] * buckets

    frame = messages(generate(300, seed=2).lines).coalesce(1)
    packed = packed_messages(
        frame, packer.PARSED_COLUMNS, packer.prepared, blobs_of, BUCKETS
    ).toArrow()

    assert PACKED_SCHEMA.names == packed.column_names
    assert [*range(BUCKETS)] == sorted(packed["bucket"].to_pylist())
    assert {b"300"} == {bytes(blob) for blob in packed["blob"].to_pylist()}
