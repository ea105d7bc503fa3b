"""Which messages are read, and when, in a real Spark session with real nsqd processes."""

import time
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


def test_the_bytes_of_micro_batches_are_limited(spark, steady, topic, tmp_path):
    """maxBytesPerTrigger limits each batch."""
    publish(steady, topic, *(bytes([number]) * 100_000 for number in range(6)), channel="spark")
    counts: list[int] = []
    given = {"topic": topic, "channel": "spark", "nsqd_tcp_addresses": steady.tcp}
    query = (
        spark.readStream.format("nsq")
        .options(**given, maxBytesPerTrigger="220k")
        .load()
        .writeStream.foreachBatch(lambda rows, _: counts.append(rows.count()))
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )

    assert query.awaitTermination(WAIT_SECONDS)
    assert [2, 2, 2] == [count for count in counts if count]
