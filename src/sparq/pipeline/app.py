"""The Spark application: one session, three streaming queries over three channels of one topic.

    sparq pipeline --data URI --lookupd-http-address HOST:PORT
    spark-submit .../sparq/pipeline/app.py --data URI ...

1. It may be killed at any moment and started again: each query goes on from its checkpoint, which
   is all that it needs.
2. SIGTERM and Ctrl-C stop the queries. The next start goes on, and runs a batch that was under way
   again.
3. With `--run-dir` it ends by itself when the file `finish` is in that folder: what has come is
   processed, the queries stop, the open minutes and visits are closed, and only then is its stage
   `done`. What it says of itself there is for people and supervisors; no query needs it.
4. A query that fails ends the application with status 1; who started it may start it again.
5. A mistake in a setting ends it in one sentence, before any query starts.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from sparq.pipeline import archive, archive_formats, metrics, spam_analysis
from sparq.pipeline.checkpoints import PARTITIONS, next_batch, shuffle_partitions
from sparq.pipeline.compaction import Sizes
from sparq.pipeline.first_look import check_cluster, cluster_options
from sparq.pipeline.folders import Places, write_json
from sparq.pipeline.hadoop_files import HadoopFiles
from sparq.pipeline.listener import WRITTEN, ProgressListener, observed
from sparq.pipeline.messages import messages
from sparq.pipeline.minutes_state import processor as minutes_processor
from sparq.pipeline.open_visits import processor as visits_processor
from sparq.pipeline.packing import bucket_count
from sparq.pipeline.query_metrics import MetricsServer, QueryMetrics
from sparq.pipeline.query_progress import Timeline
from sparq.pipeline.results import ResultTopics
from sparq.pipeline.session import register_nsq, session
from sparq.pipeline.settings import SettingsError
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
"""In Spark's words for what a query does before it has its source."""

TOO_LATE = "connect back"
"""In Spark's error for a Python process that did not connect within ten seconds."""

LATE_MAX = 3
"""How often a query is started again for that, in one process."""

FINISH = "finish"
OWN_ERROR = re.compile(r"^(sparq\.[\w.]+: .+)$", re.M)
"""An error of sparq's in what Spark tells of a query: its words need no traceback."""


class QueryError(Mistake):
    """A query has failed for a reason that sparq has words for; the text is one sentence."""


class Counter:
    """A query, and how many batches and rows it has processed in this process.

    Attributes:
        late: how often it was started again because a Python process was too late.
    """

    def __init__(self, query: StreamingQuery) -> None:
        self.query = query
        self.batches = 0
        self.rows = 0
        self.late = 0
        self._last = -1

    def update(self) -> dict[str, int]:
        """Take in what the query says of its newest batches."""
        for progress in self.query.recentProgress:
            if progress.batchId > self._last and progress.numInputRows:
                self._last = progress.batchId
                self.batches += 1
                self.rows += progress.numInputRows
        return {"batches": self.batches, "rows": self.rows}


def wait_for_source(query: StreamingQuery) -> None:
    """Return when a query has its source, or has ended."""
    deadline = time.monotonic() + SOURCE_SECONDS
    while query.isActive and time.monotonic() < deadline:
        if query.lastProgress is not None or INITIALIZING not in query.status["message"]:
            return
        time.sleep(POLL_SECONDS)


def was_late(query: StreamingQuery) -> bool:
    """Whether a query has ended because a Python process was too late for Spark."""
    return not query.isActive and TOO_LATE in str(query.exception())


@dataclass(frozen=True, slots=True)
class Plan:
    """A query before it is started.

    Attributes:
        rows: the stream that its batches are made of.
        sink: what foreachBatch calls.
        close: writes what is still open, as the batch of this number; None: nothing is.
    """

    rows: DataFrame
    sink: Callable[[DataFrame, int], None]
    close: Callable[[SparkSession, int], None] | None = None


@dataclass
class RunDir:
    """The local folder through which a supervisor looks at the application, and ends it."""

    folder: Path
    said: dict[str, Any] = field(default_factory=dict)
    samples_at: float = 0.0

    def wants_end(self) -> bool:
        """Whether nothing more will come."""
        return (self.folder / FINISH).exists()

    def say(self, figures: dict[str, Any]) -> None:
        """Write `app.json`."""
        if figures != self.said:
            write_json(self.folder / "app.json", figures)
            self.said = figures

    def keep(self, timeline: Timeline) -> None:
        """Write `samples.json`, not more often than people can look at it."""
        if time.monotonic() - self.samples_at >= SAMPLES_SECONDS:
            write_json(self.folder / "samples.json", timeline.as_json())
            self.samples_at = time.monotonic()


class Application:
    """The queries, from start to end.

    Args:
        spark: the session.
        settings: which queries, and how.
        figures: the metrics of the queries.
        server: shows them to Prometheus; None: nobody does.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        figures: QueryMetrics,
        server: MetricsServer | None,
    ) -> None:
        self._spark = spark
        self._figures = figures
        self._server = server
        self._settings = settings
        self._places = Places(settings.data)
        self._files = HadoopFiles(spark)
        self._topics = self._result_topics()
        self._counters: dict[str, Counter] = {}
        self._plans: dict[str, Plan] = {}
        self._run_dir = RunDir(Path(settings.run_dir)) if settings.run_dir else None
        self._timeline = Timeline()
        self.ending = threading.Event()

    def _result_topics(self) -> ResultTopics | None:
        topics = self._settings.result_topics
        if not topics:
            return None
        options = cluster_options(self._settings)
        return ResultTopics(options, topics["metrics"], topics["rejected"], topics["spam"])

    def start(self) -> None:
        """Start the queries, each where its checkpoint says."""
        self._spark.streams.addListener(ProgressListener(self._figures, self._timeline))
        self._say("starting")
        for name in self._settings.queries:
            self._plans[name] = self._plan(name)
            self._begin(name)
        self._wait_for_sources()

    def _plan(self, name: str) -> Plan:
        register_nsq(self._spark)
        read = messages(self._spark, self._settings.channels[name], self._source_options(name))
        if name == archive.QUERY:
            archived = observed(archive.archived(read), newest_published=F.col("timestamp"))
            chosen, place = self._settings.archive_format, self._places.archive
            return Plan(archived, archive_formats.sink(self._spark, chosen, place, self._sizes()))
        buckets = self._buckets(name)
        newest = F.timestamp_seconds("published_s")
        if name == metrics.QUERY:
            packed = minutes_processor.packed(read, buckets)
            packed = observed(packed, newest_published=newest)
            counted = metrics.MetricsSink(self._places, self._topics)
            rows = observed(
                minutes_processor.minute_rows(packed), WRITTEN, **metrics.counts_to_observe()
            )
            return Plan(rows, counted, counted.close)
        packed = observed(visits_processor.packed(read, buckets), newest_published=newest)
        judged = spam_analysis.SpamSink(self._places, self._topics)
        rows = observed(
            visits_processor.found(packed), WRITTEN, **spam_analysis.counts_to_observe()
        )
        return Plan(rows, judged, judged.close)

    def _source_options(self, name: str) -> dict[str, str]:
        settings = self._settings
        options = {"topic": settings.topic, "queryName": name, **cluster_options(settings)}
        if name != archive.QUERY:
            return {**options, "maxOffsetsPerTrigger": str(settings.max_offsets_per_trigger)}
        options["maxOffsetsPerTrigger"] = str(settings.archive_max_offsets)
        if settings.archive_min_offsets:
            options["minOffsetsPerTrigger"] = str(settings.archive_min_offsets)
            options["maxTriggerDelay"] = f"{settings.archive_max_delay_ms}ms"
        return options

    def _sizes(self) -> Sizes | None:
        """When files of the archive are merged."""
        target = self._settings.archive_file_bytes
        return Sizes(target // 2, target, 8 * target) if target else None

    def _buckets(self, name: str) -> int:
        """As many as at the query's first start, on however many cores it runs today."""
        frozen = shuffle_partitions(self._files, self._places.checkpoint_of(name))
        if frozen is None:
            frozen = int(self._spark.conf.get(PARTITIONS) or 0)
        return bucket_count(frozen)

    def _begin(self, name: str, **trigger: Any) -> StreamingQuery:
        plan = self._plans[name]
        register_nsq(self._spark)
        # A pool of its own: a long job of one query leaves tasks to the others.
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)
        query = (
            plan.rows.writeStream.foreachBatch(plan.sink)
            .queryName(name)
            .option("checkpointLocation", self._places.checkpoint_of(name))
            .trigger(**(trigger or {"processingTime": self._settings.trigger}))
            .start()
        )
        self._counters.setdefault(name, Counter(query)).query = query
        return query

    def _wait_for_sources(self) -> None:
        """Let the sources' Python processes come up.

        They load their libraries side by side, which is the quickest. Those that were late are
        started again one after the other.
        """
        for counter in self._counters.values():
            wait_for_source(counter.query)
        for name, counter in self._counters.items():
            while self._begin_again(name):
                wait_for_source(counter.query)

    def _begin_again(self, name: str) -> bool:
        """Start a query again if a Python process was too late for it; whether that was so.

        Spark gives such a process ten seconds, which no option changes. On a busy machine that is
        too little, but no reason to end.
        """
        counter = self._counters[name]
        if counter.late >= LATE_MAX or not was_late(counter.query):
            return False
        counter.late += 1
        self._begin(name)
        return True

    def run(self) -> None:
        """Process until told to end.

        Raises:
            QueryError, StreamingQueryException: a query has failed.
        """
        while not self.ending.wait(POLL_SECONDS):
            self._watch()
            self._say("running")
            if self._run_dir is not None and self._run_dir.wants_end():
                self._finish()
                return
        for counter in self._counters.values():
            counter.query.stop()

    def _finish(self) -> None:
        """Process what has come, stop, and close what is open."""
        waits = {archive.QUERY} if self._settings.archive_min_offsets else set()
        for name in self._counters.keys() - waits:
            self._counters[name].query.processAllAvailable()
        for counter in self._counters.values():
            counter.query.stop()
        for name in self._counters.keys() & waits:
            # It may be waiting for more messages: a last run takes what is there.
            self._begin(name, availableNow=True).awaitTermination()
        self._say("closing")
        for name, plan in self._plans.items():
            if plan.close is not None:
                checkpoint = self._places.checkpoint_of(name)
                plan.close(self._spark, next_batch(self._files, checkpoint))
        self._say("done")

    def _watch(self) -> None:
        # The thread ends for good when this process has no file left for a connection. Then the
        # JVM waits for `foreachBatch` without end, and no query fails.
        if not self._spark.sparkContext._gateway._callback_server.thread.is_alive():
            raise RuntimeError("Py4J takes no calls of the JVM any more: see its message above")
        for name, counter in self._counters.items():
            if counter.query.isActive or self._begin_again(name):
                continue
            try:
                counter.query.awaitTermination()  # raises what ended it
            except StreamingQueryException as error:
                said = OWN_ERROR.findall(str(error))
                if not said:
                    raise
                raise QueryError(f"query {name} has failed: {said[-1]}") from error

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
    """The application, from its session to its end; the exit status.

    Raises:
        Mistake: a setting is wrong, or a query has failed for a reason that sparq has words for.
        StreamingQueryException: a query has failed.
    """
    # Where it is missing, Spark says of a stateful query that a worker "crashed", and no more.
    import_module("google.protobuf")
    if archive.QUERY in settings.queries:
        archive_formats.check_packages(settings.archive_format)
    check_run_dir(settings.run_dir)
    if not settings.run_dir:
        check_cluster(settings)
    figures = QueryMetrics()
    address = settings.metrics_address
    server = MetricsServer(figures, address) if address else None
    try:
        spark = session(settings)
        if settings.run_dir:
            check_cluster(settings)  # only now: nsqlookupd and Spark start side by side
        application = Application(spark, settings, figures, server)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: application.ending.set())
        application.start()
        application.run()
    finally:
        if server is not None:
            server.close()
    return 0


def check_run_dir(folder: str) -> None:
    """Make the folder of `--run-dir`, if one is named.

    Raises:
        SettingsError: it cannot be made, or nobody may write there.
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
