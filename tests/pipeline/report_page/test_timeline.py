"""Charts of the minutes and of the run: drawn for any run, and explicit about what is left out."""

import re
from datetime import UTC, datetime

import numpy as np
import pytest

from sparq.pipeline.monitor.progress import QuerySample
from tests.pipeline.report_page import sample_reports
from tests.pipeline.report_page.sample_reports import page


def sections_of(text):
    """The ids of the headings, in order."""
    return re.findall(r'<h2 id="(\w+)"', text)


def test_omitted_clicks_are_counted():
    """The page gives the number of clicks that a chart leaves out."""
    at = [5, *(sample_reports.BEGIN_MINUTE + np.arange(1_440))]
    text = page(sample_reports.minutes(at, [3, *([100] * 1_440)]))

    assert "3 clicks far away in time are not shown." in text


def test_a_run_of_one_minute_and_one_batch_has_all_charts():
    """A run of one minute and one batch has all charts, without NaN."""
    text = page(
        sample_reports.minutes([sample_reports.BEGIN_MINUTE], [7]),
        progress=[QuerySample(1.8e9, "archive", 10.0, 5, 0.5)],
    )

    assert 2 * 5 == text.count("<svg viewBox=") - text.count('<svg viewBox="0 0 26 10"')
    assert "nan" not in text


@pytest.mark.parametrize("years", [(1, 2026), (2026, 9998), (1,), (1, 9998)])
def test_any_year_in_the_clicks_is_drawn(years):
    """Any years from 1 to 9998 in the clicks can be drawn."""
    at = [int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) // 60 for year in years]

    assert "Clicks and visitors per minute" in page(sample_reports.minutes(at, [50] * len(at)))


def test_unknown_lag_is_not_drawn():
    """Without publish times there is no chart of the lag in seconds."""
    text = page(progress=[QuerySample(1.8e9 + at, "archive", 10.0, 5, None) for at in range(9)])

    assert ["rate", "lag"] == [one for one in sections_of(text) if one in ("rate", "lag", "age")]
