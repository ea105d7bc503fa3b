"""Samples of the queries' progress during a run: how fast, and how far behind, by time.

Pure. The listener adds a sample after each batch, the report's page draws them.

1. At most LIMIT samples of a query are kept. When there are more, neighbours become one sample with
   their mean rate and their greater lag: a peak survives, and what is recent keeps its detail.
2. They go through a JSON file between the Spark driver and the process that writes the report. They
   are for people only: no query needs them to go on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
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
