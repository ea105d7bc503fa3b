"""Figures of a period equal a plain count of the clicks."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from deltalake import DeltaTable

from sparq.pipeline.reading.schema import Reading
from sparq.pipeline.report.figures import figures_of, newest_findings
from sparq.pipeline.storage import TablePlace
from tests.pipeline.report.sample_tables import written


@pytest.fixture(scope="module")
def clicks(data):
    """The clicks as dictionaries."""
    return DeltaTable(data.of("clicks").address).to_pyarrow_table().to_pylist()


def list_of(figures, title):
    """The rows of a top list, without visitors."""
    (found,) = [one["rows"] for one in figures["top_lists"] if one["title"] == title]
    return [row[:2] for row in found]


def most(values):
    """The most frequent values, as a top list has them."""
    counted = Counter(value for value in values if value is not None).items()
    return sorted(counted, key=lambda one: (-one[1], one[0]))[:50]


def is_view(click):
    return click["kind"] == "page" and click["status"] < 400 and click["robot"] is None


def test_totals_equal_a_plain_count(data, clicks):
    """Clicks, bytes, statuses, visitors, views and sessions are those of a count by hand."""
    figures = figures_of(data)
    classes = Counter(click["status"] // 100 for click in clicks)
    sessions = DeltaTable(data.of("sessions").address).to_pyarrow_table().to_pylist()
    pages = [one["pages"] for one in sessions if one["robot"] is None]

    assert len(clicks) == figures["clicks"]
    assert sum(click["bytes"] for click in clicks) == figures["bytes"]
    assert len({(one["address"], one["user_agent"]) for one in clicks}) == figures["visitors"]
    assert classes == {at: figures[f"status_{at}xx"] for at in classes}
    assert sum(map(is_view, clicks)) == figures["views"] > 500
    assert (len(sessions), len(pages)) == (figures["sessions"], figures["visits"])
    assert sum(one < 2 for one in pages) / len(pages) == pytest.approx(figures["bounces"])
    assert sum(pages) / len(pages) == pytest.approx(figures["visit_pages"])


def test_top_lists_are_those_of_people_and_pages(data, clicks):
    """Pages are no assets, and no robots' requests; sources are other sites."""
    figures, views = figures_of(data), [one for one in clicks if is_view(one)]
    outside = [one for one in views if one["referrer_class"] != "internal"]

    assert most(one["page"] for one in views) == list_of(figures, "Pages")
    assert most(one["browser"] for one in views) == list_of(figures, "Browsers")
    assert most(one["referrer_class"] for one in outside) == list_of(figures, "Sources")
    assert most(one["robot"] for one in clicks) == list_of(figures, "Robots")
    assert "/static/logo.svg" in {click["page"] for click in clicks}


def test_periods_that_meet_add_up(data):
    """A period has its first time and not its last one; two that meet have all clicks."""
    noon = datetime(2026, 3, 2, 12, tzinfo=UTC)
    parts = [figures_of(data, until=noon), figures_of(data, since=noon)]
    whole = figures_of(data)

    for name in ("clicks", "bytes", "views", "sessions"):
        assert whole[name] == sum(part[name] for part in parts)
    assert whole["visitors"] <= sum(part["visitors"] for part in parts)
    assert noon == parts[1]["over_time"]["first"] == parts[0]["over_time"]["last"]
    with_both = figures_of(data, noon, noon + timedelta(hours=1))
    assert 0 < with_both["clicks"] < parts[1]["clicks"]


@pytest.mark.parametrize(("days", "step"), [(1, "minute"), (30, "hour"), (365, "day")])
def test_a_longer_period_has_longer_steps(data, days, step):
    """Figures over time are by minute, hour or day, without gaps, and sum up to the totals."""
    since = datetime(2026, 3, 2, tzinfo=UTC)
    figures = figures_of(data, since, since + timedelta(days))
    rows = figures["over_time"]["rows"]
    steps = {"minute": 1_440, "hour": 24, "day": 1}[step]

    assert (step, days * steps) == (figures["over_time"]["step"], len(rows))
    assert rows["clicks"].sum() == figures["clicks"]
    assert rows["views"].sum() == figures["views"]


def test_what_settings_switch_off_is_left_out(day, tmp_path):
    """Without enrichment pages are still no assets, and other lists are not there."""
    figures = figures_of(written(tmp_path, day.lines, Reading()))
    titles = [one["title"] for one in figures["top_lists"]]

    assert ["Pages", "Entry pages", "Exit pages", "Not found", "Referring sites"] == titles[:5]
    assert ["Rejected by reason"] == titles[5:]
    assert not [page for page, _ in list_of(figures, "Pages") if page.endswith((".svg", ".js"))]


def test_an_event_without_path_and_address_counts_as_a_view(tmp_path):
    """Such a click has no visitor, and no list of pages."""
    event = b'{"time": "2026-03-02T10:00:00Z", "order": "A7"}'
    known = b'{"time": "2026-03-02T10:00:00Z", "remote_addr": "192.0.2.1"}'
    reading = Reading(columns=(("order_id", "order"),))
    figures = figures_of(written(tmp_path, [event, event, known], reading))

    assert (3, 3, 1) == (figures["clicks"], figures["views"], figures["visitors"])
    assert [] == [one for one in figures["top_lists"] if one["title"] == "Pages"]


def test_tables_that_are_not_there_have_no_figures(tmp_path):
    """Before the first batch there are no clicks, and nothing over time."""
    figures = figures_of(TablePlace(str(tmp_path)))

    assert (0, 0, 0, [], {}, None) == tuple(
        figures[name]
        for name in ("clicks", "visitors", "sessions", "top_lists", "findings", "over_time")
    )


def test_only_the_newest_revision_of_a_finding_counts():
    """Only the newest revision of each finding counts, in any order, unless it is withdrawn."""
    names = ("session", "reason", "revision", "amount")
    rows = [
        dict(zip(names, row, strict=True), withdrawn=row[2] == 9, address="a", user_agent="b")
        for row in (
            *(("u", "burst", 2, 2), ("u", "burst", 1, 5), ("u", "bare", 1, 1)),
            *(("v", "burst", 1, 1), ("v", "burst", 3, 3), ("w", "bare", 1, 9), ("w", "bare", 9, 9)),
        )
    ]

    assert [rows[4], rows[0], rows[2]] == newest_findings(pl.LazyFrame(rows)).to_dicts()
