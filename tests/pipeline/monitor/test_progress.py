"""Spark's progress of a batch as lag, duration and counts; and the samples of a run."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.pipeline.monitor.progress import (
    NEWEST_PUBLISHED,
    QuerySample,
    Timeline,
    from_json,
    lag,
    parse,
    thinned,
    time_of,
)
from tests.pipeline.monitor.spark_progress import FIRST, SECOND, STATE, place, progress, recorded

LAGS = st.lists(st.one_of(st.none(), st.integers(0, 10**9)), min_size=1, max_size=200)

NOON_S = datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp()
PLACES = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 10**15), max_size=6)


def test_recorded_progress_is_parsed():
    """Recorded progress is parsed: lag shrinks to 0; rows, times, state and counts are right."""
    plain, stateful = ([parse(one) for one in recorded()[name]] for name in ("plain", "stateful"))

    for batches in (plain, stateful):
        assert [(0, 400, 600), (1, 400, 200), (2, 200, 0)] == [
            (one.batch_id, one.rows, one.lag_messages) for one in batches
        ]
        assert all("addBatch" in one.parts and one.seconds > 0 for one in batches)
        assert not any(one.logs_out_of_reach for one in batches)
    assert all(one.lag_seconds > one.seconds for one in plain)
    assert [400, 700, 900] == [one.counts["late"] for one in stateful]
    assert stateful[2].watermark_s + 1 == stateful[2].event_time_s
    (state,) = stateful[2].states
    assert ("stateStoreSave", 3) == (state.operator, state.rows)
    assert state.memory_bytes > state.disk_bytes > 0


def test_lag_is_the_sum_of_differences_of_ordinals():
    """Lag is the sum over the logs of differences of ordinals, not of indexes."""
    assert 400 + 150 == parse(progress()).lag_messages


@given(PLACES, PLACES)
def test_lag_of_any_two_offsets_equals_a_plain_count(end, latest):
    """Lag equals a plain count; a log in only one of the two offsets is not counted."""
    source = {
        "endOffset": {f"127.0.0.1:4150/{log}": place(at) for log, at in end.items()},
        "latestOffset": {f"127.0.0.1:4150/{log}": place(at) for log, at in latest.items()},
    }
    plain = sum(max(latest[log] - end[log], 0) for log in end if log in latest)

    assert (plain, len(end.keys() - latest.keys())) == lag(source)


def test_a_log_of_an_unreachable_nsqd_counts_as_out_of_reach():
    """A log whose nsqd does not answer counts in `logs_out_of_reach`, not as lag 0."""
    found = parse(progress(latest={FIRST: place(900)}))

    assert (400, 1) == (found.lag_messages, found.logs_out_of_reach)


def test_a_log_marked_as_gone_adds_no_lag():
    """A log marked as gone is neither lag nor out of reach."""
    found = parse(progress(end={FIRST: place(500), SECOND: place(300, gone=True)}))

    assert (400, 0) == (found.lag_messages, found.logs_out_of_reach)


@pytest.mark.parametrize("latest", [None, "17", 17, []])
def test_a_source_without_sparq_offsets_has_no_lag(latest):
    """A source without our offsets, such as files, has an unknown lag."""
    raw = progress()
    raw["sources"][0]["latestOffset"] = latest
    found = parse(raw)

    assert (None, 0) == (found.lag_messages, found.logs_out_of_reach)


def test_offsets_of_earlier_versions_have_no_ordinals():
    """A log whose offset has no ordinal is not counted in the lag."""
    found = parse(progress(end={FIRST: 17, SECOND: place(300)}))

    assert 150 == found.lag_messages


def test_lag_in_time_is_the_age_of_the_newest_message_read():
    """Lag in seconds: the batch's end minus the newest publish time of all observations."""
    observed = {
        "sparq_read": {NEWEST_PUBLISHED: NOON_S - 3.25},
        "other": {NEWEST_PUBLISHED: NOON_S - 9},
        "theirs": {"n": 4},
    }
    found = parse(progress(observedMetrics=observed))

    assert 2 + 3.25 == found.lag_seconds
    assert NOON_S + 2 == found.ended_s


def test_a_publishers_clock_that_is_ahead_makes_no_negative_lag():
    """Lag in seconds is never negative, even if a publisher's clock is ahead."""
    observed = {"sparq_read": {NEWEST_PUBLISHED: NOON_S + 60}}

    assert 0.0 == parse(progress(observedMetrics=observed)).lag_seconds


def test_a_batch_without_messages_has_no_lag_in_time():
    """A batch without messages has no lag in seconds."""
    observed = {"sparq_read": {NEWEST_PUBLISHED: None, "late": None}}
    found = parse(progress(rows=0, observedMetrics=observed))

    assert (None, {"late": 0}) == (found.lag_seconds, found.counts)


def test_counts_are_summed_over_observations():
    """Known counts are summed over observations; others are ignored."""
    observed = {"a": {"late": 3, "mine": 8}, "b": {"late": 4, "evicted_visits": 1}}

    assert {"late": 7, "evicted_visits": 1} == parse(progress(observedMetrics=observed)).counts


def test_the_parts_of_a_batch_leave_out_its_total():
    """The parts of a batch are in seconds, by Spark's names, without triggerExecution."""
    found = parse(progress())

    assert (2.0, 200.0) == (found.seconds, found.rows_per_second)
    assert {"addBatch": 1.5, "latestOffset": 0.01, "queryPlanning": 0.2, "walCommit": 0.09} == (
        found.parts
    )


def test_each_state_operator_has_its_figures():
    """Each state operator has its rows, bytes and times."""
    without = {**STATE, "customMetrics": {}}
    first, second = parse(progress(stateOperators=[STATE, without])).states

    assert (0, 48, 1_000_000, 4_000_000) == (
        first.place,
        first.rows,
        first.memory_bytes,
        first.disk_bytes,
    )
    assert (32, 3, 2, 0.25) == (first.updated, first.removed, first.dropped, first.commit_seconds)
    assert (1, None) == (second.place, second.disk_bytes)


def test_a_watermark_of_1970_is_none():
    """A watermark of 1970 counts as none: Spark writes it until the watermark moves."""
    times = {"max": "2026-11-22T11:59:00.000Z", "watermark": "1970-01-01T00:00:00.000Z"}
    found = parse(progress(eventTime=times))

    assert (NOON_S - 60, None) == (found.event_time_s, found.watermark_s)


def test_a_query_without_a_name_is_identified_by_its_id():
    """A query without a name is identified by its id."""
    raw = progress(name=None)

    assert raw["id"] == parse(raw).query


def test_a_sample_has_the_values_of_the_charts():
    """A sample has the values that the report's charts draw."""
    sample = parse(progress(rows=401)).sample()

    assert (NOON_S + 2, "metrics", 200.5, 550, None) == (
        sample.time_s,
        sample.query,
        sample.rows_per_second,
        sample.lag_messages,
        sample.lag_seconds,
    )


def test_times_in_sparks_form_are_parsed_as_utc():
    """Times are parsed as UTC."""
    assert NOON_S + 0.5 == time_of("2026-11-22T12:00:00.500Z")


@given(LAGS, st.integers(2, 40))
def test_a_timeline_is_bounded_and_keeps_peaks(lags, limit):
    """A timeline keeps at most `limit` samples, with the greatest lag and the newest sample."""
    line = Timeline(limit=limit)
    for at, behind in enumerate(lags):
        line.add(QuerySample(float(at), "archive", 10.0, behind))
    kept = line.samples

    assert len(kept) <= limit
    known = [behind for behind in lags if behind is not None]
    assert (max(known) if known else None) == max(
        (one.lag_messages for one in kept if one.lag_messages is not None), default=None
    )
    assert len(lags) - 1 == kept[-1].time_s
    assert sorted(one.time_s for one in kept) == [one.time_s for one in kept]


def test_two_samples_are_merged_into_one():
    """Two samples merge into their mean rate, greater lag and later time; an odd one stays."""
    made = [
        QuerySample(1.0, "q", 10.0, 5, None),
        QuerySample(2.0, "q", 20.0, 3, 1.5),
        QuerySample(3.0, "q", 7.0),
    ]

    assert [QuerySample(2.0, "q", 15.0, 5, 1.5), QuerySample(3.0, "q", 7.0)] == thinned(made)


def test_samples_of_one_query_do_not_displace_those_of_another():
    """Many samples of one query leave those of another unchanged."""
    line = Timeline(limit=4)
    line.add(QuerySample(0.0, "slow", 1.0))
    for at in range(100):
        line.add(QuerySample(float(at), "fast", 1.0))

    assert [QuerySample(0.0, "slow", 1.0)] == [one for one in line.samples if one.query == "slow"]


def test_samples_survive_a_round_trip_through_json():
    """Samples survive a round trip through JSON."""
    made = [
        QuerySample(1.5, "archive", 10.0, 5, None),
        QuerySample(2.5, "metrics", 20.0, None, 0.25),
    ]

    assert made == from_json(json.loads(json.dumps(Timeline(made).as_json())))
