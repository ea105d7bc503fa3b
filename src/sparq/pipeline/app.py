"""The Spark application: one session, three streaming queries over three channels of one topic.

    python -m sparq.pipeline.app --data DATA --lookupd-http HOST:PORT [--topic clicks]

1. It may be killed at any moment and started again: each query goes on from its checkpoint.
2. It ends by itself when the file `run/finish` is there: what has come is processed, the queries
   stop, the books are closed (last windows, open visits), and only then is its stage `done`.
3. A query that fails ends the application with status 1; who started it may start it again.
4. `run/app.json` says what each query has taken in: for progress, never for the audit.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparq.client import Producer
from sparq.pipeline import archive, metrics, spam_analysis
from sparq.pipeline.folders import Folders, write_json
from sparq.pipeline.workers_python import use_this_python
from sparq.spark.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

POLL_SECONDS = 0.25
SOURCE_SECONDS = 60.0
TRIGGER = "1 second"
MESSAGES_PER_TRIGGER = 40_000
PUBLISH_BATCH = 500
FILE_MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A local disk needs no renames through Hadoop: a third of a small batch's time.
    "spark.sql.streaming.checkpointFileManagerClass": FILE_MANAGER,
}


class TopicPublisher:
    """Publishes findings and figures to a topic, at least once, before their batch is committed."""

    def __init__(self, lookupd: str) -> None:
        self._lookupd = lookupd

    def __call__(self, topic: str, bodies: list[bytes]) -> None:
        """Publish all bodies and return when they are acknowledged."""
        asyncio.run(self._publish(topic, bodies))

    async def _publish(self, topic: str, bodies: list[bytes]) -> None:
        async with Producer(lookupd_http_addresses=[self._lookupd]) as producer:
            for at in range(0, len(bodies), PUBLISH_BATCH):
                await producer.multi_publish(topic, bodies[at : at + PUBLISH_BATCH])


class Counter:
    """How many batches and rows a query has processed in this process."""

    def __init__(self, query: StreamingQuery) -> None:
        self.query = query
        self.batches = 0
        self.rows = 0
        self._last = -1

    def update(self) -> dict[str, int]:
        """Take in what the query says of its newest batches."""
        for progress in self.query.recentProgress:
            if progress.batchId > self._last and progress.numInputRows:
                self._last = progress.batchId
                self.batches += 1
                self.rows += progress.numInputRows
        return {"batches": self.batches, "rows": self.rows}


def session() -> SparkSession:
    """The one session, on Java that is there or that a package brings."""
    ensure_java()
    use_this_python()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession  # noqa: PLC0415 - needs Java's place first

    builder = SparkSession.builder.master("local[2]").appName("sparq clicks")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class Application:
    """The three queries, from start to closed books."""

    def __init__(self, spark: SparkSession, folders: Folders, lookupd: str, topic: str) -> None:
        self._spark = spark
        self._folders = folders
        self._lookupd = lookupd
        self._topic = topic
        publish = TopicPublisher(lookupd)
        self._metrics = metrics.MetricsSink(folders, publish, {"lookupd_http_addresses": lookupd})
        self._spam = spam_analysis.SpamSink(folders, publish)
        self._counters: dict[str, Counter] = {}

    def start(self) -> None:
        """Start the queries, each where its checkpoint says."""
        self._say("starting")
        archived = archive.archived(self._messages(archive.QUERY)).writeStream.format("parquet")
        archived = archived.option("path", str(self._folders.archive)).partitionBy("date", "hour")
        self._begin(archive.QUERY, archived)
        counted = metrics.prepared(self._messages(metrics.QUERY))
        self._begin(metrics.QUERY, counted.writeStream.foreachBatch(self._metrics))
        judged = spam_analysis.prepared(self._messages(spam_analysis.QUERY))
        self._begin(spam_analysis.QUERY, judged.writeStream.foreachBatch(self._spam))

    def _messages(self, channel: str) -> DataFrame:
        return (
            self._spark.readStream.format("nsq")
            .option("topic", self._topic)
            .option("channel", channel)
            .option("lookupd_http_addresses", self._lookupd)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", MESSAGES_PER_TRIGGER)
            .load()
        )

    def _begin(self, name: str, writer: Any) -> None:
        query = (
            writer.queryName(name)
            .option("checkpointLocation", str(self._folders.checkpoint_of(name)))
            .trigger(processingTime=TRIGGER)
            .start()
        )
        self._counters[name] = Counter(query)
        self._wait_for_source(query)

    def _wait_for_source(self, query: StreamingQuery) -> None:
        """Let a source's Python process come up before the next is started.

        Spark gives such a process ten seconds to connect, which several that load their libraries
        at once on a small machine may not keep.
        """
        deadline = time.monotonic() + SOURCE_SECONDS
        while query.isActive and time.monotonic() < deadline:
            if query.lastProgress is not None or "nitializing" not in query.status["message"]:
                return
            time.sleep(POLL_SECONDS)

    def run(self) -> None:
        """Process until told to finish, then close the books.

        Raises:
            StreamingQueryException: a query has failed.
        """
        finish = self._folders.run / "finish"
        while not finish.exists():
            self._watch()
            self._say("running")
            time.sleep(POLL_SECONDS)
        for counter in self._counters.values():
            counter.query.processAllAvailable()
        self._say("closing")
        for counter in self._counters.values():
            counter.query.stop()
        self._metrics.close(self._next_batch(metrics.QUERY))
        self._spam.close(self._next_batch(spam_analysis.QUERY))
        self._say("done")

    def _watch(self) -> None:
        for counter in self._counters.values():
            if not counter.query.isActive:
                counter.query.awaitTermination()  # raises what ended it

    def _next_batch(self, name: str) -> int:
        """The id of the batch that Spark would begin next, by its checkpoint."""
        commits = self._folders.checkpoint_of(name) / "commits"
        return max((int(path.name) for path in commits.glob("[0-9]*")), default=-1) + 1

    def _say(self, stage: str) -> None:
        queries = {name: counter.update() for name, counter in self._counters.items()}
        figures = {"pid": os.getpid(), "stage": stage, "queries": queries, "error": None}
        write_json(self._folders.run / "app.json", figures)


def main(arguments: list[str] | None = None) -> int:
    """Run the application; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m sparq.pipeline.app", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the data folder")
    parser.add_argument("--lookupd-http", required=True, help="HTTP address of an nsqlookupd")
    parser.add_argument("--topic", default="clicks", help="the topic of the clicks")
    options = parser.parse_args(arguments)
    folders = Folders(options.data.resolve())
    application = Application(session(), folders, options.lookupd_http, options.topic)
    application.start()
    application.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
