"""What queries read, the figures of each batch, and the check of the cluster."""

import time
from types import SimpleNamespace

import pyarrow as pa

from sparq.pipeline import channels
from sparq.pipeline.channels import check_cluster
from tests.pipeline.settings_examples import settings_with
from tests.support.published import numbered, publish, publish_batches
from tests.support.servers import free_port, spawn_nsqd, spawn_nsqlookupd
from tests.support.waiting import wait_for


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


def test_the_check_creates_no_topic_or_channel(tmp_path):
    """One nsqlookupd of two is enough; no topic or channel is created."""
    with spawn_nsqlookupd(tmp_path) as lookupd, spawn_nsqd(tmp_path, lookupds=(lookupd,)) as nsqd:
        publish(nsqd, "clicks", b"click", channel="")
        wait_for(lambda: "clicks" in lookupd.get_json("/topics")["topics"])
        addresses = (f"127.0.0.1:{free_port()}", lookupd.http)
        for topic in ("clicks", "other"):
            check_cluster(settings_with(lookupd_http_addresses=addresses, topic=topic))

        (found,) = nsqd.get_json("/stats?format=json")["topics"]
        assert ("clicks", []) == (found["topic_name"], found["channels"])


def test_the_check_waits_for_an_nsqlookupd_that_is_starting(monkeypatch, tmp_path):
    """The check waits for an nsqlookupd that a supervisor starts at the same time."""
    monkeypatch.setattr(channels, "ANSWER_SECONDS", 0.0)
    with spawn_nsqlookupd(tmp_path) as lookupd:
        lookupd.terminate()
        pauses = []

        def start_meanwhile(seconds):
            pauses.append(seconds)
            if len(pauses) == 1:
                lookupd.start()
            time.sleep(seconds)

        clock = SimpleNamespace(monotonic=time.monotonic, sleep=start_meanwhile)
        monkeypatch.setattr(channels, "time", clock)
        settings = settings_with(lookupd_http_addresses=(lookupd.http,), run_dir=str(tmp_path))
        check_cluster(settings)
        assert pauses
