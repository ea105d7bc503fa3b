"""Spark's progress of a batch as lag, duration and counts."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.pipeline.monitor.progress import (
    NEWEST_PUBLISHED,
    QuerySample,
    counts_of,
    lag,
    sample_of,
    seconds_of,
    time_of,
)
from tests.pipeline.monitor.spark_progress import FIRST, SECOND, place, progress, recorded

NOON_S = datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp()
PLACES = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 10**15), max_size=6)


def test_recorded_progress_has_lag_rates_and_counts():
    """In recorded progress the lag shrinks to 0; durations and counts are right."""
    plain, stateful = (recorded()[name] for name in ("plain", "stateful"))

    for batches in (plain, stateful):
        assert [(600, 0), (200, 0), (0, 0)] == [lag(one) for one in batches]
        assert all(seconds_of(one) > 0 for one in batches)
    for one in plain:
        assert sample_of(one).lag_seconds > seconds_of(one)
        assert sample_of(one).rows_per_second == pytest.approx(
            one["processedRowsPerSecond"], rel=0.1
        )
    assert [{"late": 400}, {"late": 700}, {"late": 900}] == [counts_of(one) for one in stateful]


def test_lag_is_the_sum_of_differences_of_ordinals():
    """Lag is the sum over the logs of differences of ordinals, not of indexes."""
    assert (400 + 150, 0) == lag(progress())


@given(PLACES, PLACES)
def test_lag_of_any_two_offsets_equals_a_plain_count(end, latest):
    """Lag equals a plain count; a log in only one of the two offsets is not counted."""
    raw = progress(
        end={f"127.0.0.1:4150/{log}": place(at) for log, at in end.items()},
        latest={f"127.0.0.1:4150/{log}": place(at) for log, at in latest.items()},
    )
    plain = sum(max(latest[log] - end[log], 0) for log in end if log in latest)

    assert (plain, len(end.keys() - latest.keys())) == lag(raw)


def test_a_log_of_an_unreachable_nsqd_counts_as_out_of_reach():
    """A log whose nsqd does not answer counts as out of reach, not as lag 0."""
    assert (400, 1) == lag(progress(latest={FIRST: place(900)}))


def test_a_log_marked_as_gone_adds_no_lag():
    """A log marked as gone is neither lag nor out of reach."""
    assert (400, 0) == lag(progress(end={FIRST: place(500), SECOND: place(300, gone=True)}))


@pytest.mark.parametrize("latest", [None, "17", 17, []])
def test_a_source_without_sparq_offsets_has_no_lag(latest):
    """A source without our offsets, such as files, has an unknown lag."""
    raw = progress()
    raw["sources"][0]["latestOffset"] = latest

    assert (None, 0) == lag(raw)


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        ({"sparq_read": {NEWEST_PUBLISHED: NOON_S - 3.25}, "theirs": {"n": 4}}, 2 + 3.25),
        ({"a": {NEWEST_PUBLISHED: NOON_S - 9}, "b": {NEWEST_PUBLISHED: NOON_S - 1}}, 2 + 1),
        ({"sparq_read": {NEWEST_PUBLISHED: NOON_S + 60}}, 0),  # a publisher's clock is ahead
        ({"sparq_read": {NEWEST_PUBLISHED: None}}, None),  # a batch without messages
        ({}, None),
    ],
)
def test_lag_in_time_is_the_age_of_the_newest_message_read(observed, expected):
    """Lag in seconds: the batch's end minus the newest publish time of all observations."""
    assert expected == sample_of(progress(observedMetrics=observed)).lag_seconds


def test_counts_are_summed_over_observations():
    """Known counts are summed over observations; others are ignored, and none counts as 0."""
    observed = {"a": {"late": 3, "mine": 8}, "b": {"late": 4, "evicted_visits": None}}

    assert {"late": 7, "evicted_visits": 0} == counts_of(progress(observedMetrics=observed))


def test_a_sample_has_the_values_of_the_charts():
    """A sample has the values that the report's charts draw; a query may have no name."""
    assert QuerySample(NOON_S + 2, "metrics", 200.5, 550, None) == sample_of(progress(rows=401))
    raw = progress(name=None)
    assert raw["id"] == sample_of(raw).query


def test_times_in_sparks_form_are_parsed_as_utc():
    """Times are parsed as UTC."""
    assert NOON_S + 0.5 == time_of("2026-11-22T12:00:00.500Z")
