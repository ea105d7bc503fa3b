"""Which messages are read, and when, in a real Spark session with real nsqd processes."""

import json
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.published import publish
from tests.support.spark_session import IN_A_SESSION
from tests.support.waiting import wait_for

pytestmark = IN_A_SESSION

WAIT_SECONDS = 150
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def between() -> datetime:
    """Return a time in whole ms, after all messages published before, and before all later ones."""
    begun_ms = time.time_ns() // 1_000_000
    wait_for(lambda: time.time_ns() // 1_000_000 > begun_ms)
    now_ms = time.time_ns() // 1_000_000
    wait_for(lambda: time.time_ns() // 1_000_000 > now_ms)
    return datetime.fromtimestamp(now_ms / 1000, UTC)


def milliseconds(at: datetime) -> str:
    return str(round(at.timestamp() * 1000))


def numbers(frame) -> list[int]:
    """Return the sorted bodies, which are numbers."""
    return sorted(int(bytes(row.body)) for row in frame.select("body").collect())


def bodies(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def test_predicates_on_the_time_are_pushed_down(spark, steady, topic):
    """Messages that a pushed-down time predicate excludes are not read.

    With one message per partition, the number of partitions shows it.
    """
    publish(steady, topic, *bodies(0, 6))
    at = between()
    publish(steady, topic, *bodies(6, 10))
    reader = spark.read.format("nsq").options(
        topic=topic, nsqd_tcp_addresses=steady.tcp, maxRecordsPerPartition="1"
    )
    pushing = reader.option("pushDownPredicate", "true")
    with pytest.raises(Exception, match=f"filter pushdown is disabled.*{PUSHDOWN}"):
        pushing.load().collect()
    spark.conf.set(PUSHDOWN, "true")
    try:
        everything = pushing.load()
        since = everything.where(everything.timestamp >= at)
        long_ago = everything.where(everything.timestamp < at - timedelta(hours=2))
        hour = since.where(everything.timestamp < at + timedelta(hours=1))
        exactly = everything.where(f"timestamp = TIMESTAMP'{at.isoformat()}'")
        # A new frame, since Spark keeps the filters that a query has pushed down with its frame.
        others = pushing.load().where("index > 0 OR timestamp < '2020-01-01'")

        assert (10, 10) == (len(numbers(everything)), everything.rdd.getNumPartitions())
        assert ([6, 7, 8, 9], 4) == (numbers(since), since.rdd.getNumPartitions())
        assert [6, 7, 8, 9] == numbers(hour)
        assert ([], 1) == (numbers(long_ago), long_ago.rdd.getNumPartitions())
        assert [] == numbers(exactly)
        assert 10 == len(numbers(others))
        plain = reader.option("pushDownPredicate", "false").load()
        assert 10 == plain.where(plain.timestamp >= at).rdd.getNumPartitions()
    finally:
        spark.conf.unset(PUSHDOWN)


def wait_for_rows(query, batches: dict[int, list], count: int) -> None:
    """Wait until the query's sink has `count` rows; raise the query's error if it fails."""

    def check() -> bool:
        if query.exception() is not None:
            raise query.exception()
        return sum(map(len, batches.values())) >= count

    wait_for(check, WAIT_SECONDS, lambda: batches, 0.05)


def topics_of(query) -> set[str]:
    """Return the topics in the query's latest offset."""
    if query.lastProgress is None:
        return set()
    offset = json.loads(query.lastProgress.sources[0].endOffset or "{}")
    return {key.rpartition("/")[2].partition(":")[0] for key in offset if key != "cut"}


def test_topics_that_appear_join_a_running_query(spark, steady, lookupd, topic, tmp_path):
    """New topics that match a pattern join a running query; only the schema's columns are read.

    A restart continues. Rows are stored by batch number: a batch that is stopped before its commit
    is repeated after the restart.
    """
    found: dict[int, list[tuple[str, bytes]]] = {}

    def keep(rows, batch: int) -> None:
        assert ["topic", "body"] == rows.columns
        found[batch] = [(row.topic, bytes(row.body)) for row in rows.collect()]

    def start():
        return (
            spark.readStream.format("nsq")
            .option("topicsPattern", f"{topic}[.].*")
            .option("channel", "spark")
            .option("lookupd_http_addresses", lookupd.http)
            .schema("topic STRING, body BINARY")
            .load()
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path))
            .trigger(processingTime="0 seconds")
            .start()
        )

    publish(steady, f"{topic}.old", b"1", channel="spark")
    query = start()
    try:
        wait_for_rows(query, found, 1)
        publish(steady, f"{topic}.new", b"2", b"3", channel="another")
        wait_for_rows(query, found, 3)
        wait_for(lambda: topics_of(query) == {f"{topic}.old", f"{topic}.new"}, WAIT_SECONDS)
    finally:
        query.stop()
    publish(steady, f"{topic}.new", b"4")
    publish(steady, f"{topic}.newer", b"5", channel="another")
    query = start()
    try:
        wait_for_rows(query, found, 5)
    finally:
        query.stop()

    assert Counter(
        {
            (f"{topic}.old", b"1"): 1,
            (f"{topic}.new", b"2"): 1,
            (f"{topic}.new", b"3"): 1,
            (f"{topic}.new", b"4"): 1,
            (f"{topic}.newer", b"5"): 1,
        }
    ) == Counter(row for rows in found.values() for row in rows)


def test_the_bytes_of_micro_batches_are_limited(spark, steady, topic, tmp_path):
    """maxBytesPerTrigger limits each batch; minOffsetsPerTrigger delays each but the first."""
    publish(steady, topic, *(bytes([number]) * 100_000 for number in range(6)), channel="spark")
    counts: list[int] = []

    def start(name: str, trigger: dict, **options: str):
        given = {"topic": topic, "channel": "spark", "nsqd_tcp_addresses": steady.tcp, **options}
        return (
            spark.readStream.format("nsq")
            .options(**given)
            .load()
            .writeStream.foreachBatch(lambda rows, _: counts.append(rows.count()))
            .option("checkpointLocation", str(tmp_path / name))
            .trigger(**trigger)
            .start()
        )

    drained = start("bytes", {"availableNow": True}, maxBytesPerTrigger="220k")
    assert drained.awaitTermination(WAIT_SECONDS)
    assert [2, 2, 2] == [count for count in counts if count]

    counts.clear()
    publish(steady, topic, *bodies(0, 2))
    query = start(
        "messages", {"processingTime": "0 seconds"}, minOffsetsPerTrigger="20", maxTriggerDelay="1h"
    )
    try:
        wait_for(lambda: sum(counts) >= 2 or query.exception(), WAIT_SECONDS, every=0.05)
        for number in range(20):
            publish(steady, topic, b"%d" % number)
        wait_for(lambda: sum(counts) >= 22 or query.exception(), WAIT_SECONDS, every=0.05)
    finally:
        query.stop()
    assert query.exception() is None
    assert [2, 20] == [count for count in counts if count]
