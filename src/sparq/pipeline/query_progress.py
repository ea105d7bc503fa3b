"""Spark's progress of a batch as rate, duration, lag, state and counts; samples of it during a run.

Pure: the JSON of a `StreamingQueryProgress` in, a `QueryProgress` out. After each batch the
listener adds a `Sample` of it to a `Timeline`, which the report's page draws.

1. *Lag in messages*: what the logs held when the batch was planned, beyond the batch: the source's
   `latestOffset` minus its `endOffset`, counted in ordinals, never in indexes. A log that only one
   of the two names is not counted: it joins with the next batch, or its nsqd is out of reach
   (`logs_out_of_reach` says how many are).
2. *Lag in seconds*: the end of the batch minus the publish time of the newest message that it read.
   So it is the age of the newest message whose result can be seen. Spark's progress has no publish
   times: a query tells it as NEWEST_PUBLISHED of an observation (`listener.observed`).
3. Event times say what the clicks say, and may be years old in a log that is read again: they are
   shown as they are, and no lag is made of them.
4. Counts (late clicks, ...) are what a query observed under a name of COUNTS, in this batch alone.
5. At most LIMIT samples of a query are kept. When there are more, neighbours become one sample with
   their mean rate and their greater lag: a peak survives, and what is recent keeps its detail.
6. Samples go through a JSON file from the Spark driver to the process that writes the report. They
   are for people only: no query needs them to go on.
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
class Sample:
    """One query after one batch.

    Attributes:
        time_s: when the batch was done, in seconds since 1970.
        query: its name.
        rows_per_second: messages of the batch divided by its duration.
        lag_messages: messages that the logs held beyond this batch; None: not known.
        lag_seconds: how old its newest message was when the batch was done, since it was published;
            None: not known.
    """

    time_s: float
    query: str
    rows_per_second: float
    lag_messages: int | None = None
    lag_seconds: float | None = None


class Timeline:
    """The samples of all queries, bounded."""

    def __init__(self, samples: Iterable[Sample] = (), limit: int = LIMIT) -> None:
        self._limit = limit
        self._kept: dict[str, list[Sample]] = defaultdict(list)
        for sample in samples:
            self.add(sample)

    def add(self, sample: Sample) -> None:
        """Take in one more."""
        kept = self._kept[sample.query]
        kept.append(sample)
        if len(kept) > self._limit:
            self._kept[sample.query] = thinned(kept)

    @property
    def samples(self) -> list[Sample]:
        """All that is kept, by query and then in the order in which they came."""
        return [sample for kept in self._kept.values() for sample in kept]

    def as_json(self) -> list[dict[str, Any]]:
        """All that is kept, for a JSON file."""
        return [asdict(sample) for sample in self.samples]


def from_json(value: Iterable[dict[str, Any]]) -> list[Sample]:
    """The samples of `Timeline.as_json`."""
    return [Sample(**fields) for fields in value]


def thinned(samples: list[Sample]) -> list[Sample]:
    """Each two neighbours of one query as one; the newest stays alone if their number is odd."""
    pairs = zip(samples[::2], samples[1::2], strict=False)
    return [_merged(*pair) for pair in pairs] + samples[len(samples) // 2 * 2 :]


def _merged(first: Sample, second: Sample) -> Sample:
    return Sample(
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
"""Of an observation: the greatest publish time of the messages read, in seconds since 1970."""

COUNTS = {
    "late": "Clicks of minutes that were closed, and of visits that were over",
    "rejected": "Messages that could not be read as a click",
    "evicted_visits": "Visits that left the state before they were over; not every rule saw them",
    "evicted_clicks": "Clicks that left the state before their visit was over",
    "evicted_findings": "Findings that were forgotten; seen again, they are new ones",
    "closed_early": "Minutes that were closed before their time, for want of memory",
    "findings": "Findings and revisions of findings",
}
"""What a query may observe, as sums over a batch, and what it means."""

WHOLE = "triggerExecution"
"""The part of `durationMs` that is the whole."""

DISK_BYTES = "rocksdbSstFileSize"


@dataclass(frozen=True, slots=True)
class StateFigures:
    """One stateful operator of a query, after a batch.

    Attributes:
        place: its place among the query's operators, from 0: two may have one name.
        memory_bytes: what its state stores hold in memory.
        disk_bytes: the size of RocksDB's files; None where the state is elsewhere.
        dropped: rows that Spark's watermark took away in this batch, after aggregation.
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
        query: its name, or its id where it has none.
        query_id: of the checkpoint; a query that is started again has the same.
        ended_s: when the batch was done, in seconds since 1970.
        seconds: its duration, whole.
        parts: the parts of its duration in seconds, by Spark's names.
        lag_messages, lag_seconds: as the module says; None: not known.
        logs_out_of_reach: logs that have been read and whose nsqd did not say where they end.
        event_time_s, watermark_s: the newest event time, Spark's watermark; None: the query has no.
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

    def sample(self) -> Sample:
        """The batch as a point in the report's charts."""
        rate = round(self.rows_per_second, 1)
        return Sample(self.ended_s, self.query, rate, self.lag_messages, self.lag_seconds)


def parse(progress: Mapping[str, Any]) -> QueryProgress:
    """What the JSON of a `StreamingQueryProgress` says (`json.loads(event.progress.json)`)."""
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
    """(messages beyond the end of the batch, logs out of reach) of one source of a query.

    The number of messages is None where the source does not say it: it is not ours, or it has not
    yet looked where the logs end.
    """
    end, latest = (_ordinals(source.get(name)) for name in ("endOffset", "latestOffset"))
    if end is None or latest is None:
        return None, 0
    missing = len(end.keys() - latest.keys())
    both = end.keys() & latest.keys()
    return sum(max(latest[key] - end[key], 0) for key in both), missing


def _ordinals(offset: Any) -> dict[str, int] | None:
    """By log, the messages before an offset; without logs that are gone; None: no offset of ours.

    Spark writes an offset as JSON within its JSON, or as a text where it is not JSON.
    """
    if not isinstance(offset, Mapping):
        return None
    found = {}
    for key, place in offset.items():
        if "/" not in key or not isinstance(place, Mapping) or place.get("gone"):
            continue  # how the batch is cut, or a log that was given up
        if place.get("ordinal") is not None:
            found[key] = int(place["ordinal"])
    return found


def _rows(progress: Mapping[str, Any]) -> int:
    total = progress.get("numInputRows")
    if total is None:
        return sum(source["numInputRows"] for source in progress.get("sources", []))
    return int(total)


def _event_time(text: str | None) -> float | None:
    """None where there is none: Spark's watermark is 1970 until it has moved."""
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
