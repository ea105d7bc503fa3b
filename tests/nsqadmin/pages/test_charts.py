"""Charts: the points for the script, the summary, and the table."""

from __future__ import annotations

import json

from sparq.nsqadmin.pages.charts import POINTS_MAX, TABLE_ROWS, Chart, Line, chart, spark
from sparq.nsqadmin.pages.rendering import environment
from sparq.nsqadmin.words import UNKNOWN
from tests.nsqadmin.pages.conftest import words


def test_a_chart_has_few_points_and_the_newest_one() -> None:
    """A chart has at most POINTS_MAX points in order, with rounded figures and the newest."""
    times = [10.0 * place for place in range(400)]
    values = [123.456 if place < 399 else 7.123 for place in range(400)]

    found = chart("rates", "Rates", times, [Line("in", values, "/s")])

    data = json.loads(found.data)
    assert found.count == len(data["times"]) <= POINTS_MAX
    assert sorted(data["times"]) == data["times"]
    assert (3990.0, 7.12, 123.0) == (
        *(data["times"][-1], data["series"][0]["values"][-1], data["series"][0]["values"][0]),
    )
    assert not data["bars"]


def shown(found: Chart) -> str:
    """The text of a chart, its summary for screen readers included."""
    template = '{% import "parts.html" as parts %}{{ parts.chart_card(found) }}'
    text = environment().from_string(template).render(found=found)
    return words(text.replace('aria-label="', ">").replace('"></div>', "<"))


def test_a_chart_has_sentences_and_a_table() -> None:
    """Each line with known figures has a sentence; the table begins with the newest figures."""
    lines = [Line("in", [None, 4.0, 2.5], "/s"), Line("out", [None, None, None], "/s")]

    text = shown(chart("rates", "Rates", [60.0, 120.0, 180.0], lines))

    assert "in: now 2.5/s, at most 4.0/s at 00:02:00 UTC." in text
    assert "out:" not in text
    rows = "in out 00:03:00 2.5 ? 00:02:00 4.0 ? 00:01:00 ? ?"
    assert text.endswith(rows.replace("?", UNKNOWN))
    many = chart("rates", "Rates", [float(at) for at in range(300)], [Line("in", [1.0] * 300)])
    assert TABLE_ROWS <= len(many.rows) <= TABLE_ROWS + 1


def test_bars_have_no_sentence_and_one_point_is_not_drawn() -> None:
    """The sentence of bars says that their axis is not linear; one point makes an empty chart."""
    found = chart("times", "Times", [0.0], [Line("messages", [5.0])], bars=True)

    assert "square root" in shown(found)
    assert (1, True) == (found.count, json.loads(found.data)["bars"])


def test_a_sparkline_fits_its_box() -> None:
    """The largest figure is at the top, and the distance of points is their distance in time.

    A gap is where figures are unknown.
    """
    assert "M0,19.0L10,1.0L100,10.0" == spark([0.0, 1.0, 10.0], [0.0, 8.0, 4.0])
    assert "M0,1.0M75,10.0L100,1.0" == spark([0.0, 1.0, 3.0, 4.0], [8.0, None, 4.0, 8.0])
    assert "M0,19.0L100,19.0" == spark([0.0, 1.0], [0.0, 0.0])
    assert "" == spark([0.0, 1.0], [5.0, None])


def test_counts_are_whole_numbers() -> None:
    """Figures without a unit are counts: neither the sentence nor the table has a decimal."""
    text = shown(chart("waiting", "Waiting", [0.0, 10.0, 95.0], [Line("waiting", [3.0, 7.0, 2.0])]))

    assert "Waiting last 95 s" in text
    assert "waiting: now 2, at most 7 at 00:00:10 UTC." in text
    assert "00:01:35 2 00:00:10 7" in text
    gone = shown(chart("waiting", "Waiting", [10.0, 20.0], [Line("waiting", [3.0, None])]))
    assert "waiting: now unknown, at most 3 at 00:00:10 UTC." in gone


def test_a_gap_is_kept_however_few_points_are_drawn() -> None:
    """A point without figures is never left out: without it, a line would cross the gap."""
    for gap in (100, 101):
        values = [None if at == gap else 1.0 for at in range(400)]
        times = [float(at) for at in range(400)]
        data = json.loads(chart("c", "Rates", times, [Line("in", values, "/s")]).data)
        assert [float(gap)] == [
            time
            for time, value in zip(data["times"], data["series"][0]["values"], strict=True)
            if value is None
        ]
