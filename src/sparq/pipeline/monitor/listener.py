"""A listener that turns the progress of streaming queries into metrics and samples for charts.

    metrics, timeline = QueryMetrics(), Timeline()
    spark.streams.addListener(ProgressListener(metrics, timeline))
    server = MetricsServer(metrics, "127.0.0.1:4180")

1. It starts no job: it costs one call through Spark's gateway per batch.
2. Its memory is bounded: some sums per query, and the timeline.
3. Spark's progress has no publish times and no late clicks. A query adds them by `observed`.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark import SparkContext
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQueryListener
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)

from sparq.pipeline.monitor.metrics import QueryMetrics
from sparq.pipeline.monitor.progress import COUNTS, NEWEST_PUBLISHED, Timeline, parse, time_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

READ, WRITTEN = "sparq_read", "sparq_written"
"""Names of observations: within a query each must be different."""

WRAPPER = "org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper"


class ProgressListener(
    StreamingQueryListener  # type: ignore[misc] # mypy does not follow pyspark
):
    """Records the events of all queries of a session."""

    def __init__(self, metrics: QueryMetrics, timeline: Timeline) -> None:
        self._metrics = metrics
        self._timeline = timeline

    @cached_property
    def _jlistener(self) -> Any:
        """The Java object that PySpark registers with Spark in place of this one."""
        context = SparkContext._active_spark_context
        assert context is not None
        return getattr(context._jvm, WRAPPER)(_JavaListener(self))

    def onQueryStarted(self, event: Any) -> None:
        """Record that a query begins; Spark waits for this call."""
        at_s = time_of(event.timestamp)
        self._metrics.started(str(event.id), str(event.runId), event.name, at_s)

    def onQueryProgress(self, event: Any) -> None:
        """Record a finished batch."""
        progress = parse(json.loads(event.progress.json))
        if self._metrics.progressed(progress):
            self._timeline.add(progress.sample())

    def onQueryIdle(self, event: Any) -> None:
        """Record that a query has looked for messages for ten seconds and found none."""
        self._metrics.rested(str(event.id), time_of(event.timestamp))

    def onQueryTerminated(self, event: Any) -> None:
        """Record that a query has ended."""
        self._metrics.ended(str(event.id), str(event.runId), failed=event.exception is not None)


class _JavaListener:
    """Spark's listener, which gets each event from the JVM as one JSON text.

    PySpark's own listener asks the JVM for each figure of an event separately, and looks up a class
    in all of Spark's jars for each observation: a tenth of the JVM's computing time in a run.
    """

    def __init__(self, listener: ProgressListener) -> None:
        self._listener = listener

    def onQueryStarted(self, event: Any) -> None:
        self._listener.onQueryStarted(QueryStartedEvent.fromJson(json.loads(event.json())))

    def onQueryProgress(self, event: Any) -> None:
        self._listener.onQueryProgress(QueryProgressEvent.fromJson(json.loads(event.json())))

    def onQueryIdle(self, event: Any) -> None:
        self._listener.onQueryIdle(QueryIdleEvent.fromJson(json.loads(event.json())))

    def onQueryTerminated(self, event: Any) -> None:
        self._listener.onQueryTerminated(QueryTerminatedEvent.fromJson(json.loads(event.json())))

    class Java:
        """The Java interface that this class implements for Py4J."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


def observed(
    rows: DataFrame, name: str = READ, *, newest_published: Column | None = None, **counts: Column
) -> DataFrame:
    """Add figures of each batch, for the listener, to a stream of rows.

    The maximum publish time is right even if a batch's plan is executed more than once. A sum is
    not: the code after this must execute the plan of the rows once per batch (in `foreachBatch`:
    after `persist`).

    Args:
        rows: the stream.
        name: name of the observation; a different one for each call within a query.
        newest_published: for each row, the timestamp at which its newest message was published.
        counts: by name of `progress.COUNTS`: the whole number of each row to sum up.
    Raises:
        ValueError: a count is not one of COUNTS, or there is nothing to observe.
    """
    unknown = sorted(counts.keys() - COUNTS.keys())
    if unknown:
        raise ValueError(f"observed: unknown count {unknown[0]}; known: {', '.join(COUNTS)}")
    figures = [F.sum(column).alias(count) for count, column in counts.items()]
    if newest_published is not None:
        micros = F.unix_micros(newest_published.cast("timestamp"))
        figures.append((F.max(micros) / 1e6).alias(NEWEST_PUBLISHED))
    if not figures:
        raise ValueError("observed: give newest_published or a count")
    return rows.observe(name, *figures)
