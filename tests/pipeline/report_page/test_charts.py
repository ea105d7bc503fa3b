"""Charts as SVG: their scale is right, and they contain only shapes and text."""

import math
import re
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.pipeline.report_page.charts import (
    NARROW,
    WIDE,
    HoverArea,
    Layer,
    ReportChart,
    draw,
    halved_between,
    nice_guides,
    short_number,
    stacked,
)

XS = np.arange(0.0, 100.0)
LINE = Layer("clicks", XS, XS % 10, filled=True)
OTHER = Layer("q1", XS, XS % 3)


def drawn(chart, size=WIDE):
    """The chart as an element tree."""
    return ET.fromstring(draw(chart, size))


def path_of(tree, key):
    """The points of a layer in pixels."""
    (group,) = (one for one in tree.iter("g") if f"layer-{key}" in one.get("class", "").split())
    pairs = re.findall(r"([\d.]+) ([\d.]+)", group.find("path").get("d"))
    return np.array(pairs, np.float64)


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_pixels_are_linear_in_the_values(size):
    """Pixels are linear in the values, and 0 is at the bottom."""
    tree = drawn(ReportChart("s", (0.0, 99.0), [LINE, OTHER], [(0.0, "0"), (50.0, "50")]), size)
    points = path_of(tree, "q1")

    across, down = np.diff(points[:, 0]), points[:, 1]
    assert len(XS) == len(points)
    assert across == pytest.approx(np.full(99, across.mean()), abs=0.11)
    levels = [down[OTHER.ys == value] for value in (0, 1, 2)]
    assert all(np.ptp(level) < 0.11 for level in levels)
    assert levels[0][0] - levels[1][0] == pytest.approx(levels[1][0] - levels[2][0], abs=0.2)
    assert levels[0][0] > levels[2][0]


def test_hover_areas_cover_their_points():
    """The hover area of an x covers the line's point there, and has its text, escaped."""
    hits = [HoverArea(at - 0.5, at + 0.5, f"{at}: <b>7") for at in (0, 25, 50, 99)]
    tree = drawn(ReportChart("s", (0.0, 99.0), [OTHER, LINE], [], hits))
    points = path_of(tree, "q1")

    strips = [one for one in tree.iter("g") if one.get("class") == "hit"]
    assert [hit.text for hit in hits] == [strip.find("text").text for strip in strips]
    for at, strip in zip((0, 25, 50, 99), strips, strict=True):
        box = strip.find("rect")
        left = float(box.get("x"))
        assert left - 0.1 <= points[at][0] <= left + float(box.get("width")) + 0.1


def test_a_chart_has_no_script_or_style_of_its_library():
    """A chart has only shapes, groups and texts, and an aria-label; no script, style or link."""
    tree = drawn(
        ReportChart("In words.", (0.0, 99.0), [LINE, OTHER], [(0.0, "0")], [HoverArea(0, 1, "h")])
    )

    assert {"svg", "g", "rect", "path", "text"} == {one.tag for one in tree.iter()}
    assert ("img", "In words.") == (tree.get("role"), tree.get("aria-label"))
    allowed = {"d", "class", "x", "y", "width", "height", "transform", "text-anchor"}
    found = {name for one in tree.iter() if one is not tree for name in one.attrib}
    assert found <= allowed


def test_areas_are_stacked():
    """A stacked area starts where the one below ends; the tallest is drawn first."""
    layers = stacked(["a", "b"], XS, [XS, XS * 2])

    assert ["b", "a"] == [layer.key for layer in layers]
    assert (XS * 3).tolist() == layers[0].ys.tolist()
    assert all(layer.filled for layer in layers)


@given(st.floats(0.001, 1e12))
def test_guides_are_round_numbers_and_pass_the_maximum(highest):
    """Guides go from 0 past the maximum in at most six steps of 1, 2 or 5 times 10^n."""
    guides = nice_guides(highest)
    step = guides[1] - guides[0]

    assert 0.0 == guides[0]
    assert guides[-1] >= highest * (1 - 1e-9)
    assert len(guides) <= 7
    digit = step / 10 ** math.floor(math.log10(step) + 1e-9)
    assert any(digit == pytest.approx(one, rel=1e-6) for one in (1, 2, 5, 10))


def test_each_part_of_the_axis_belongs_to_the_nearest_place():
    """Each part of the axis belongs to the nearest position."""
    assert [(0, 1), (1, 5), (5, 8)] == halved_between(np.array([0, 2, 8]))


@pytest.mark.parametrize(
    ("number", "text"), [(0.5, "0.5"), (12_000, "12,000"), (2_500_000, "2.5 M")]
)
def test_numbers_have_thousands_separators(number, text):
    """Numbers have thousands separators; large ones are written in millions."""
    assert text == short_number(number)
