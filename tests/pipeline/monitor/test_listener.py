"""The listener in a real session: Spark's progress of queries over a real nsqd."""

import json
import urllib.request

import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import functions as F

from sparq.pipeline import channels
from sparq.pipeline.files import MESSAGE_DDL
from sparq.pipeline.monitor.listener import ProgressListener
from sparq.pipeline.monitor.metrics import MESSAGES, NEWEST_PUBLISHED, QueryMetrics, served
from tests.pipeline.monitor.spark_progress import STATE, progress
from tests.pipeline.monitor.test_metrics import samples_of
from tests.support.published import numbered, publish_batches
from tests.support.servers import spawn_nsqd
from tests.support.waiting import wait_for

pytestmark = [
    # The first test also waits for the JVM, also on a busy machine.
    pytest.mark.timeout(400),
    # Py4J leaves its sockets to the garbage collector to close.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

WAIT_SECONDS = 150
# An idle query reports after 300 ms, not after 10 s.
IDLE = "spark.sql.streaming.noDataProgressEventInterval"


class RecordingListener(ProgressListener):
    """The listener; `reported` has all progress that Spark has reported."""

    def __init__(self, metrics):
        super().__init__(metrics)
        self.reported = []

    def onQueryProgress(self, event):
        super().onQueryProgress(event)
        self.reported.append(json.loads(event.json())["progress"])


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory):
    """One nsqd for all tests; each test has its own topic."""
    with spawn_nsqd(tmp_path_factory.mktemp("nsqd")) as running:
        yield running


@pytest.fixture
def listener(spark):
    """A listener in the session, with a server for its metrics."""
    before = spark.conf.get(IDLE)
    spark.conf.set(IDLE, "300")
    registry = CollectorRegistry()
    made = RecordingListener(QueryMetrics(registry))
    with served(registry, "127.0.0.1:0") as made.url:
        made.add_to(spark)
        yield made
        spark.streams.removeListener(made)
    spark.conf.set(IDLE, before)


def value(listener, name, *labels):
    """One metric as Prometheus scrapes it; None if it is absent."""
    with urllib.request.urlopen(listener.url) as answer:
        return samples_of(answer.read().decode()).get((f"sparq_query_{name}", *labels))


def messages(spark, nsqd, topic, limit=300):
    """A topic as a stream, at most `limit` messages per batch."""
    options = {
        "topic": topic,
        "channel": "c",
        "queryName": topic,
        "nsqd_tcp_addresses": nsqd.tcp,
        "maxOffsetsPerTrigger": str(limit),
    }
    return channels.channel(spark, options, iter, MESSAGE_DDL)


def start(writer, folder, name):
    """Start a query with its own checkpoint."""
    named = writer.queryName(name).option("checkpointLocation", str(folder / name))
    return named.trigger(processingTime="0 seconds").start()


def test_a_shrinking_backlog_is_reported(spark, nsqd, listener, tmp_path):
    """While a backlog shrinks, lag, rates and parts of batches are reported.

    A restart is counted. The progress of other tests has the keys of this Spark version.
    """
    publish_batches(nsqd, "shrinking", numbered(0, 1_000))
    rows = messages(spark, nsqd, "shrinking")

    def begin():
        return start(rows.writeStream.format("noop"), tmp_path, "shrinking")

    query = begin()
    wait_for(lambda: value(listener, "rows_total") == 1_000, WAIT_SECONDS)
    wait_for(lambda: value(listener, "lag_seconds") == 0, WAIT_SECONDS)
    query.stop()
    wait_for(lambda: value(listener, "active") == 0, WAIT_SECONDS)
    real, made = listener.reported[0], progress()

    assert 0 == value(listener, "lag_messages")
    assert 0 == value(listener, "restarts_total")
    assert value(listener, "batch_part_seconds_total", "addBatch") > 0
    assert made.keys() == real.keys()
    assert made["sources"][0].keys() <= real["sources"][0].keys()
    assert made["durationMs"].keys() <= real["durationMs"].keys()
    assert {MESSAGES, NEWEST_PUBLISHED} == real["observedMetrics"]["sparq_read"].keys()

    publish_batches(nsqd, "shrinking", numbered(1_000, 1_100))
    again = begin()
    wait_for(lambda: value(listener, "rows_total") == 1_100, WAIT_SECONDS)
    again.stop()
    assert (2, 1) == (value(listener, "starts_total"), value(listener, "restarts_total"))
    assert 0 == value(listener, "failures_total")


def test_state_and_observed_counts_are_reported(spark, nsqd, listener, tmp_path):
    """The rows and bytes of RocksDB are reported, and the sums that a query observes."""
    publish_batches(nsqd, "counting", numbered(0, 500))
    counted = messages(spark, nsqd, "counting", 1_000).groupBy(F.length("body").alias("n")).count()
    rows = counted.observe(
        "sparq_written", F.sum("count").alias("late"), F.sum(F.lit(1)).alias("evicted_visits")
    )
    kept = []

    def write(frame, batch_id):
        held = frame.persist()
        kept.append((held.count(), held.count()))
        held.unpersist()

    query = start(rows.writeStream.outputMode("update").foreachBatch(write), tmp_path, "counting")
    wait_for(lambda: value(listener, "late_total") == 500, WAIT_SECONDS)
    query.stop()

    assert (3, 3) == kept[0]
    assert 3 == value(listener, "evicted_visits_total")
    assert 3 == value(listener, "state_rows", "stateStoreSave", "0")
    assert value(listener, "state_memory_bytes", "stateStoreSave", "0") > 0
    assert value(listener, "state_disk_bytes", "stateStoreSave", "0") >= 0
    assert STATE.keys() <= listener.reported[0]["stateOperators"][0].keys()


def test_a_failed_query_is_counted(spark, nsqd, listener, tmp_path):
    """A query that fails is counted as a failure and is not active."""
    publish_batches(nsqd, "failing", numbered(0, 5))

    def write(frame, batch_id):
        raise RuntimeError("broken on purpose")

    rows = messages(spark, nsqd, "failing")
    query = start(rows.writeStream.foreachBatch(write), tmp_path, "failing")
    wait_for(lambda: value(listener, "failures_total") == 1, WAIT_SECONDS)

    assert not query.isActive
    assert 0 == value(listener, "active")
