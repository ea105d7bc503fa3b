"""Charts: the points for the script, the summary, and the table."""

from __future__ import annotations

import json

from sparq.nsqadmin.pages.charts import POINTS_MAX, TABLE_ROWS, Line, chart, spark


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


def test_a_chart_has_sentences_and_a_table() -> None:
    """Each line with known figures has a sentence; the table begins with the newest figures."""
    lines = [Line("in", [None, 4.0, 2.5], "/s"), Line("out", [None, None, None], "/s")]

    found = chart("rates", "Rates", [0.0, 60.0, 120.0], lines)

    assert found.summary.startswith("in: now 2.5/s, at most 4.0/s at ")
    assert "out" not in found.summary
    assert 3 == len(found.rows)
    assert ["2.5", "4.0"] == [figures[0] for _, figures in found.rows[:2]]
    many = chart("rates", "Rates", [float(at) for at in range(300)], [Line("in", [1.0] * 300)])
    assert TABLE_ROWS <= len(many.rows) <= TABLE_ROWS + 1


def test_bars_have_no_sentence_and_one_point_is_not_drawn() -> None:
    """The sentence is about rates, but bars are counts; one point makes an empty chart."""
    found = chart("times", "Times", [0.0], [Line("messages", [5.0])], bars=True)

    assert ("", True, True) == (found.summary, found.is_empty, json.loads(found.data)["bars"])


def test_a_sparkline_fits_its_box() -> None:
    """The largest figure is at the top, unknown ones at the bottom, oldest first."""
    assert "0,19.0 50,1.0 100,10.0" == spark([None, 8.0, 4.0])
    assert "0,19.0 100,19.0" == spark([0.0, 0.0])
    assert "" == spark([5.0])
