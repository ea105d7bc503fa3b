"""The data source in a real Spark session, with real nsqd and nsqlookupd processes."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from tests.spark.range_server import RangeServer
from tests.support.published import numbered, publish_batches
from tests.support.servers import spawn_nsqd
from tests.support.spark_session import IN_A_SESSION
from tests.support.waiting import wait_for

pytestmark = IN_A_SESSION

WAIT_SECONDS = 150


@pytest.fixture(scope="module")
def nsqds(tmp_path_factory, lookupd):
    """Two nsqds for all tests."""
    folder = tmp_path_factory.mktemp("nsqds")
    with (
        spawn_nsqd(folder, lookupds=(lookupd,), name="a") as first,
        spawn_nsqd(folder, lookupds=(lookupd,), name="b") as second,
    ):
        yield first, second


def reading(source, topic: str, *nsqds, **options):
    """Return a stream or batch reader with nsqd addresses."""
    given = {"topic": topic, "nsqd_tcp_addresses": ",".join(nsqd.tcp for nsqd in nsqds)}
    return source.format("nsq").options(**given | options)


def archive(stream, folder, **trigger):
    """Start a query that writes the stream to Parquet in `folder`, with its checkpoint there."""
    writer = stream.writeStream.format("parquet").option("path", str(folder / "rows"))
    return (
        writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(**trigger).start()
    )


def archived(spark, folder) -> Counter:
    """Count each archived body."""
    rows = spark.read.parquet(str(folder / "rows")).select("body").collect()
    return Counter(bytes(row.body) for row in rows)


def wait_until(condition, query=None) -> None:
    """Wait for a condition; fail if the query fails, or after a timeout."""

    def check():
        if query is not None and query.exception() is not None:
            raise query.exception()
        return condition()

    wait_for(check, WAIT_SECONDS, every=0.05)


def test_a_batch_read_gives_every_message_with_its_columns(spark, nsqds, topic):
    """A batch read returns all messages of all nsqds once, with NSQ's attributes as columns."""
    began = datetime.now(UTC) - timedelta(seconds=1)
    publish_batches(nsqds[0], topic, numbered(0, 700), size=50)
    publish_batches(nsqds[1], topic, numbered(700, 1000), size=50)
    frame = reading(spark.read, topic, *nsqds, minPartitions="4").load()
    rows = frame.collect()

    assert frame.dtypes == [
        ("topic", "string"),
        ("nsqd", "string"),
        ("id", "string"),
        ("index", "bigint"),
        ("timestamp", "timestamp"),
        ("body", "binary"),
    ]
    assert frame.rdd.getNumPartitions() >= 4
    assert sorted(int(row.body) for row in rows) == list(range(1000))
    assert Counter(row.nsqd for row in rows) == {nsqds[0].tcp: 700, nsqds[1].tcp: 300}
    assert 1000 == len({row.id for row in rows})
    assert {row.topic for row in rows} == {topic}
    assert all(int(row.id, 16) & ((1 << 54) - 1) == row["index"] for row in rows)
    stamps = [row.timestamp.replace(tzinfo=UTC) for row in rows]
    assert began < min(stamps) <= max(stamps) < datetime.now(UTC) + timedelta(seconds=1)


def test_a_finished_run_continues_from_its_checkpoint(spark, nsqds, topic, tmp_path):
    """Each run reads the new messages in batches within the limit; nsqd shows progress as depth."""
    publish_batches(nsqds[0], topic, numbered(0, 500))
    publish_batches(nsqds[1], topic, numbered(500, 600))

    def run():
        options = {"channel": "archive", "maxOffsetsPerTrigger": "250"}
        stream = reading(spark.readStream, topic, *nsqds, startingOffsets="earliest", **options)
        query = archive(stream.load(), tmp_path, availableNow=True)
        query.awaitTermination(WAIT_SECONDS)
        assert query.exception() is None
        return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]

    assert [250, 250, 100] == run()
    assert archived(spark, tmp_path) == Counter(numbered(0, 600))
    assert [0, 0] == [nsqd.channel(topic, "archive")["depth"] for nsqd in nsqds]

    publish_batches(nsqds[1], topic, numbered(600, 700))
    assert 100 == nsqds[1].channel(topic, "archive")["depth"]
    assert [100] == run()
    assert archived(spark, tmp_path) == Counter(numbered(0, 700))


def test_rows_are_exactly_once_if_an_nsqd_is_killed(spark, nsqds, lookupd, topic, tmp_path):
    """Rows are exactly once across kill -9 of an nsqd; a new nsqd is read from its start."""
    with spawn_nsqd(tmp_path, lookupds=(lookupd,), name="c") as killed:
        publish_batches(killed, topic, numbered(0, 300))
        stream = (
            spark.readStream.format("nsq")
            .option("topic", topic)
            .option("channel", "archive")
            .option("lookupd_http_addresses", lookupd.http)
            .option("startingOffsets", "earliest")
            .load()
        )
        query = archive(stream, tmp_path, processingTime="0 seconds")
        try:
            wait_until(lambda: killed.channel(topic, "archive").get("depth") == 0, query)
            publish_batches(killed, topic, numbered(300, 600))
            killed.restart()
            publish_batches(killed, topic, numbered(600, 700))
            publish_batches(nsqds[0], topic, numbered(700, 1000))
            wait_until(lambda: nsqds[0].channel(topic, "archive").get("depth") == 0, query)
            wait_until(lambda: killed.channel(topic, "archive").get("depth") == 0, query)
            progress = query.lastProgress
        finally:
            query.stop()

    assert archived(spark, tmp_path) == Counter(numbered(0, 1000))
    assert str(nsqds[0].tcp_port) in progress.sources[0].endOffset
    assert str(nsqds[0].tcp_port) in progress.sources[0].latestOffset


def test_a_batch_is_written_to_topics(spark, nsqds, topic):
    """Rows are written to the option's topic or to the column's, and to every nsqd."""
    for nsqd in nsqds:
        publish_batches(nsqd, topic, [b"1000"])
        publish_batches(nsqd, f"{topic}.few", [b"1000"])
        publish_batches(nsqd, f"{topic}.many", [b"1000"])
    frame = spark.range(1000).repartition(2).selectExpr("CAST(id AS STRING) AS value")
    frame.write.format("nsq").mode("append").options(
        topic=topic, nsqd_tcp_addresses=",".join(nsqd.tcp for nsqd in nsqds)
    ).save()
    rows = reading(spark.read, topic, *nsqds).load().collect()

    assert [*range(1000), 1000, 1000] == sorted(int(row.body) for row in rows)
    assert {nsqd.tcp for nsqd in nsqds} == {row.nsqd for row in rows}

    frame.selectExpr(
        "CAST(value AS BINARY) AS body", f"IF(value < 10, '{topic}.few', '{topic}.many') AS topic"
    ).write.format("nsq").mode("append").options(nsqd_tcp_addresses=nsqds[0].tcp).save()
    few = reading(spark.read, f"{topic}.few", nsqds[0]).load()
    many = reading(spark.read, f"{topic}.many", nsqds[0]).load()

    assert (11, 991) == (few.count(), many.count())


def test_an_nsqd_without_range_reading_is_named_by_load(spark, topic):
    """load() names an nsqd that cannot read ranges, such as Go's."""
    with RangeServer(ranges=0) as plain:
        options = {"topic": topic, "channel": "c", "nsqd_tcp_addresses": plain.address}
        for source in (spark.readStream, spark.read):
            with pytest.raises(Exception, match=f"nsqd {plain.address} .* cannot read ranges"):
                source.format("nsq").options(**options).load()


def test_a_topic_that_never_had_a_message_is_logged(spark, spark_log, nsqds, lookupd, tmp_path):
    """A run that reads a topic without any message succeeds, and logs that it never had one."""
    for number, options in enumerate(
        ({"nsqd_tcp_addresses": nsqds[0].tcp}, {"lookupd_http_addresses": lookupd.http})
    ):
        name = f"misspelt{number}"
        stream = spark.readStream.format("nsq").options(topic=name, channel="c", **options).load()
        archive(stream, tmp_path / name, availableNow=True).awaitTermination(WAIT_SECONDS)
        wait_until(
            lambda name=name: f"topic {name} has never had a message" in spark_log.read_text()
        )


def test_a_named_source_is_added_to_the_checkpoint_of_a_running_query(
    spark, nsqds, topic, tmp_path
):
    """With named sources a topic joins a query that has a checkpoint, in any order of the sources.

    This pins `DataStreamReader.name` with a Python source, which Spark calls experimental.
    """
    setting = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
    spark.conf.set(setting, "true")
    topics = {"clicks": f"{topic}_1", "views": f"{topic}_2"}

    def run(*names: str) -> None:
        parts = [
            reading(
                spark.readStream.name(name),
                topics[name],
                nsqds[0],
                channel="q",
                startingOffsets="earliest",
            )
            .load()
            .select("body")
            for name in names
        ]
        stream = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
        assert archive(stream, tmp_path, availableNow=True).awaitTermination(WAIT_SECONDS)

    try:
        publish_batches(nsqds[0], topics["clicks"], numbered(0, 10), size=5)
        run("clicks")
        publish_batches(nsqds[0], topics["clicks"], numbered(10, 20), size=5)
        publish_batches(nsqds[0], topics["views"], numbered(20, 30), size=5)
        run("clicks", "views")
        publish_batches(nsqds[0], topics["views"], numbered(30, 40), size=5)
        run("views", "clicks")
    finally:
        spark.conf.unset(setting)

    assert Counter(numbered(0, 40)) == archived(spark, tmp_path)


def test_a_row_may_delay_its_message(spark, nsqds, topic):
    """The sink's column `defer_ms` delays a message at nsqd; null and 0 do not."""
    nsqds[0].post(f"/topic/create?topic={topic}")
    nsqds[0].post(f"/channel/create?topic={topic}&channel=c")
    rows = spark.sql(
        "SELECT CAST(id AS STRING) AS body, IF(id % 2 = 0, 600000, IF(id = 1, 0, NULL)) AS defer_ms"
        " FROM range(10)"
    )
    reading(rows.write, topic, nsqds[0]).mode("append").save()

    found = nsqds[0].channel(topic, "c")
    assert (5, 5) == (found["depth"], found["deferred_count"])
