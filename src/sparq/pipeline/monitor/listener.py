"""A listener that turns the progress of streaming queries into metrics.

    ProgressListener(QueryMetrics(registry)).add_to(spark)

1. It starts no job: it costs one call through Spark's gateway per batch.
2. Spark's progress has no publish times and no late clicks. Queries observe them (`channels`,
   `spam_analysis`).
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import SparkSession

from sparq.pipeline.monitor.metrics import QueryMetrics

WRAPPER = "org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper"


class ProgressListener:
    """Spark's listener, which gets each event of a session's queries as one JSON text.

    PySpark's own `StreamingQueryListener` asks the JVM for each figure of an event separately, and
    looks up a class in all of Spark's jars for each observation: a tenth of the JVM's computing
    time in a run.
    """

    def __init__(self, metrics: QueryMetrics) -> None:
        self._metrics = metrics

    def add_to(self, spark: SparkSession) -> None:
        """Register it with Spark."""
        self._jlistener: Any = getattr(spark._jvm, WRAPPER)(self)
        spark.streams.addListener(self)

    def onQueryStarted(self, event: Any) -> None:
        """Record that a query begins; Spark waits for this call."""
        self._metrics.started(json.loads(event.json()))

    def onQueryProgress(self, event: Any) -> None:
        """Record a finished batch."""
        self._metrics.progressed(json.loads(event.json())["progress"])

    def onQueryIdle(self, event: Any) -> None:
        """Record that a query has looked for messages for ten seconds and found none."""
        self._metrics.rested(json.loads(event.json()))

    def onQueryTerminated(self, event: Any) -> None:
        """Record that a query has ended."""
        self._metrics.ended(json.loads(event.json()))

    class Java:
        """The Java interface that this class implements for Py4J."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)
