"""Metrics of the streaming queries for Prometheus (docs/monitoring.md lists them).

`QueryMetrics` receives the events of queries, and its `collect` returns metric families. It needs
neither Spark nor a network: `listener` passes it the events. `MetricsServer` serves these metrics
and those of this process at `GET /metrics`.

1. Counters start at 0 with the process. A batch is counted once, even if Spark reports it twice.
2. Labels are a query's name, a part of a batch or an operator. They never contain text from clicks,
   and their number does not grow with the number of clicks.
3. Events arrive on threads of Spark's gateway, scrapes on threads of the HTTP server. A lock
   protects the shared state.
4. The server has no authentication, so it listens on loopback unless another address is configured.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from prometheus_client import start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from sparq.daemon.address import join, split
from sparq.daemon.prometheus_text import process_registry
from sparq.pipeline.monitor.progress import COUNTS, QueryProgress, StateFigures
from sparq.program.mistakes import Mistake

PREFIX: Final = "sparq_query_"
DURATION_BOUNDS: Final = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0)
"""Bounds of a batch's duration in seconds: from a small batch to one that needs attention."""


@dataclass
class Query:
    """The figures of one query.

    Attributes:
        run_id: id of its newest run; events of an older run may arrive after the newest has begun.
        heard_s: time of Spark's last event for it, in seconds since 1970.
        newest: its newest batch, with later updates of the lag.
    """

    run_id: str = ""
    active: bool = False
    starts: int = 0
    restarts: int = 0
    failures: int = 0
    heard_s: float = 0.0
    newest: QueryProgress | None = None
    idle: bool = False
    batches: int = 0
    rows: int = 0
    dropped: int = 0
    seconds: float = 0.0
    durations: list[int] = field(default_factory=lambda: [0] * (len(DURATION_BOUNDS) + 1))
    parts: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def start(self, run_id: str, at_s: float) -> None:
        """Record that a run of the query begins."""
        self.run_id, self.active, self.heard_s = run_id, True, at_s
        self.starts += 1
        self.restarts += self.starts > 1

    def end(self, run_id: str, *, failed: bool) -> None:
        """Record that a run has ended."""
        self.failures += failed
        # Spark may report the end of a run after the next one has begun.
        if run_id == self.run_id:
            self.active = False

    def rest(self, at_s: float) -> None:
        """Record that there was nothing to read, or too little (`minOffsetsPerTrigger`)."""
        self.heard_s, self.idle = at_s, True
        if self.newest is not None and not self.newest.logs_out_of_reach:
            self.newest = replace(self.newest, lag_messages=0, lag_seconds=0.0)

    def take(self, progress: QueryProgress) -> bool:
        """Count a batch; returns False if it was counted before."""
        before, self.newest = self.newest, progress
        self.heard_s, self.idle = progress.ended_s, False
        if before is None:
            # The process is new, but the query is not: it continues from a checkpoint.
            self.restarts += progress.batch_id > 0 and self.starts <= 1
        # A query that was started again may repeat its last batch. Another query id means a new
        # checkpoint, whose batches are numbered from 0 again.
        elif before.query_id == progress.query_id and before.batch_id >= progress.batch_id:
            return False
        self._count(progress)
        return True

    def _count(self, progress: QueryProgress) -> None:
        self.batches += 1
        self.rows += progress.rows
        self.seconds += progress.seconds
        self.durations[bisect_left(DURATION_BOUNDS, progress.seconds)] += 1
        self.dropped += sum(state.dropped for state in progress.states)
        for part, seconds in progress.parts.items():
            self.parts[part] = self.parts.get(part, 0.0) + seconds
        for name, count in progress.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count


class QueryMetric(NamedTuple):
    """A figure of a query as a metric; with the value None the query has no sample."""

    name: str
    text: str
    value: Callable[[Query], float | None]


def _of_newest(value: Callable[[QueryProgress], float | None]) -> Callable[[Query], float | None]:
    return lambda query: None if query.newest is None else value(query.newest)


_COUNTERS: Final = (
    QueryMetric("starts", "Runs of the query started by this process", lambda q: q.starts),
    QueryMetric("restarts", "Runs that continued from an earlier run", lambda q: q.restarts),
    QueryMetric("failures", "Runs that ended with an error", lambda q: q.failures),
    QueryMetric("batches", "Batches", lambda q: q.batches),
    QueryMetric("rows", "Messages read", lambda q: q.rows),
    QueryMetric("rows_dropped", "Rows dropped by Spark's watermark", lambda q: q.dropped),
)
_GAUGES: Final = (
    QueryMetric("active", "1 while the query runs", lambda q: int(q.active)),
    QueryMetric(
        "heard_timestamp_seconds",
        "Time of Spark's last event for the query, in seconds since 1970",
        lambda q: q.heard_s or None,
    ),
    QueryMetric("batch_id", "Number of the newest batch", _of_newest(lambda p: p.batch_id)),
    QueryMetric(
        "rows_per_second",
        "Messages of the newest batch divided by its duration; 0 while there is nothing to read",
        lambda q: 0.0 if q.idle else _of_newest(lambda p: p.rows_per_second)(q),
    ),
    QueryMetric(
        "lag_messages",
        "Messages in the logs after the end of the newest batch, when it was planned",
        _of_newest(lambda p: p.lag_messages),
    ),
    QueryMetric(
        "lag_seconds",
        "Age of the newest message read, at the end of its batch; 0 while there is nothing to read",
        _of_newest(lambda p: p.lag_seconds),
    ),
    QueryMetric(
        "logs_out_of_reach",
        "Logs being read whose nsqd did not answer: their lag is unknown",
        _of_newest(lambda p: p.logs_out_of_reach),
    ),
    QueryMetric(
        "event_time_seconds",
        "Newest event time, in seconds since 1970",
        _of_newest(lambda p: p.event_time_s),
    ),
    QueryMetric(
        "watermark_seconds",
        "Spark's watermark, in seconds since 1970",
        _of_newest(lambda p: p.watermark_s),
    ),
)
_STATE: Final[tuple[tuple[str, str, Callable[[StateFigures], float | None]], ...]] = (
    ("rows", "Rows in the operator's state", lambda s: s.rows),
    ("memory_bytes", "Memory used by its state stores", lambda s: s.memory_bytes),
    ("disk_bytes", "Size of RocksDB's files of the state", lambda s: s.disk_bytes),
    ("updated_rows", "Rows of the state written by the newest batch", lambda s: s.updated),
    ("removed_rows", "Rows of the state removed by the newest batch", lambda s: s.removed),
    (
        "commit_seconds",
        "Time to commit the state, summed over its tasks",
        lambda s: s.commit_seconds,
    ),
)


class QueryMetrics(Collector):
    """All queries of a Spark session, as a collector for a registry of the Prometheus client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, Query] = {}
        self._names: dict[str, str] = {}

    def started(self, query_id: str, run_id: str, name: str | None, at_s: float) -> None:
        """Record the first or a later start of a query, at a time in seconds since 1970."""
        with self._lock:
            self._names[query_id] = name or query_id
            self._query(query_id).start(run_id, at_s)

    def progressed(self, progress: QueryProgress) -> bool:
        """Record a finished batch; returns False if it was recorded before."""
        with self._lock:
            self._names[progress.query_id] = progress.query
            return self._query(progress.query_id).take(progress)

    def counted(self, query: str, name: str, number: int) -> None:
        """Add a number to a count of COUNTS, which the query's function for foreachBatch knows."""
        with self._lock:
            counts = self._queries.setdefault(query, Query()).counts
            counts[name] = counts.get(name, 0) + number

    def rested(self, query_id: str, at_s: float) -> None:
        """Record that a query found no messages, at a time in seconds since 1970."""
        with self._lock:
            self._query(query_id).rest(at_s)

    def ended(self, query_id: str, run_id: str, *, failed: bool) -> None:
        """Record the end of a query's run."""
        with self._lock:
            self._query(query_id).end(run_id, failed=failed)

    def _query(self, query_id: str) -> Query:
        return self._queries.setdefault(self._names.get(query_id, query_id), Query())

    def describe(self) -> list[Metric]:
        """Return nothing: otherwise a registry would collect all figures to learn their names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The families of metrics, each with one sample per query."""
        with self._lock:
            # A list: a generator would hold the lock until the server has taken the last family,
            # while the listener waits to record a batch.
            families = list(_families(self._queries))
        yield from families


def _families(queries: dict[str, Query]) -> Iterator[Metric]:
    for kind, figures in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
        for shown in figures:
            family = kind(PREFIX + shown.name, shown.text, labels=["query"])
            for name, query in queries.items():
                if (value := shown.value(query)) is not None:
                    family.add_metric([name], value)
            yield family
    yield _durations(queries)
    yield _parts(queries)
    yield from _counts(queries)
    yield from _states(queries)


def _durations(queries: dict[str, Query]) -> Metric:
    text = "Duration of batches, from the trigger to the commit"
    family = HistogramMetricFamily(f"{PREFIX}batch_duration_seconds", text, labels=["query"])
    bounds = [*(str(bound) for bound in DURATION_BOUNDS), "+Inf"]
    for name, query in queries.items():
        below, buckets = 0, []
        for bound, count in zip(bounds, query.durations, strict=True):
            below += count
            buckets.append((bound, float(below)))
        family.add_metric([name], buckets, query.seconds)
    return family


def _parts(queries: dict[str, Query]) -> Metric:
    text = (
        "Duration of each part of a batch, by Spark's names: latestOffset, queryPlanning and so on"
    )
    labels = ["query", "part"]
    family = CounterMetricFamily(f"{PREFIX}batch_part_seconds", text, labels=labels)
    for name, query in queries.items():
        for part, seconds in query.parts.items():
            family.add_metric([name, part], seconds)
    return family


def _counts(queries: dict[str, Query]) -> Iterator[Metric]:
    for count, text in COUNTS.items():
        family = CounterMetricFamily(PREFIX + count, text, labels=["query"])
        for name, query in queries.items():
            if count in query.counts:
                family.add_metric([name], query.counts[count])
        yield family


def _states(queries: dict[str, Query]) -> Iterator[Metric]:
    for suffix, text, value in _STATE:
        labels = ["query", "operator", "place"]
        family = GaugeMetricFamily(f"{PREFIX}state_{suffix}", text, labels=labels)
        for name, query in queries.items():
            for state in query.newest.states if query.newest else ():
                if (found := value(state)) is not None:
                    family.add_metric([name, state.operator, str(state.place)], found)
        yield family


DEFAULT_ADDRESS: Final = "127.0.0.1:4180"


class MetricsAddressError(Mistake):
    """The server cannot listen on the address; the text names option, address and reason."""


class MetricsServer:
    """Serves metrics until it is closed.

    Args:
        figures: the metrics to serve.
        address: `host:port`; port 0 selects any free one.
        option: name of the option that sets the address, for errors.
    Raises:
        MetricsAddressError: the address is invalid, or the server cannot listen there.
    """

    def __init__(
        self, figures: Collector, address: str = DEFAULT_ADDRESS, option: str = "--metrics-address"
    ) -> None:
        place = split(address)
        if place is None or not place[0]:
            raise MetricsAddressError(
                f"{option}: expected host:port, such as {DEFAULT_ADDRESS}, not {address!r}"
            )
        registry = process_registry()
        registry.register(figures)
        try:
            self._server, self._thread = start_http_server(place[1], place[0], registry)
        except OSError as error:
            reason = error.strerror or str(error)
            raise MetricsAddressError(f"{option}: cannot listen on {address}: {reason}") from error
        self.address = join(place[0], self._server.server_port)

    @property
    def url(self) -> str:
        """The URL of the metrics."""
        return f"http://{self.address}/metrics"

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
