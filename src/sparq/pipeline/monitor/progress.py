"""Spark's progress of a batch (the JSON of a `StreamingQueryProgress`) as lag and counts.

1. *Lag in messages*: messages in the logs after the end of the batch, when it was planned: the
   source's `latestOffset` minus its `endOffset`, counted in ordinals, never in indexes. A log that
   only one of the two offsets names is not counted: it joins with the next batch, or its nsqd is
   out of reach.
2. *Lag in seconds*: the end of the batch minus the publish time of the newest message that it read.
   So it is the age of the newest message whose result is visible. Spark's progress has no publish
   times: a query reports them as NEWEST_PUBLISHED of an observation (`listener.observed`).
3. Event times come from the clicks, and may be years old in a log that is read again: they are
   shown unchanged, and no lag is computed from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

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


@dataclass(frozen=True, slots=True)
class QuerySample:
    """One query after one batch, as the report's charts show it.

    Attributes:
        time_s: end of the batch, in seconds since 1970.
        query: the query's name, or its id if it has none.
        rows_per_second: messages of the batch divided by its duration.
        lag_messages, lag_seconds: as the module describes; None: not known.
    """

    time_s: float
    query: str
    rows_per_second: float
    lag_messages: int | None = None
    lag_seconds: float | None = None


def sample_of(progress: Mapping[str, Any]) -> QuerySample:
    """The batch as a point of the charts."""
    seconds = seconds_of(progress)
    ended_s = time_of(progress["timestamp"]) + seconds
    rate = progress["numInputRows"] / seconds if seconds else 0.0
    times = (row.get(NEWEST_PUBLISHED) for row in _observed(progress))
    published = [time for time in times if time is not None]
    # Not negative, even if a publisher's clock is ahead.
    age_s = round(max(ended_s - max(published), 0.0), 3) if published else None
    query = progress.get("name") or progress["id"]
    return QuerySample(ended_s, query, round(rate, 1), lag(progress)[0], age_s)


def seconds_of(progress: Mapping[str, Any]) -> float:
    """The duration of the batch, from the trigger to the commit."""
    return float(progress["durationMs"][WHOLE]) / 1000


def time_of(text: str) -> float:
    """A time as Spark writes it, in seconds since 1970."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def lag(progress: Mapping[str, Any]) -> tuple[int | None, int]:
    """(messages after the end of the batch, logs out of reach).

    The number of messages is None if no source of the query reports it: none is the source `nsq`,
    or it has not read the ends of the logs yet.
    """
    behind, out_of_reach = None, 0
    for source in progress["sources"]:
        end, latest = (_ordinals(source.get(name)) for name in ("endOffset", "latestOffset"))
        if end is None or latest is None:
            continue
        out_of_reach += len(end.keys() - latest.keys())
        both = end.keys() & latest.keys()
        behind = (behind or 0) + sum(max(latest[key] - end[key], 0) for key in both)
    return behind, out_of_reach


def _ordinals(offset: Any) -> dict[str, int] | None:
    """The ordinal of an offset in each log that still exists; None: not an offset of source `nsq`.

    Other keys say how the batch is split, or that a log was given up.
    """
    if not isinstance(offset, Mapping):
        return None
    return {
        key: int(place["ordinal"])
        for key, place in offset.items()
        if "/" in key and not place.get("gone")
    }


def counts_of(progress: Mapping[str, Any]) -> dict[str, int]:
    """The counts of COUNTS that the query observed in this batch."""
    found: dict[str, int] = {}
    for row in _observed(progress):
        for name in COUNTS.keys() & row.keys():
            found[name] = found.get(name, 0) + int(row[name] or 0)
    return found


def _observed(progress: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    # Spark leaves the key out if nothing was observed.
    rows: Mapping[str, Mapping[str, Any]] = progress.get("observedMetrics", {})
    return rows.values()
