"""The Spark application: one session, three streaming queries over three channels of one topic.

    sparq pipeline --data URI --lookupd-http-address HOST:PORT
    spark-submit .../sparq/pipeline/app.py --data URI ...

It may be killed at any moment and started again: each query continues from its checkpoint, and
needs nothing else. What it writes to `--run-dir` is for people and supervisors.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from pyarrow.fs import FileSelector, FileSystem
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from sparq.daemon.prometheus_text import process_registry
from sparq.options.mistakes import Mistake
from sparq.pipeline import archive, channels, metrics, spam_analysis
from sparq.pipeline.folders import lock, write_json
from sparq.pipeline.monitor import QueryMetrics, serve
from sparq.pipeline.own_metrics import MetricTable
from sparq.pipeline.reading.schema import click_schema
from sparq.pipeline.session import SHUFFLE_PARTITIONS, prepare_for_queries, session
from sparq.pipeline.sessions.pack import BUCKETS_PER_PARTITION, PACKED_DDL, pack
from sparq.pipeline.sessions.rules import Rules, read_rules
from sparq.pipeline.sessions.state import sessions_stage
from sparq.pipeline.settings import BATCH_BYTES, FIRST_OFFSETS, Settings, SettingsError
from sparq.pipeline.sink import Output, ResultTopics, Sink
from sparq.pipeline.storage import place_of
from sparq.pipeline.tables import WRITTEN_DDL, Tables, files_of
from sparq.spark.data_source import Function

POLL_SECONDS = 0.25

TOO_LATE = "connect back"
"""Part of Spark's error when a Python process did not connect within ten seconds, for which there
is no option: too short on a busy machine."""
LATE_MAX = 10  # restarts of a query for that reason, in one process
INITIALIZING = "nitializing"  # in Spark's status message while a query has no source yet
OWN_ERROR = re.compile(r"^(sparq\.[\w.]+: .+)$", re.M)
"""An error raised by sparq, inside Spark's message; its text is shown without a traceback."""


@dataclass
class PipelineQuery:
    """A query: its stream, the function for foreachBatch, its newest run."""

    rows: DataFrame
    sink: Callable[[DataFrame, int], None]
    close: Callable[[SparkSession, str], None] | None = None  # writes what is open in its state
    run: StreamingQuery = field(init=False)
    late: int = 0  # restarts for TOO_LATE


@dataclass
class Application:
    """The queries by name, from start to end; their metrics, and where these are served."""

    spark: SparkSession
    settings: Settings
    rules: Rules
    figures: QueryMetrics
    metrics_url: str | None = None
    queries: dict[str, PipelineQuery] = field(default_factory=dict)
    _said: dict[str, Any] = field(default_factory=dict)
    _is_ending: bool = False

    def start(self) -> None:
        """Start the queries, each from its checkpoint."""
        self.figures.listen_to(self.spark)
        self._say("starting")
        for name in self.settings.queries:
            self.queries[name] = self._plan(name)
            self._begin(name)

    def _plan(self, name: str) -> PipelineQuery:
        settings, reading, topics = self.settings, self.settings.reading, None
        if settings.result_topics:
            topics = ResultTopics(settings.cluster_options, settings.result_topics)

        def sink_of(output: Output, **given: Any) -> Sink:
            days = settings.keep_days
            sink = Sink(self.spark, settings.data, output, topics, keep_days=days, **given)
            self._check_position(name, sink.tables)
            return sink

        if name == spam_analysis.QUERY:
            buckets = BUCKETS_PER_PARTITION * self._partitions(name)
            packing = partial(pack, rules=self.rules, buckets=buckets, reading=reading)
            packed = self._read(name, packing, PACKED_DDL)
            stage = sessions_stage(channels.with_batch_time(packed), self.rules)
            found = stage.observe("sparq_written", *spam_analysis.counts_to_observe())
            sink = sink_of(spam_analysis.OUTPUT)
            rows = found.mapInArrow(sink.tables.writer(spam_analysis.split), WRITTEN_DDL)
            source = "files" if settings.files else "topic"
            spam_analysis.reopen(sink, source)
            return PipelineQuery(rows, sink, partial(spam_analysis.close, sink, self.rules, source))
        if name == archive.QUERY:
            output = archive.output(reading)
            sink = sink_of(output, counted=partial(self.figures.counted, name, "rejected"))
        else:
            output = metrics.output(metric_tables(settings), reading)
            sink = sink_of(output)
        return PipelineQuery(self._read(name, sink.tables.writer(output.split), WRITTEN_DDL), sink)

    def _read(self, name: str, function: Function, schema: str) -> DataFrame:
        """What a function makes of a query's messages."""
        if self.settings.files:
            return channels.files(self.spark, self.settings.files, function, schema)
        return channels.channel(self.spark, self._source_options(name), function, schema)

    def _check_position(self, name: str, tables: Tables) -> None:
        """Check that a start would not add clicks again. Raises SettingsError."""
        since, data = self.settings.since, self.settings.data
        if since and self._newest(f"{self._checkpoint(name)}/offsets") >= 0:
            raise SettingsError(
                f"--since={since} would add clicks again that {name} has read: leave it out to"
                " continue, or replay into another folder (--data) with other channels"
            )
        either = max(self._newest(f"checkpoint/{one}{name}/offsets") for one in ("", "files/"))
        if either < 0 and not since and any(files_of(one.delta) for one in tables.opened.values()):
            raise SettingsError(
                f"--data={data} has tables of {name}, but not its checkpoint (checkpoint/{name}):"
                " a start would add clicks again that are there. Restore it, name another folder,"
                " or give --since, the time from which to read"
            )

    def _newest(self, log: str) -> int:
        """The newest batch in `<checkpoint>/offsets` or `<checkpoint>/commits`, or -1."""
        found = self._files().get_file_info(FileSelector(log, allow_not_found=True))
        numbers = (int(one.base_name) for one in found if one.base_name.isdecimal())
        return max(numbers, default=-1)

    def _partitions(self, name: str) -> int:
        """The number of shuffle partitions of a query, which Spark fixes at its first start."""
        log = f"{self._checkpoint(name)}/offsets"
        newest = self._newest(log)
        if newest < 0:
            return int(self.spark.conf.get(SHUFFLE_PARTITIONS) or 0)
        # The second line has the settings that the query keeps.
        kept = self._files().open_input_file(f"{log}/{newest}").read().splitlines()[1]
        return int(json.loads(kept)["conf"][SHUFFLE_PARTITIONS])

    def _files(self) -> FileSystem:
        """The file system of the data folder, in which checkpoints are, too."""
        return place_of(self.spark, self.settings.data).files()

    def _checkpoint(self, name: str) -> str:
        """A query's checkpoint below the data folder: its progress and its state."""
        return f"checkpoint/files/{name}" if self.settings.files else f"checkpoint/{name}"

    def _source_options(self, name: str) -> dict[str, str]:
        """Options of the source `nsq` for a query."""
        most, since = self.settings.max_offsets_per_trigger, self.settings.since
        options = {
            "topic": self.settings.topic,
            "channel": self.settings.channels[name],
            "queryName": name,
            "firstOffsetsPerTrigger": str(min(FIRST_OFFSETS, most)),
            "maxOffsetsPerTrigger": str(most),
            "maxBytesPerTrigger": BATCH_BYTES,
            **self.settings.cluster_options,
        }
        if since:
            time_ms = int(datetime.fromisoformat(since).timestamp() * 1000)
            options.setdefault("startingTimestamp", str(time_ms))
        return options

    def _begin(self, name: str, *, last: bool = False) -> StreamingQuery:
        """Start a query; a last run processes the messages that are there, and ends."""
        query = self.queries[name]
        trigger: dict[str, Any] = {"processingTime": self.settings.trigger}
        if last or self.settings.once:
            trigger = {"availableNow": True}
        # A scheduler pool of its own: a long job of one query leaves task slots to the others.
        self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)
        query.run = (
            query.rows.writeStream.foreachBatch(query.sink)
            .queryName(name)
            .option("checkpointLocation", f"{self.settings.data}/{self._checkpoint(name)}")
            .trigger(**trigger)
            .start()
        )
        return query.run

    def end(self) -> None:
        """Let `run` stop the queries; for signal handlers."""
        # No threading.Event: its `set` would wait forever if `run`, interrupted, held its lock.
        self._is_ending = True

    def run(self) -> None:
        """Process messages until a signal, the file `finish` or `--once` ends the application."""
        finish = Path(self.settings.run_dir, "finish")
        while not self._is_ending:
            self._watch()
            self._say("running")
            if self.settings.run_dir and finish.exists():
                self._finish()
                return
            if not any(query.run.isActive for query in self.queries.values()):
                # Only with `once`: `_watch` raises the error of a query that has failed.
                self._close()
                return
            time.sleep(POLL_SECONDS)
        for query in self.queries.values():
            query.run.stop()

    def _watch(self) -> None:
        """Start queries again that Spark gave up too soon; raise the error of others."""
        # Py4J's thread ends, and stays ended, when this process can open no file for a connection.
        # Then the JVM waits for `foreachBatch` forever, and no query fails.
        if not self.spark.sparkContext._gateway._callback_server.thread.is_alive():
            raise RuntimeError("Py4J's callback server has stopped: see its message above")
        for name, query in self.queries.items():
            if query.run.isActive or self._begin_again(name):
                continue
            try:
                query.run.awaitTermination()  # raises the query's error
            except StreamingQueryException as error:
                own_errors = OWN_ERROR.findall(str(error))
                if not own_errors:
                    raise
                raise Mistake(f"query {name} failed: {own_errors[-1]}") from error

    def _begin_again(self, name: str) -> bool:
        """Start a query again if a Python process was too late; False if that was not why."""
        query = self.queries[name]
        if query.late >= LATE_MAX or TOO_LATE not in str(query.run.exception()):
            return False
        others = (other.run for other in self.queries.values())
        if any(run.isActive and INITIALIZING in run.status["message"] for run in others):
            return True  # later: one after another, their processes load their libraries sooner
        query.late += 1
        self._begin(name)
        return True

    def _finish(self) -> None:
        """Process the messages that have come, stop the queries, close visits."""
        for query in self.queries.values():
            query.run.processAllAvailable()
        for query in self.queries.values():
            query.run.stop()
        for name in self.queries:
            # A query that was stopped in a batch may have written its rows, but not its state, from
            # which `close` writes more.
            checkpoint = self._checkpoint(name)
            if self._newest(f"{checkpoint}/offsets") > self._newest(f"{checkpoint}/commits"):
                self._begin(name, last=True).awaitTermination()
        self._close()

    def _close(self) -> None:
        """Write what is open in the state of the queries, which have ended."""
        self._say("closing")
        for name, query in self.queries.items():
            if query.close is not None:
                query.close(self.spark, f"{self.settings.data}/{self._checkpoint(name)}")
        self._say("done")

    def _say(self, stage: str) -> None:
        """Write `app.json` if anything has changed."""
        if not self.settings.run_dir:
            return
        figures = {
            "pid": os.getpid(),
            "stage": stage,
            "queries": self.figures.rows(),
            "ui": self.spark.sparkContext.uiWebUrl,
            "metrics": self.metrics_url,
        }
        if figures != self._said:
            write_json(Path(self.settings.run_dir, "app.json"), figures)
            self._said = figures


def run(settings: Settings) -> int:
    """Run the application; returns its exit status. Raises Mistake, StreamingQueryException."""
    # Without this package a stateful query fails, and Spark says only that a worker "crashed".
    import_module("google.protobuf")
    rules = checked(settings)
    if settings.run_dir:
        try:
            Path(settings.run_dir).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(
                f"--run-dir={settings.run_dir} cannot be written: {error.strerror}"
            ) from None
    elif settings.lookupd_http_addresses:
        channels.check_cluster(settings)
    registry = process_registry()
    figures = QueryMetrics(registry)
    url = serve(registry, settings.metrics_address)
    with ExitStack() as stack:
        spark = session(settings)
        prepare_for_queries(spark)
        for name in settings.queries if settings.data.startswith("/") else ():
            stack.enter_context(lock(Path(settings.data), f".{name}.lock"))
        if settings.run_dir and settings.lookupd_http_addresses:
            channels.check_cluster(settings)  # now: nsqlookupd and Spark start at the same time
        application = Application(spark, settings, rules, figures, url)
        # After the session was made: PySpark installs a handler for SIGINT.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: application.end())
        application.start()
        application.run()
    return 0


def checked(settings: Settings) -> Rules:
    """Check the user's metrics and rules; returns the rules. Raises SettingsError: one is wrong."""
    try:
        metric_tables(settings)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    return read_rules(settings.rules, click_schema(settings.reading))


def metric_tables(settings: Settings) -> list[MetricTable]:
    """The user's metrics. Raises ValueError: an expression or a column of one is wrong."""
    clicks = click_schema(settings.reading)
    return [MetricTable(metric, clicks) for metric in settings.own_metrics]


if __name__ == "__main__":
    from sparq.pipeline.command import main

    sys.exit(main())
