"""Predicates on the time: they leave out what cannot match, and never more."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
)

from sparq.spark.reader import CLOCK_SET_BACK_NS, TimeBounds

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KINDS = {
    GreaterThan: lambda stamp, at: stamp > at,
    GreaterThanOrEqual: lambda stamp, at: stamp >= at,
    LessThan: lambda stamp, at: stamp < at,
    LessThanOrEqual: lambda stamp, at: stamp <= at,
    EqualTo: lambda stamp, at: stamp == at,
}


def at(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


@given(
    st.lists(st.tuples(st.sampled_from(list(KINDS)), st.integers(-2, 9)), max_size=4),
    st.integers(0, 9_999),
)
def test_bounds_hold_for_what_matches_and_say_no_more(given_predicates, stamp_ns):
    """A message lies within the bounds exactly if the column of its row passes each predicate."""
    bounds = TimeBounds.of([kind(("timestamp",), at(us)) for kind, us in given_predicates])
    passes = all(KINDS[kind](stamp_ns // 1000, us) for kind, us in given_predicates)
    begin = -1 if bounds.begin_ns is None else bounds.begin_ns
    end = 10_000 if bounds.end_ns is None else bounds.end_ns

    assert passes == (begin <= stamp_ns < end)


def test_what_is_no_bound_in_time_is_left_to_spark():
    """Other columns, other comparisons, texts, and times without a zone."""
    others = [
        GreaterThan(("index",), at(5)),
        GreaterThan(("timestamp", "x"), at(5)),
        GreaterThan(("timestamp",), "2020-01-01"),
        GreaterThan(("timestamp",), at(5).replace(tzinfo=None)),
        Not(GreaterThan(("timestamp",), at(5))),
        In(("timestamp",), (at(5),)),
    ]

    assert TimeBounds() == TimeBounds.of(others)
    assert None is TimeBounds().read_until_ns
    berlin = datetime(2026, 1, 1, 1, tzinfo=datetime.strptime("+0100", "%z").tzinfo)
    midnight_ns = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 10**9
    bounds = TimeBounds.of([*others, LessThan(("timestamp",), berlin)])
    assert (None, midnight_ns) == bounds
    assert midnight_ns + CLOCK_SET_BACK_NS == bounds.read_until_ns
