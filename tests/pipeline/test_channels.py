"""What queries read: rows of a function, and the figures of each batch."""

import time

import pyarrow as pa

from sparq.pipeline import channels
from tests.support.published import numbered, publish_batches
from tests.support.servers import spawn_nsqd


def bodies(batches):
    """The function of the test."""
    for batch in batches:
        yield pa.record_batch([batch["body"]], names=["body"])


def test_a_function_makes_the_rows_and_spark_hears_of_the_messages(spark, tmp_path):
    """Only the function's rows come; messages and publish time are observed, over all tasks."""
    kept = []
    with spawn_nsqd(tmp_path / "nsqd") as nsqd:
        sent = numbered(0, 100)
        publish_batches(nsqd, "t", sent)
        options = {"topic": "t", "channel": "c", "queryName": "q", "nsqd_tcp_addresses": nsqd.tcp}
        rows = channels.with_batch_time(channels.channel(spark, options, bodies, "body BINARY"))
        query = (
            rows.writeStream.foreachBatch(lambda frame, _: kept.extend(frame.collect()))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    (progress,) = [one for one in query.recentProgress if one.numInputRows]
    read = progress.observedMetrics["sparq_read"]

    assert sorted(sent) == sorted(row.body for row in kept)
    assert 100 == read.messages
    assert 0 <= time.time() - read.newest_published_s < 300
    (batch_ms,) = {row.batch_ms for row in kept}
    assert 0 <= time.time() - batch_ms / 1000 < 300
