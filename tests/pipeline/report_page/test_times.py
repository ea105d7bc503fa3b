"""Times on the axes of charts, and in text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.pipeline.report_page import times
from tests.pipeline.report_page.sample_reports import BEGIN_MINUTE


@given(st.integers(0, 2_000_000), st.integers(1, 3_000_000), st.integers(3, 9))
def test_time_ticks_are_limited_and_in_range(start, length, count):
    """At most `count` ticks, within the range, in order, each with a label."""
    begin = BEGIN_MINUTE + start
    ticks = times.minute_ticks(begin, begin + length, count)
    places = [place for place, _ in ticks]

    assert len(ticks) <= count
    assert places == sorted(set(places))
    assert all(begin <= place <= begin + length and text for place, text in ticks)


@given(st.floats(0.1, 1e7), st.integers(3, 9))
def test_ticks_of_a_run_start_at_0(last, count):
    """At most `count` ticks, from "0 s" to the end of the run."""
    ticks = times.second_ticks(last, count)

    assert (0.0, "0 s") == ticks[0]
    assert len(ticks) <= count
    assert ticks[-1][0] <= last


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (times.seconds_text(59.2), "59 s"),
        (times.seconds_text(125), "2:05"),
        (times.seconds_text(3_600), "1:00:00"),
        (times.step_text(1), "minute"),
        (times.step_text(5), "5 minutes"),
        (times.step_text(60), "hour"),
        (times.step_text(14 * 1_440), "2 weeks"),
        (times.span_text(BEGIN_MINUTE, 1), "21 Nov 00:00"),
        (times.span_text(BEGIN_MINUTE, 30), "21 Nov 00:00-00:30"),
        (times.span_text(BEGIN_MINUTE, 1_440), "21 Nov 2026"),
        (times.minute_text(BEGIN_MINUTE + 605), "21 Nov 2026 10:05"),
    ],
)
def test_times_have_a_readable_form(text, expected):
    """Durations, steps, spans and times have a short readable form."""
    assert expected == text


def test_midnight_is_shown_as_the_date():
    """A tick at midnight shows the date instead of the time."""
    ticks = times.minute_ticks(BEGIN_MINUTE, BEGIN_MINUTE + 1_440, 9)

    assert ["21 Nov", "03:00"] == [text for _, text in ticks[:2]]
    assert "22 Nov" == ticks[-1][1]
