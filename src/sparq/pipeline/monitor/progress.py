"""Spark's progress of a batch as rate, duration, lag, state and counts; samples of it during a run.

Pure: the JSON of a `StreamingQueryProgress` in, a `QueryProgress` out. After each batch the
listener adds a `QuerySample` of it to a `Timeline`, from which the report's page draws its charts.

1. *Lag in messages*: messages in the logs after the end of the batch, when it was planned: the
   source's `latestOffset` minus its `endOffset`, counted in ordinals, never in indexes. A log that
   only one of the two offsets names is not counted: it joins with the next batch, or its nsqd is
   out of reach (`logs_out_of_reach` is the number of these).
2. *Lag in seconds*: the end of the batch minus the publish time of the newest message that it read.
   So it is the age of the newest message whose result is visible. Spark's progress has no publish
   times: a query reports them as NEWEST_PUBLISHED of an observation (`listener.observed`).
3. Event times come from the clicks, and may be years old in a log that is read again: they are
   shown unchanged, and no lag is computed from them.
4. Counts (late clicks, ...) are those that a query observed under a name of COUNTS, in this batch.
5. At most LIMIT samples of a query are kept. If there are more, each two neighbours become one
   sample with their mean rate and their greater lag: peaks survive, and recent samples keep their
   detail.
6. Samples go through a JSON file from the Spark driver to the process that writes the report. They
   are for people only: no query needs them to continue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

Number = TypeVar("Number", int, float)

LIMIT = 1_000


@dataclass(frozen=True, slots=True)
class QuerySample:
    """One query after one batch.

    Attributes:
        time_s: end of the batch, in seconds since 1970.
        query: the query's name.
        rows_per_second: messages of the batch divided by its duration.
        lag_messages: messages in the logs after the end of this batch; None: not known.
        lag_seconds: age of the batch's newest message, from its publishing to the end of the batch;
            None: not known.
    """

    time_s: float
    query: str
    rows_per_second: float
    lag_messages: int | None = None
    lag_seconds: float | None = None


class Timeline:
    """The samples of all queries, limited in number."""

    def __init__(self, samples: Iterable[QuerySample] = (), limit: int = LIMIT) -> None:
        self._limit = limit
        self._kept: dict[str, list[QuerySample]] = defaultdict(list)
        for sample in samples:
            self.add(sample)

    def add(self, sample: QuerySample) -> None:
        """Add one sample."""
        kept = self._kept[sample.query]
        kept.append(sample)
        if len(kept) > self._limit:
            self._kept[sample.query] = thinned(kept)

    @property
    def samples(self) -> list[QuerySample]:
        """All samples that are kept, grouped by query, in the order in which they were added."""
        return [sample for kept in self._kept.values() for sample in kept]

    def as_json(self) -> list[dict[str, Any]]:
        """All samples that are kept, for a JSON file."""
        return [asdict(sample) for sample in self.samples]


def from_json(value: Iterable[dict[str, Any]]) -> list[QuerySample]:
    """Decode the samples of `Timeline.as_json`."""
    return [QuerySample(**fields) for fields in value]


def thinned(samples: list[QuerySample]) -> list[QuerySample]:
    """Merge each two neighbours of one query; if the number is odd, the newest stays alone."""
    pairs = zip(samples[::2], samples[1::2], strict=False)
    return [_merged(*pair) for pair in pairs] + samples[len(samples) // 2 * 2 :]


def _merged(first: QuerySample, second: QuerySample) -> QuerySample:
    return QuerySample(
        second.time_s,
        second.query,
        (first.rows_per_second + second.rows_per_second) / 2,
        _greater(first.lag_messages, second.lag_messages),
        _greater(first.lag_seconds, second.lag_seconds),
    )


def _greater(one: Number | None, other: Number | None) -> Number | None:
    known = [value for value in (one, other) if value is not None]
    return max(known) if known else None


NEWEST_PUBLISHED = "newest_published_s"
"""Name in an observation: maximum publish time of the messages read, in seconds since 1970."""

COUNTS = {
    "late": "Clicks that came too late for their visit, and are in one of their own",
    "rejected": "Messages that are not valid clicks",
    "evicted_visits": "Visits ended early for lack of room; further clicks begin another visit",
    "evicted_clicks": "Clicks of these visits",
    "findings": "Findings and revisions of findings",
}
"""Counts that a query may observe, as sums over a batch, with their meaning."""

WHOLE = "triggerExecution"
"""The part of `durationMs` that is the total."""

DISK_BYTES = "rocksdbSstFileSize"


@dataclass(frozen=True, slots=True)
class StateFigures:
    """One stateful operator of a query, after a batch.

    Attributes:
        place: its position among the query's operators, from 0; two may have the same name.
        memory_bytes: memory that its state stores use.
        disk_bytes: the size of RocksDB's files; None if the state is not in RocksDB.
        dropped: rows that Spark's watermark dropped in this batch, after aggregation.
    """

    place: int
    operator: str
    rows: int
    memory_bytes: int
    disk_bytes: int | None
    updated: int
    removed: int
    dropped: int
    commit_seconds: float


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """One batch of one query.

    Attributes:
        query: the query's name, or its id if it has none.
        query_id: id from the checkpoint; the same after a restart of the query.
        ended_s: end of the batch, in seconds since 1970.
        seconds: total duration.
        parts: the parts of its duration in seconds, by Spark's names.
        lag_messages, lag_seconds: as the module describes; None: not known.
        logs_out_of_reach: logs that have been read and whose nsqd did not report their end.
        event_time_s, watermark_s: the newest event time, Spark's watermark; None: the query has
            none.
        counts: by name of COUNTS.
    """

    query: str
    query_id: str
    batch_id: int
    ended_s: float
    rows: int
    seconds: float
    parts: dict[str, float]
    lag_messages: int | None
    lag_seconds: float | None
    logs_out_of_reach: int
    event_time_s: float | None = None
    watermark_s: float | None = None
    states: tuple[StateFigures, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def rows_per_second(self) -> float:
        """Messages of the batch divided by its duration."""
        return self.rows / self.seconds if self.seconds else 0.0

    def sample(self) -> QuerySample:
        """The batch as a point of the report's charts."""
        rate = round(self.rows_per_second, 1)
        return QuerySample(self.ended_s, self.query, rate, self.lag_messages, self.lag_seconds)


def parse(progress: Mapping[str, Any]) -> QueryProgress:
    """Parse the JSON of a `StreamingQueryProgress` (`json.loads(event.progress.json)`)."""
    parts = {name: ms / 1000 for name, ms in progress.get("durationMs", {}).items()}
    seconds = parts.pop(WHOLE, progress.get("batchDuration", 0) / 1000)
    ended_s = time_of(progress["timestamp"]) + seconds
    observed = list(_observed(progress))
    lags = [lag(source) for source in progress.get("sources", [])]
    known = [messages for messages, _ in lags if messages is not None]
    times = progress.get("eventTime", {})
    newest, watermark = (_event_time(times.get(name)) for name in ("max", "watermark"))
    return QueryProgress(
        query=progress.get("name") or progress["id"],
        query_id=progress["id"],
        batch_id=progress["batchId"],
        ended_s=ended_s,
        rows=_rows(progress),
        seconds=seconds,
        parts=parts,
        lag_messages=sum(known) if known else None,
        lag_seconds=_lag_seconds(observed, ended_s),
        logs_out_of_reach=sum(missing for _, missing in lags),
        event_time_s=newest,
        watermark_s=watermark,
        states=tuple(_states(progress)),
        counts=_counts(observed),
    )


def time_of(text: str) -> float:
    """A time as Spark writes it, in seconds since 1970."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def lag(source: Mapping[str, Any]) -> tuple[int | None, int]:
    """(messages after the end of the batch, logs out of reach) of one source of a query.

    The number of messages is None if the source does not report it: it is not the source `nsq`, or
    it has not read the ends of the logs yet.
    """
    end, latest = (_ordinals(source.get(name)) for name in ("endOffset", "latestOffset"))
    if end is None or latest is None:
        return None, 0
    missing = len(end.keys() - latest.keys())
    both = end.keys() & latest.keys()
    return sum(max(latest[key] - end[key], 0) for key in both), missing


def _ordinals(offset: Any) -> dict[str, int] | None:
    """The ordinal of an offset in each log that still exists; None: not an offset of source `nsq`.

    Spark writes an offset as an object within its JSON, or as a text if it is not JSON.
    """
    if not isinstance(offset, Mapping):
        return None
    found = {}
    for key, place in offset.items():
        if "/" not in key or not isinstance(place, Mapping) or place.get("gone"):
            continue  # not a log but how the batch is split, or a log that was given up
        if place.get("ordinal") is not None:
            found[key] = int(place["ordinal"])
    return found


def _rows(progress: Mapping[str, Any]) -> int:
    total = progress.get("numInputRows")
    if total is None:
        return sum(source["numInputRows"] for source in progress.get("sources", []))
    return int(total)


def _event_time(text: str | None) -> float | None:
    """The time, or None: Spark's watermark is 1970 until it has moved."""
    return (time_of(text) or None) if text else None


def _observed(progress: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for row in progress.get("observedMetrics", {}).values():
        if isinstance(row, Mapping):
            yield row


def _lag_seconds(observed: list[Mapping[str, Any]], ended_s: float) -> float | None:
    times = [row[NEWEST_PUBLISHED] for row in observed if row.get(NEWEST_PUBLISHED) is not None]
    return round(max(ended_s - float(max(times)), 0.0), 3) if times else None


def _counts(observed: list[Mapping[str, Any]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in observed:
        for name in COUNTS.keys() & row.keys():
            found[name] = found.get(name, 0) + int(row[name] or 0)
    return found


def _states(progress: Mapping[str, Any]) -> Iterator[StateFigures]:
    for place, one in enumerate(progress.get("stateOperators", [])):
        yield StateFigures(
            place=place,
            operator=one["operatorName"],
            rows=one["numRowsTotal"],
            memory_bytes=one["memoryUsedBytes"],
            disk_bytes=one.get("customMetrics", {}).get(DISK_BYTES),
            updated=one["numRowsUpdated"],
            removed=one["numRowsRemoved"],
            dropped=one["numRowsDroppedByWatermark"],
            commit_seconds=one["commitTimeMs"] / 1000,
        )
