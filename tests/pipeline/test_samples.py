"""Samples of a run: bounded, with the peaks kept."""

import json

from hypothesis import given
from hypothesis import strategies as st

from sparq.pipeline.query_progress import QuerySample, Timeline, from_json, thinned

LAGS = st.lists(st.one_of(st.none(), st.integers(0, 10**9)), min_size=1, max_size=200)


@given(LAGS, st.integers(2, 40))
def test_a_timeline_is_bounded_and_keeps_peaks(lags, limit):
    """However many come: at most the limit, the greatest lag, the newest sample, in order."""
    line = Timeline(limit=limit)
    for at, lag in enumerate(lags):
        line.add(QuerySample(float(at), "archive", 10.0, lag))
    kept = line.samples

    assert len(kept) <= limit
    known = [lag for lag in lags if lag is not None]
    assert (max(known) if known else None) == max(
        (one.lag_messages for one in kept if one.lag_messages is not None), default=None
    )
    assert len(lags) - 1 == kept[-1].time_s
    assert sorted(one.time_s for one in kept) == [one.time_s for one in kept]


def test_two_samples_become_one():
    """The mean rate, the greater lag, the later time; an odd one stays."""
    made = [
        QuerySample(1.0, "q", 10.0, 5, None),
        QuerySample(2.0, "q", 20.0, 3, 1.5),
        QuerySample(3.0, "q", 7.0),
    ]

    assert [QuerySample(2.0, "q", 15.0, 5, 1.5), QuerySample(3.0, "q", 7.0)] == thinned(made)


def test_queries_do_not_thin_each_other():
    """A fast query leaves the samples of a slow one alone."""
    line = Timeline(limit=4)
    line.add(QuerySample(0.0, "slow", 1.0))
    for at in range(100):
        line.add(QuerySample(float(at), "fast", 1.0))

    assert [QuerySample(0.0, "slow", 1.0)] == [one for one in line.samples if one.query == "slow"]


def test_samples_pass_through_json():
    """What the driver writes, the report reads."""
    made = [
        QuerySample(1.5, "archive", 10.0, 5, None),
        QuerySample(2.5, "metrics", 20.0, None, 0.25),
    ]

    assert made == from_json(json.loads(json.dumps(Timeline(made).as_json())))
