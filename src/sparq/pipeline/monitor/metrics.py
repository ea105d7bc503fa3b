"""Metrics of the streaming queries for Prometheus (docs/monitoring.md lists them).

    registry = process_registry()
    metrics = QueryMetrics(registry)
    with served(registry, "127.0.0.1:4180") as url: ...

1. Counters start at 0 with the process. A batch is counted once, even if Spark reports it twice.
2. A figure that is not known has no sample: unknown is not 0.
3. Labels are a query's name, a part of a batch or an operator. They never contain text from clicks,
   and their number does not grow with the number of clicks.
4. The server has no authentication, so it listens on loopback unless another address is configured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from sparq.daemon.address import join, split
from sparq.pipeline.monitor.progress import (
    COUNTS,
    WHOLE,
    QuerySample,
    counts_of,
    lag,
    sample_of,
    seconds_of,
    time_of,
)
from sparq.program.mistakes import Mistake

PREFIX: Final = "sparq_query_"
DURATION_BOUNDS: Final = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0)
"""Bounds of a batch's duration in seconds: from a small batch to one that needs attention."""

COUNTERS: Final = {
    "starts": "Runs of the query started by this process",
    "restarts": "Runs that continued from an earlier run",
    "failures": "Runs that ended with an error",
    "batches": "Batches",
    "rows": "Messages read",
    "rows_dropped": "Rows dropped by Spark's watermark",
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
    "event_time_seconds": "Newest event time, in seconds since 1970",
    "watermark_seconds": "Spark's watermark, in seconds since 1970",
}
STATE: Final = {
    "state_rows": "Rows in the operator's state",
    "state_memory_bytes": "Memory used by its state stores",
    "state_disk_bytes": "Size of RocksDB's files of the state",
    "state_updated_rows": "Rows of the state written by the newest batch",
    "state_removed_rows": "Rows of the state removed by the newest batch",
    "state_commit_seconds": "Time to commit the state, summed over its tasks",
}

PARTS: Final = {
    "batch_part_seconds": "Duration of each part of a batch, by Spark's names: latestOffset,"
    " queryPlanning and so on"
}
DURATIONS: Final = {"batch_duration_seconds": "Duration of batches, from the trigger to the commit"}


@dataclass
class _Known:
    """What is known of a query in this process.

    Attributes:
        run_id: id of its newest run; events of an older run may arrive after the newest has begun.
        checkpoint: its id in Spark; another id has batches that are numbered from 0 again.
        batch_id, logs_out_of_reach: of its newest batch; -1 before the first.
    """

    run_id: str = ""
    checkpoint: str = ""
    batch_id: int = -1
    logs_out_of_reach: int = 0
    starts: int = 0
    batches: int = 0
    rows: int = 0


class QueryMetrics:
    """The metrics of all queries of a session, set by the events of Spark's listener."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def made(kind: Callable[..., Any], texts: Mapping[str, str], *labels: str) -> Any:
            return {
                name: kind(PREFIX + name, text, ["query", *labels], registry=registry)
                for name, text in texts.items()
            }

        self._counters: dict[str, Counter] = made(Counter, {**COUNTERS, **COUNTS})
        self._gauges: dict[str, Gauge] = made(Gauge, GAUGES)
        self._state: dict[str, Gauge] = made(Gauge, STATE, "operator", "place")
        self._parts: Counter = made(Counter, PARTS, "part")["batch_part_seconds"]
        durations = partial(Histogram, buckets=DURATION_BOUNDS)
        self._durations: Histogram = made(durations, DURATIONS)["batch_duration_seconds"]
        self._names: dict[str, str] = {}
        self._known: dict[str, _Known] = {}

    def totals(self) -> dict[str, dict[str, int]]:
        """The batches and rows of each query so far."""
        return {
            name: {"batches": known.batches, "rows": known.rows}
            for name, known in list(self._known.items())
        }

    def counted(self, query: str, name: str, number: int) -> None:
        """Add a number to a count of COUNTS, which the query's function for foreachBatch knows."""
        self._counters[name].labels(query).inc(number)

    def started(self, event: Mapping[str, Any]) -> None:
        """Record the first or a later start of a query."""
        name = self._names[event["id"]] = event["name"] or event["id"]
        known = self._known.setdefault(name, _Known())
        known.run_id = event["runId"]
        known.starts += 1
        for counter in COUNTERS:
            self._counters[counter].labels(name)
        self._counters["starts"].labels(name).inc()
        self._counters["restarts"].labels(name).inc(known.starts > 1)
        self._durations.labels(name)
        self._set(name, active=1, heard_timestamp_seconds=time_of(event["timestamp"]))

    def progressed(self, progress: Mapping[str, Any]) -> QuerySample | None:
        """Record a finished batch; None if it was recorded before."""
        sample = sample_of(progress)
        name, batch_id = sample.query, progress["batchId"]
        behind, out_of_reach = lag(progress)
        known = self._known[name]
        if known.checkpoint == progress["id"] and known.batch_id >= batch_id:
            return None  # a query that was started again repeats its last batch
        # The process may be new, and the query not: it continues from a checkpoint.
        continues = known.batch_id < 0 < batch_id and known.starts == 1
        known.checkpoint, known.batch_id = progress["id"], batch_id
        known.logs_out_of_reach = out_of_reach
        known.batches += 1
        known.rows += progress["numInputRows"]
        self._counters["restarts"].labels(name).inc(continues)
        self._set(
            name,
            heard_timestamp_seconds=sample.time_s,
            batch_id=batch_id,
            rows_per_second=sample.rows_per_second,
            lag_messages=behind,
            lag_seconds=sample.lag_seconds,
            logs_out_of_reach=out_of_reach,
            event_time_seconds=_event_time(progress, "max"),
            watermark_seconds=_event_time(progress, "watermark"),
        )
        self._count(name, progress)
        return sample

    def _count(self, name: str, progress: Mapping[str, Any]) -> None:
        self._counters["batches"].labels(name).inc()
        self._counters["rows"].labels(name).inc(progress["numInputRows"])
        self._durations.labels(name).observe(seconds_of(progress))
        for part, millis in progress["durationMs"].items():
            if part != WHOLE:
                self._parts.labels(name, part).inc(millis / 1000)
        for count, number in counts_of(progress).items():
            self.counted(name, count, number)
        for place, state in enumerate(progress["stateOperators"]):
            self._counters["rows_dropped"].labels(name).inc(state["numRowsDroppedByWatermark"])
            figures = {
                "state_rows": state["numRowsTotal"],
                "state_memory_bytes": state["memoryUsedBytes"],
                "state_disk_bytes": state.get("customMetrics", {}).get("rocksdbSstFileSize"),
                "state_updated_rows": state["numRowsUpdated"],
                "state_removed_rows": state["numRowsRemoved"],
                "state_commit_seconds": state["commitTimeMs"] / 1000,
            }
            for figure, value in figures.items():
                if value is not None:  # the state is not in RocksDB
                    self._state[figure].labels(name, state["operatorName"], place).set(value)

    def rested(self, event: Mapping[str, Any]) -> None:
        """Record that a query has found nothing to read, or less than `minOffsetsPerTrigger`."""
        name = self._names[event["id"]]
        self._set(name, heard_timestamp_seconds=time_of(event["timestamp"]), rows_per_second=0)
        known = self._known[name]
        if known.batch_id >= 0 and not known.logs_out_of_reach:
            self._set(name, lag_messages=0, lag_seconds=0)

    def ended(self, event: Mapping[str, Any]) -> None:
        """Record the end of a query's run."""
        name = self._names[event["id"]]
        self._counters["failures"].labels(name).inc(event.get("exception") is not None)
        # Spark may report the end of a run after the next one has begun.
        if event["runId"] == self._known[name].run_id:
            self._set(name, active=0)

    def _set(self, query: str, **values: float | None) -> None:
        for name, value in values.items():
            if value is None:
                self._gauges[name].remove(query)
            else:
                self._gauges[name].labels(query).set(value)


def _event_time(progress: Mapping[str, Any], name: str) -> float | None:
    """The time, or None: Spark's watermark is 1970 until it has moved."""
    text = progress.get("eventTime", {}).get(name)
    return (time_of(text) or None) if text else None


@contextmanager
def served(registry: CollectorRegistry, address: str) -> Iterator[str | None]:
    """Serve the metrics; yields their URL, None without an address.

    Args:
        registry: the metrics to serve.
        address: `host:port`; port 0 selects any free one. Empty: they are not served.

    Raises:
        Mistake: the server cannot listen there; the text names option, address and reason.
    """
    place = split(address)
    if place is None:
        yield None
        return
    try:
        server, thread = start_http_server(place[1], place[0], registry)
    except OSError as error:
        reason = error.strerror or str(error)
        raise Mistake(f"--metrics-address: cannot listen on {address}: {reason}") from error
    try:
        yield f"http://{join(place[0], server.server_port)}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
