"""Predicates on the column `timestamp` as bounds in time: what a batch read need not look at.

1. Messages before the first one that is at or after the lower bound are not read: all of them are
   earlier, also where an nsqd's clock was set back.
2. For the upper bound the log is not enough: after a clock was set back, messages with an earlier
   timestamp follow later ones. So reading ends only where timestamps reach `CLOCK_SET_BACK_NS`
   beyond the bound.
3. Spark still evaluates every predicate: bounds leave out what cannot match, and nothing else.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
)

CLOCK_SET_BACK_NS: Final = 3_600_000_000_000
"""An hour: how far an nsqd's clock may be set back without rows being missed."""

NS_PER_US: Final = 1_000

_COLUMN: Final = ("timestamp",)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class TimeBounds(NamedTuple):
    """Times of publishing, in ns since 1970.

    Attributes:
        begin_ns: nothing earlier matches; None: no bound.
        end_ns: nothing at or after this matches; None: no bound.
    """

    begin_ns: int | None = None
    end_ns: int | None = None

    @classmethod
    def of(cls, predicates: Sequence[Filter]) -> "TimeBounds":
        """The bounds of predicates that all must hold; those on other columns bound nothing.

        The column has microseconds, rounded down from the nanoseconds of the log.
        """
        begins, ends = [], []
        for predicate in predicates:
            at = _microseconds(predicate)
            if at is None:
                continue
            if isinstance(predicate, GreaterThan | GreaterThanOrEqual | EqualTo):
                begins.append(at + isinstance(predicate, GreaterThan))
            if isinstance(predicate, LessThan | LessThanOrEqual | EqualTo):
                ends.append(at + (not isinstance(predicate, LessThan)))
        return cls(
            max(0, *begins) * NS_PER_US if begins else None,
            max(0, min(ends)) * NS_PER_US if ends else None,
        )

    @property
    def read_until_ns(self) -> int | None:
        """The time after whose first message nothing is read."""
        return None if self.end_ns is None else self.end_ns + CLOCK_SET_BACK_NS


def _microseconds(predicate: Any) -> int | None:
    """The time that a predicate compares the column with, since 1970; None: it does not."""
    if getattr(predicate, "attribute", None) != _COLUMN:
        return None
    value = getattr(predicate, "value", None)
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // _MICROSECOND
