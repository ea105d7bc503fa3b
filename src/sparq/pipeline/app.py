"""The Spark application: one session, three streaming queries over three channels of one topic.

    sparq pipeline --data URI --lookupd-http-address HOST:PORT
    spark-submit .../sparq/pipeline/app.py --data URI ...

1. It may be killed at any moment and started again: each query continues from its checkpoint, and
   needs nothing else.
2. SIGTERM and Ctrl-C stop the queries. The next start continues, and repeats a batch that was
   interrupted.
3. With `--run-dir` it ends by itself when the file `finish` appears in that folder: it processes
   the messages that have come, stops the queries, closes the open visits, and only then
   reports the stage `done`. The files that it writes there are for people and supervisors; no query
   needs them.
4. With `--once` it ends with status 0 once the messages that had come are processed. What is open
   stays in the checkpoints' state for the next run.
5. A query that fails ends the application with status 1; a supervisor may start it again.
6. A wrong setting ends it with one sentence, before any query starts.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from sparq.pipeline import archive, metrics, spam_analysis
from sparq.pipeline.checkpoints import PARTITIONS, is_unfinished, shuffle_partitions
from sparq.pipeline.cluster_check import check_cluster
from sparq.pipeline.hadoop_files import HadoopFiles
from sparq.pipeline.monitor.listener import WRITTEN, ProgressListener, observed
from sparq.pipeline.monitor.metrics import MetricsServer, QueryMetrics
from sparq.pipeline.monitor.progress import Timeline
from sparq.pipeline.own_metrics import MetricTable
from sparq.pipeline.publish import ResultTopics, messages
from sparq.pipeline.reading.schema import click_schema
from sparq.pipeline.run.folders import FolderAddresses, write_json
from sparq.pipeline.session import prepare_for_queries, register_nsq, session
from sparq.pipeline.sessions.pack import bucket_count
from sparq.pipeline.sessions.rules import Rules, read_rules
from sparq.pipeline.sessions.state import sessions_stage
from sparq.pipeline.settings import BATCH_BYTES, FIRST_OFFSETS, SettingsError, cluster_options
from sparq.program.mistakes import Mistake

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from sparq.pipeline.settings import Settings

POLL_SECONDS = 0.25
SAMPLES_SECONDS = 2.0
SOURCE_SECONDS = 60.0
INITIALIZING = "nitializing"
"""Part of Spark's status message while a query does not have its source yet."""

TOO_LATE = "connect back"
"""Part of Spark's error when a Python process did not connect within ten seconds."""

LATE_MAX = 3
"""Maximum restarts of a query for that reason, in one process."""

FINISH = "finish"
OWN_ERROR = re.compile(r"^(sparq\.[\w.]+: .+)$", re.M)
"""An error raised by sparq, inside Spark's message; its text is shown without a traceback."""


class QueryError(Mistake):
    """A query has failed with an error of sparq's own; the text is one sentence."""


class Counter:
    """A query, and how many batches and rows it has processed in this process.

    Attributes:
        late: restarts because a Python process connected too late.
    """

    def __init__(self, query: StreamingQuery) -> None:
        self.query = query
        self.batches = 0
        self.rows = 0
        self.late = 0
        self._last = -1

    def update(self) -> dict[str, int]:
        """Count the query's newest batches."""
        for progress in self.query.recentProgress:
            # `recentProgress` lists the same batches at each call, and a query that was started
            # again may repeat its last one.
            if progress.batchId > self._last and progress.numInputRows:
                self._last = progress.batchId
                self.batches += 1
                self.rows += progress.numInputRows
        return {"batches": self.batches, "rows": self.rows}


def wait_for_source(query: StreamingQuery) -> None:
    """Return when a query has its source, or has ended, or after SOURCE_SECONDS."""
    deadline = time.monotonic() + SOURCE_SECONDS
    while query.isActive and time.monotonic() < deadline:
        if query.lastProgress is not None or INITIALIZING not in query.status["message"]:
            return
        time.sleep(POLL_SECONDS)


def was_late(query: StreamingQuery) -> bool:
    """Whether a query has ended because a Python process connected too late."""
    return not query.isActive and TOO_LATE in str(query.exception())


@dataclass(frozen=True, slots=True)
class Plan:
    """A query before it is started.

    Attributes:
        rows: the stream that its batches come from.
        sink: the function for foreachBatch.
        close: writes what is open in the state of the query's checkpoint; None: the query has none.
    """

    rows: DataFrame
    sink: Callable[[DataFrame, int], None]
    close: Callable[[SparkSession, str], None] | None = None


@dataclass
class RunDir:
    """The local folder through which a supervisor watches the application and ends it."""

    folder: Path
    said: dict[str, Any] = field(default_factory=dict)
    samples_at: float = 0.0

    def wants_end(self) -> bool:
        """Whether the supervisor has asked the application to finish."""
        return (self.folder / FINISH).exists()

    def say(self, figures: dict[str, Any]) -> None:
        """Write `app.json` if anything has changed."""
        if figures != self.said:
            write_json(self.folder / "app.json", figures)
            self.said = figures

    def keep(self, timeline: Timeline) -> None:
        """Write `samples.json`, at most every SAMPLES_SECONDS."""
        if time.monotonic() - self.samples_at >= SAMPLES_SECONDS:
            write_json(self.folder / "samples.json", timeline.as_json())
            self.samples_at = time.monotonic()


class Application:
    """The queries, from start to end.

    Args:
        spark: the session.
        settings: the pipeline's settings.
        rules: those of `spam_analysis`.
        figures: the metrics of the queries.
        server: serves the metrics to Prometheus; None: they are not served.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        rules: Rules,
        figures: QueryMetrics,
        server: MetricsServer | None,
    ) -> None:
        self._spark = spark
        self._figures = figures
        self._server = server
        self._settings = settings
        self._rules = rules
        self._places = FolderAddresses(settings.data)
        self._files = HadoopFiles(spark)
        self._topics = self._result_topics()
        self._counters: dict[str, Counter] = {}
        self._plans: dict[str, Plan] = {}
        self._run_dir = RunDir(Path(settings.run_dir)) if settings.run_dir else None
        self._timeline = Timeline()
        self._ending = False

    def _result_topics(self) -> ResultTopics | None:
        topics = self._settings.result_topics
        if not topics:
            return None
        options = cluster_options(self._settings)
        return ResultTopics(options, topics["metrics"], topics["rejected"], topics["spam"])

    def start(self) -> None:
        """Start the queries, each from its checkpoint."""
        self._spark.streams.addListener(ProgressListener(self._figures, self._timeline))
        self._say("starting")
        for name in self._settings.queries:
            self._plans[name] = self._plan(name)
            self._begin(name)
        self._wait_for_sources()

    def _plan(self, name: str) -> Plan:
        register_nsq(self._spark)
        read = messages(self._spark, self._settings.channels[name], self._source_options(name))
        reading = self._settings.reading
        common, keep_days = (self._spark, self._places.data, self._topics), self._settings.keep_days
        if name == archive.QUERY:
            rows = observed(read, newest_published=F.col("timestamp"))
            rejected = partial(self._figures.counted, name, "rejected")
            sink = archive.archive_sink(
                *common, keep_days=keep_days, counted=rejected, reading=reading
            )
            return Plan(rows, sink)
        if name == metrics.QUERY:
            rows = observed(read, newest_published=F.col("timestamp"))
            own = metric_tables(self._settings)
            sink = metrics.metrics_sink(*common, keep_days=keep_days, own=own, reading=reading)
            return Plan(rows, sink)
        packed = spam_analysis.packed(read, self._rules, self._buckets(name), reading)
        packed = observed(packed, newest_published=F.timestamp_seconds("published_s"))
        stage = sessions_stage(packed, self._rules)
        rows = observed(stage, WRITTEN, **spam_analysis.counts_to_observe())
        sink = spam_analysis.spam_sink(*common, keep_days=keep_days)
        return Plan(rows, sink, partial(spam_analysis.close, sink, self._rules))

    def _source_options(self, name: str) -> dict[str, str]:
        most = self._settings.max_offsets_per_trigger
        return {
            "topic": self._settings.topic,
            "queryName": name,
            "firstOffsetsPerTrigger": str(min(FIRST_OFFSETS, most)),
            "maxOffsetsPerTrigger": str(most),
            "maxBytesPerTrigger": BATCH_BYTES,
            **cluster_options(self._settings),
        }

    def _buckets(self, name: str) -> int:
        """The number of buckets, fixed at the query's first start, whatever the cores are now."""
        frozen = shuffle_partitions(self._files, self._places.checkpoint_of(name))
        if frozen is None:
            frozen = int(self._spark.conf.get(PARTITIONS) or 0)
        return bucket_count(frozen)

    def _begin(self, name: str, *, last: bool = False) -> StreamingQuery:
        """Start a query; a last run processes the messages that are there, and ends."""
        plan = self._plans[name]
        trigger: dict[str, Any] = {"processingTime": self._settings.trigger}
        if last or self._settings.once:
            trigger = {"availableNow": True}
        register_nsq(self._spark)
        # A scheduler pool of its own: a long job of one query leaves task slots to the others.
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)
        query = (
            plan.rows.writeStream.foreachBatch(plan.sink)
            .queryName(name)
            .option("checkpointLocation", self._places.checkpoint_of(name))
            .trigger(**trigger)
            .start()
        )
        self._counters.setdefault(name, Counter(query)).query = query
        return query

    def _wait_for_sources(self) -> None:
        """Wait until the Python processes of all sources run.

        They load their libraries in parallel, which is fastest. Queries whose process was too late
        are started again one after the other.
        """
        for counter in self._counters.values():
            wait_for_source(counter.query)
        for name, counter in self._counters.items():
            while self._begin_again(name):
                wait_for_source(counter.query)

    def _begin_again(self, name: str) -> bool:
        """Start a query again if a Python process was too late for it; returns whether it did.

        Spark gives such a process ten seconds, and has no option for it. On a busy machine that can
        be too short, which is no reason to end the application.
        """
        counter = self._counters[name]
        if counter.late >= LATE_MAX or not was_late(counter.query):
            return False
        counter.late += 1
        self._begin(name)
        return True

    def end(self) -> None:
        """Let `run` stop the queries; for signal handlers."""
        # No threading.Event: its `set` would wait forever for the lock if the signal came while
        # `run`, in the same thread, held it.
        self._ending = True

    def run(self) -> None:
        """Process messages until a signal, the file `finish` or `--once` ends the application.

        Raises:
            QueryError, StreamingQueryException: a query has failed.
        """
        while not self._ending:
            self._watch()
            self._say("running")
            if self._run_dir is not None and self._run_dir.wants_end():
                self._finish()
                return
            if not any(counter.query.isActive for counter in self._counters.values()):
                # Only with `once`: `_watch` raises the error of a query that has failed.
                self._close()
                return
            time.sleep(POLL_SECONDS)
        for counter in self._counters.values():
            counter.query.stop()

    def _finish(self) -> None:
        """Process the messages that have come, stop the queries, close visits."""
        for counter in self._counters.values():
            counter.query.processAllAvailable()
        for counter in self._counters.values():
            counter.query.stop()
        for name in self._counters:
            # A query that was stopped in a batch may have written its rows, but not its state, from
            # which `close` writes more.
            if is_unfinished(self._files, self._places.checkpoint_of(name)):
                self._begin(name, last=True).awaitTermination()
        self._close()

    def _close(self) -> None:
        """Write what is open in the state of the queries, which have ended."""
        self._say("closing")
        for name, plan in self._plans.items():
            if plan.close is not None:
                plan.close(self._spark, self._places.checkpoint_of(name))
        self._say("done")

    def _watch(self) -> None:
        # Py4J's thread ends, and stays ended, when this process can open no file for a connection.
        # Then the JVM waits for `foreachBatch` forever, and no query fails.
        if not self._spark.sparkContext._gateway._callback_server.thread.is_alive():
            raise RuntimeError("Py4J's callback server has stopped: see its message above")
        for name, counter in self._counters.items():
            if counter.query.isActive or self._begin_again(name):
                continue
            try:
                counter.query.awaitTermination()  # raises the query's error
            except StreamingQueryException as error:
                own_errors = OWN_ERROR.findall(str(error))
                if not own_errors:
                    raise
                raise QueryError(f"query {name} failed: {own_errors[-1]}") from error

    def _say(self, stage: str) -> None:
        if self._run_dir is None:
            return
        queries = {name: counter.update() for name, counter in self._counters.items()}
        self._run_dir.say(
            {
                "pid": os.getpid(),
                "stage": stage,
                "queries": queries,
                "ui": self._spark.sparkContext.uiWebUrl,
                "metrics": self._server.url if self._server is not None else None,
                "error": None,
            }
        )
        self._run_dir.keep(self._timeline)


def run(settings: Settings) -> int:
    """Run the application; returns its exit status.

    Raises:
        Mistake: a setting is wrong, or a query has failed with an error of sparq's own.
        StreamingQueryException: a query has failed.
    """
    # Without this package a stateful query fails, and Spark says only that a worker "crashed".
    import_module("google.protobuf")
    metric_tables(settings)
    rules = read_rules(settings.rules, click_schema(settings.reading))
    check_run_dir(settings.run_dir)
    if not settings.run_dir:
        check_cluster(settings)
    figures = QueryMetrics()
    address = settings.metrics_address
    server = MetricsServer(figures, address) if address else None
    try:
        spark = session(settings)
        prepare_for_queries(spark)
        if settings.run_dir:
            check_cluster(settings)  # only now: nsqlookupd and Spark start at the same time
        application = Application(spark, settings, rules, figures, server)
        # After the session was made: PySpark installs a handler for SIGINT.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: application.end())
        application.start()
        application.run()
    finally:
        if server is not None:
            server.close()
    return 0


def metric_tables(settings: Settings) -> list[MetricTable]:
    """The user's metrics, checked.

    Raises:
        SettingsError: an expression or a column of one is wrong.
    """
    try:
        return [
            MetricTable(metric, click_schema(settings.reading)) for metric in settings.own_metrics
        ]
    except ValueError as error:
        raise SettingsError(str(error)) from None


def check_run_dir(folder: str) -> None:
    """Create the folder of `--run-dir`, if one is given.

    Raises:
        SettingsError: it cannot be created, or is not writable.
    """
    if not folder:
        return
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise SettingsError(f"--run-dir={folder} cannot be written: {error.strerror}") from None


if __name__ == "__main__":
    from sparq.pipeline.command import main

    sys.exit(main())
