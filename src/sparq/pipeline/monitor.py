"""Metrics of the streaming queries for Prometheus, from Spark's progress of each batch.

    serve(registry, "127.0.0.1:4180")
    QueryMetrics(registry).listen_to(spark)

docs/monitoring.md lists them. A figure that is not known has no sample: unknown is not 0. Labels
never contain text from clicks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from pyspark.sql import SparkSession

from sparq.daemon.address import join, split
from sparq.options.mistakes import Mistake

PREFIX: Final = "sparq_query_"
DURATION_BOUNDS: Final = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0)
# Names in observations, which `channels` makes: Spark itself counts other rows, and knows no times.
MESSAGES: Final = "messages"
NEWEST_PUBLISHED: Final = "newest_published_s"
WHOLE: Final = "triggerExecution"  # the part of `durationMs` that is the total
LISTENER: Final = "org.apache.spark.sql.streaming.PythonStreamingQueryListener"

COUNTS: Final = {
    "late": "Clicks that came too late for their visit, and are in one of their own",
    "rejected": "Messages that are not valid clicks",
    "evicted_visits": "Visits ended early for lack of room; further clicks begin another visit",
    "evicted_clicks": "Clicks of these visits",
    "findings": "Findings and revisions of findings",
}
"""Counters that a query may observe, as sums over a batch."""

COUNTERS: Final = {
    "starts": "Runs of the query started by this process",
    "restarts": "Runs that continued from an earlier run",
    "failures": "Runs that ended with an error",
    "batches": "Batches",
    "rows": "Messages read",
}
"""Counters that each query has from its start."""

GAUGES: Final = {
    "active": "1 while the query runs",
    "heard_timestamp_seconds": "Time of Spark's last event for the query, in seconds since 1970",
    "batch_id": "Number of the newest batch",
    "rows_per_second": "Messages of the newest batch divided by its duration; 0 while there is"
    " nothing to read",
    "lag_messages": "Messages in the logs after the end of the newest batch, when it was planned",
    "lag_seconds": "Age of the newest message read, at the end of its batch; 0 while there is"
    " nothing to read",
    "logs_out_of_reach": "Logs being read whose nsqd did not answer: their lag is unknown",
}
STATE: Final = {
    "state_rows": ("numRowsTotal", "Rows in the operator's state"),
    "state_memory_bytes": ("memoryUsedBytes", "Memory used by its state stores"),
    "state_disk_bytes": ("rocksdbSstFileSize", "Size of RocksDB's files of the state"),
    "state_updated_rows": ("numRowsUpdated", "Rows of the state written by the newest batch"),
    "state_removed_rows": ("numRowsRemoved", "Rows of the state removed by the newest batch"),
    "state_commit_seconds": ("commitTimeMs", "Time to commit the state, summed over its tasks"),
}
"""Figures of a stateful operator: Spark's name for each, and its meaning."""


@dataclass
class _Known:
    """What this process knows of a query."""

    name: str
    run_id: str = ""  # of the newest run; events of an older one may come after it has begun
    batch_id: int = -1  # of the newest batch, as logs_out_of_reach
    logs_out_of_reach: int = 0
    starts: int = 0
    rows: int = 0


class QueryMetrics:
    """The metrics of all queries of a session, from events of Spark's listener, as JSON.

    PySpark's own `StreamingQueryListener` asks the JVM for each figure separately, and looks up a
    class in all of Spark's jars for each observation: a tenth of the JVM's time in a run.
    """

    class Java:
        """The Java interface that this class implements for Py4J."""

        implements = (LISTENER,)

    def __init__(self, registry: CollectorRegistry) -> None:
        def made(kind: Callable[..., Any], name: str, text: str, *labels: str, **more: Any) -> Any:
            return kind(PREFIX + name, text, ["query", *labels], registry=registry, **more)

        counters = {**COUNTERS, **COUNTS}.items()
        self._counters = {name: made(Counter, name, text) for name, text in counters}
        self._gauges = {name: made(Gauge, name, text) for name, text in GAUGES.items()}
        self._state = {
            name: made(Gauge, name, text, "operator", "place") for name, (_, text) in STATE.items()
        }
        text = "Duration of each part of a batch, by Spark's names: latestOffset and so on"
        self._parts = made(Counter, "batch_part_seconds", text, "part")
        text, bounds = "Duration of batches, from the trigger to the commit", DURATION_BOUNDS
        self._durations = made(Histogram, "batch_duration_seconds", text, buckets=bounds)
        self._known: dict[str, _Known] = {}

    def listen_to(self, spark: SparkSession) -> None:
        """Get the events of a session's queries."""
        self._jlistener: Any = getattr(spark._jvm, f"{LISTENER}Wrapper")(self)
        spark.streams.addListener(self)

    def rows(self) -> dict[str, dict[str, int]]:
        """The messages that each query has read in this process: {query: {"rows": number}}."""
        return {known.name: {"rows": known.rows} for known in list(self._known.values())}

    def counted(self, query: str, name: str, number: float) -> None:
        """Add a number to a counter; a query's function for foreachBatch knows some, too."""
        self._counters[name].labels(query).inc(number)

    def onQueryStarted(self, java_event: Any) -> None:
        """Record the first or a later start of a query; Spark waits for this call."""
        event = json.loads(java_event.json())
        known = self._known.setdefault(event["id"], _Known(event["name"] or event["id"]))
        known.run_id = event["runId"]
        known.starts += 1
        for counter in COUNTERS:
            self.counted(known.name, counter, 0)
        self.counted(known.name, "starts", 1)
        self.counted(known.name, "restarts", known.starts > 1)
        self._durations.labels(known.name)
        self._set(known.name, active=1, heard_timestamp_seconds=_time_of(event["timestamp"]))

    def onQueryProgress(self, java_event: Any) -> None:
        """Record a finished batch."""
        progress = json.loads(java_event.json())["progress"]
        known = self._known[progress["id"]]
        name, batch_id = known.name, progress["batchId"]
        if known.batch_id >= batch_id:
            return  # a query that was started again repeats its last batch
        # The process may be new, and the query not: it continues from a checkpoint.
        self.counted(name, "restarts", known.batch_id < 0 < batch_id and known.starts == 1)
        behind, out_of_reach = lag(progress)
        known.batch_id, known.logs_out_of_reach = batch_id, out_of_reach
        seconds = progress["durationMs"][WHOLE] / 1000
        ended_s = _time_of(progress["timestamp"]) + seconds
        # Spark leaves the key out if nothing was observed.
        observed = progress.get("observedMetrics", {}).values()
        read = [row[MESSAGES] or 0 for row in observed if MESSAGES in row]
        rows = sum(read) if read else progress["numInputRows"]
        known.rows += rows
        published = [row[NEWEST_PUBLISHED] for row in observed if row.get(NEWEST_PUBLISHED)]
        self._set(
            name,
            heard_timestamp_seconds=ended_s,
            batch_id=batch_id,
            rows_per_second=rows / seconds if seconds else 0,
            lag_messages=behind,
            # Not negative, even if a publisher's clock is ahead.
            lag_seconds=max(ended_s - max(published), 0) if published else None,
            logs_out_of_reach=out_of_reach,
        )
        self._durations.labels(name).observe(seconds)
        for part, millis in progress["durationMs"].items():
            if part != WHOLE:
                self._parts.labels(name, part).inc(millis / 1000)
        self.counted(name, "batches", 1)
        self.counted(name, "rows", rows)
        for figures in observed:
            for count in COUNTS.keys() & figures.keys():
                self.counted(name, count, figures[count] or 0)
        for place, state in enumerate(progress["stateOperators"]):
            values = {**state, **state.get("customMetrics", {})}
            for figure, (key, _) in STATE.items():
                if key in values:  # all, if the state is in RocksDB
                    value = values[key] / (1000 if key.endswith("Ms") else 1)
                    self._state[figure].labels(name, state["operatorName"], place).set(value)

    def onQueryIdle(self, java_event: Any) -> None:
        """Record that a query found nothing, or less than `minOffsetsPerTrigger`, for 10 s."""
        event = json.loads(java_event.json())
        known, heard_s = self._known[event["id"]], _time_of(event["timestamp"])
        self._set(known.name, heard_timestamp_seconds=heard_s, rows_per_second=0)
        if known.batch_id >= 0 and not known.logs_out_of_reach:
            self._set(known.name, lag_messages=0, lag_seconds=0)

    def onQueryTerminated(self, java_event: Any) -> None:
        """Record the end of a query's run."""
        event = json.loads(java_event.json())
        known = self._known[event["id"]]
        self.counted(known.name, "failures", event.get("exception") is not None)
        # Spark may report the end of a run after the next one has begun.
        if event["runId"] == known.run_id:
            self._set(known.name, active=0)

    def _set(self, query: str, **values: float | None) -> None:
        for name, value in values.items():
            if value is None:
                self._gauges[name].remove(query)
            else:
                self._gauges[name].labels(query).set(value)


def _time_of(text: str) -> float:
    """A time as Spark writes it, in seconds since 1970."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def lag(progress: Mapping[str, Any]) -> tuple[int | None, int]:
    """(messages in the logs after the end of the batch, logs out of reach).

    Counted in ordinals, since indexes have gaps. A log that only `latestOffset` names joins with
    the next batch. None: no source is `nsq`, or it has not read the ends of the logs yet.
    """
    behind, out_of_reach = None, 0
    for source in progress["sources"]:
        end, latest = (source.get(name) for name in ("endOffset", "latestOffset"))
        if not (isinstance(end, Mapping) and isinstance(latest, Mapping)):
            continue
        behind = behind or 0
        for log, place in end.items():
            # Other keys say how the batch is split, or that a log was given up.
            if "/" in log and not place.get("gone"):
                newest = latest.get(log)
                out_of_reach += newest is None
                behind += max(newest["ordinal"] - place["ordinal"], 0) if newest else 0
    return behind, out_of_reach


def serve(registry: CollectorRegistry, address: str) -> str | None:
    """Serve the metrics at `host:port` from now on, without authentication; returns their URL."""
    place = split(address)
    if place is None:
        return None
    try:
        server, _ = start_http_server(place[1], place[0], registry)
    except OSError as error:
        reason = f"cannot listen on {address}: {error.strerror or error}"
        raise Mistake(f"--metrics-address: {reason}") from error
    return f"http://{join(place[0], server.server_port)}/metrics"
