"""The minutes of a run as points of a chart: limited in number, exact in sum."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.pipeline.report_page.points import DAY, LEFT_OUT_SHARE, points_of, step_of
from tests.pipeline.report_page.sample_reports import BEGIN_MINUTE, minutes

COLUMNS = ["clicks", "visitors"]
# Adjacent minutes, distant ones, and some from a wrong clock.
TIMES = st.sets(
    st.one_of(st.integers(0, 50), st.integers(0, 5_000), st.integers(0, 30_000_000)),
    min_size=1,
    max_size=60,
)


@given(TIMES, st.integers(1, 1_000), st.integers(2, 40))
def test_points_are_limited_and_include_every_click(times, clicks, points_max):
    """At most points_max points; unless clicks are left out, means times minutes are all clicks."""
    at = np.array(sorted(times))
    table = minutes(at, clicks + at % 7)

    points = points_of(table, COLUMNS, points_max)

    first, last = (
        max(points.starts[0], at.min()),
        min(points.starts[-1] + points.step, at.max() + 1),
    )
    assert len(points) <= points_max
    assert set(np.diff(points.starts)) <= {points.step}
    total = int((clicks + at % 7).sum())
    assert points.left_out <= 2 * LEFT_OUT_SHARE * total
    if not points.left_out:
        lengths = np.minimum(points.starts + points.step, last) - np.maximum(points.starts, first)
        assert round(float((points.values["clicks"] * lengths).sum())) == total


@given(st.integers(0, 50_000_000), st.sets(st.integers(0, 5_000), min_size=1, max_size=60))
def test_with_a_point_per_minute_values_equal_the_rows(first, offsets):
    """With a point per minute, values equal the rows; a minute without a row is 0."""
    at = first + np.array(sorted(offsets))
    points = points_of(minutes(at, 5 + at % 11), COLUMNS, int(at.max()) + 1)

    shown = dict(zip(points.starts.tolist(), points.values["clicks"].tolist(), strict=True))
    plain = dict.fromkeys(range(at.min(), at.max() + 1), 0)
    plain |= {int(minute): int(5 + minute % 11) for minute in at}
    assert plain == shown


def test_more_minutes_than_points_become_means():
    """Three days become points of five minutes, each a mean, at round times."""
    at = BEGIN_MINUTE + np.arange(3 * DAY)
    points = points_of(minutes(at, np.arange(3 * DAY)), COLUMNS)

    assert points.step == 5
    assert len(points) == 3 * DAY // 5
    assert points.values["clicks"][:3].tolist() == [2.0, 7.0, 12.0]
    assert not (points.starts % 5).any()


def test_a_point_at_the_edge_is_the_mean_of_its_minutes_inside():
    """A point at the edge is the mean of its minutes inside the run."""
    at = BEGIN_MINUTE + 3 + np.arange(3 * DAY)
    points = points_of(minutes(at, np.full(3 * DAY, 60)), COLUMNS)

    assert set(points.values["clicks"].tolist()) == {60.0}


def test_a_few_clicks_with_wrong_times_are_left_out_and_counted():
    """A few clicks of 1970 and 2099 are left out of the chart and counted."""
    at = [3, *(BEGIN_MINUTE + np.arange(DAY)), 68_000_000]
    points = points_of(minutes(at, [2, *([100] * DAY), 5]), COLUMNS)

    assert (1, DAY, 7) == (points.step, len(points), points.left_out)


def test_two_busy_days_a_year_apart_are_both_shown():
    """Distant minutes with many clicks are not left out."""
    day = BEGIN_MINUTE + np.arange(DAY)
    at = np.concatenate([day - 365 * DAY, day])
    points = points_of(minutes(at, np.full(2 * DAY, 10)), COLUMNS)

    assert 0 == points.left_out
    assert len(points) <= 1_500
    assert points.values["clicks"][0] > 0
    assert points.values["clicks"][-1] > 0


@pytest.mark.parametrize(
    ("minutes_shown", "step"),
    [(1_500, 1), (1_501, 2), (90 * DAY, 120), (5_000 * DAY, 7 * DAY), (50_000 * DAY, 56 * DAY)],
)
def test_steps_divide_hours_days_or_weeks(minutes_shown, step):
    """A step is minutes that divide an hour, hours that divide a day, or whole weeks."""
    assert step == step_of(minutes_shown, 1_500)


def test_a_run_without_minutes_has_no_points():
    """A run without minutes has no points."""
    assert 0 == len(points_of(minutes([], []), COLUMNS))
