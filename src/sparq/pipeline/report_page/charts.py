"""Charts as SVG: lines and stacked areas over time, with the figures under the pointer.

Pure. pygal draws axes and lines; what it adds for its own script and style is removed, so that
colours come from the page's style sheet, light and dark.

Why pygal (measured, 1,440 points, 2 busy cores; CPU with the import, size of one chart, installed):

| pygal 3.1 | 0.09 s | 48 KB | 1.3 MB | static SVG, colours may be CSS variables |
| plotly 7.1 | 0.2 s | 4.8 MB | 64 MB | its script in every page; labels are parsed as markup |
| bokeh 3.9 | 0.8 s | 1.3 MB | 32 MB | script; canvas: dark mode and print need code |
| matplotlib 3.11 | 0.5 s | 102 KB | 87 MB | 12 s at the first use, for its font cache |
| vl-convert 1.9 | 0.7 s | 52 KB | 84 MB | static SVG; 5 s a chart of wall time |

A page without a script prints correctly, opens where scripts are forbidden (a mail, the artifacts
of a CI server), needs no code for dark mode, and has nothing that could execute the text of
a click. The price is that a chart cannot be zoomed: use `data/minutes` or Grafana for that.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple
from xml.etree import ElementTree as ET

import numpy as np
import pygal  # type: ignore[import-untyped] # it has no types
from markupsafe import Markup
from pygal.style import Style  # type: ignore[import-untyped] # likewise

from sparq.pipeline.report_page.points import Floats

# For its maps, pygal adds an import hook of an old kind, for which Python warns at each import.
sys.meta_path[:] = [one for one in sys.meta_path if not isinstance(one, pygal.PluginImportFixer)]

GUIDES_MAX: Final = 5
LONG_NUMBER: Final = re.compile(r"\d+\.\d{2,}")
READOUT_Y: Final = 11
"""Distance of the figures under the pointer from the upper edge."""


class Size(NamedTuple):
    """The size of a chart, in units of about a pixel; `ticks` is the maximum number of ticks."""

    name: str
    width: int
    height: int
    font: int
    ticks: int


WIDE: Final = Size("wide", 960, 280, 12, 9)
NARROW: Final = Size("narrow", 380, 250, 13, 4)


@dataclass(frozen=True, slots=True)
class Layer:
    """One line, or one area, of a chart.

    Attributes:
        key: the layer has the class `layer-<key>` in the style sheet.
        xs, ys: its points, ordered by x; at least two.
    """

    key: str
    xs: Floats
    ys: Floats
    filled: bool = False


@dataclass(frozen=True, slots=True)
class HoverArea:
    """A part of the x axis, and the text that is shown while the pointer is over it."""

    begin: float
    end: float
    text: str


@dataclass(frozen=True, slots=True)
class ReportChart:
    """The content of a chart.

    Attributes:
        summary: a description in words, for people who cannot see the chart.
        span: the first and the last x of the axis, which must differ.
        ticks: ticks of the x axis: place and label.
    """

    summary: str
    span: tuple[float, float]
    layers: Sequence[Layer]
    ticks: Sequence[tuple[float, str]]
    hits: Sequence[HoverArea] = ()


def stacked(keys: Sequence[str], xs: Floats, values: Sequence[Floats]) -> list[Layer]:
    """Areas stacked on each other, the first at the bottom.

    The tallest area is drawn first; those below it then cover it up to its own share.
    """
    tops = np.cumsum(np.stack(values), axis=0)
    layers = [Layer(key, xs, top, filled=True) for key, top in zip(keys, tops, strict=True)]
    return layers[::-1]


def nice_guides(highest: float) -> list[float]:
    """Round values from 0 to `highest` or slightly more; whole numbers from GUIDES_MAX on."""
    if highest <= 0:
        return [0.0, 1.0]
    rough = highest / GUIDES_MAX
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    step = float(max(step, 1.0)) if highest >= GUIDES_MAX else float(step)
    count = int(np.ceil(highest / step - 1e-9))
    return [round(step * number, 10) for number in range(count + 1)]


def short_number(value: float) -> str:
    """A label of an axis: 950, 12,000, 1.5 M."""
    if value >= 1_000_000:
        return f"{value / 1_000_000:g} M"
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def draw(chart: ReportChart, size: Size, label: Callable[[float], str] = short_number) -> Markup:
    """The chart as an SVG element."""
    plot = _plot(chart, size, label)
    to_px = _scale(plot, chart.layers[0])
    box = plot.find("rect")
    assert box is not None
    width, height = float(box.get("width", "0")), float(box.get("height", "0"))
    _strip(plot, [layer.key for layer in chart.layers])
    plot.extend(_hit(hit, to_px, width, height) for hit in chart.hits)
    text = ET.tostring(plot, encoding="unicode")
    opened = Markup(
        '<svg viewBox="0 0 {0.width} {0.height}" class="chart {0.name}" role="img" aria-label="{1}"'
        ' style="font-size:{0.font}px">'
    )
    text = LONG_NUMBER.sub(lambda found: f"{float(found[0]):.1f}", text)
    drawn = Markup(text)  # noqa: S704 - ElementTree has escaped what pygal and the hits say
    return opened.format(size, chart.summary) + drawn + Markup("</svg>")


def _plot(chart: ReportChart, size: Size, label: Callable[[float], str]) -> Any:
    """The SVG group in which pygal has drawn axes and lines."""
    highest = max((float(layer.ys.max()) for layer in chart.layers), default=0.0)
    guides = nice_guides(highest)
    drawn = pygal.XY(
        width=size.width,
        height=size.height,
        style=Style(label_font_size=size.font, major_label_font_size=size.font),
        js=[],
        show_dots=False,
        show_legend=False,
        margin=6,
        margin_right=14,
        range=(0, guides[-1]),
        xrange=chart.span,
    )
    drawn.y_labels = [{"value": guide, "label": label(guide)} for guide in guides]
    drawn.x_labels = [{"value": at, "label": text} for at, text in chart.ticks]
    for layer in chart.layers:
        points = list(zip(layer.xs.tolist(), layer.ys.tolist(), strict=True))
        drawn.add(layer.key, points, fill=layer.filled)
    return drawn.render_tree().find(".//g[@class='plot']")


def _scale(plot: Any, layer: Layer) -> Callable[[float], float]:
    """A function from x to a place in the plot, derived from the first layer's end points."""
    path = plot.find(".//g[@class='series serie-0 color-0']/path").get("d")
    places = [float(place) for place in re.findall(r"([\d.]+) [\d.]+", path)]
    first, last = min(places), max(places)
    begin, end = float(layer.xs[0]), float(layer.xs[-1])
    return lambda x: first + (x - begin) / (end - begin) * (last - first)


def _strip(plot: Any, keys: Sequence[str]) -> None:
    """Remove what only pygal's own script and style sheet need, and name the layers."""
    for parent in list(plot.iter()):
        for child in list(parent):
            if child.tag in ("title", "desc"):
                parent.remove(child)
    for number, key in enumerate(keys):
        series = plot.find(f".//g[@class='series serie-{number} color-{number}']")
        filled = any("nofill" not in (path.get("class") or "") for path in series)
        series.set("class", f"layer layer-{key}{' filled' if filled else ''}")


def _hit(hit: HoverArea, to_px: Callable[[float], float], width: float, height: float) -> Any:
    """A strip that shows its text under the pointer; the text stays within the chart."""
    left, right = max(to_px(hit.begin), 0.0), min(to_px(hit.end), width)
    middle = (left + right) / 2
    place = ("start", 0.0) if middle < width / 3 else ("middle", middle)
    anchor, at = ("end", width) if middle > width * 2 / 3 else place
    group = ET.Element("g", {"class": "hit"})
    strip = {"x": left, "y": 0.0, "width": max(right - left, 0.5), "height": height}
    ET.SubElement(group, "rect", {name: f"{value:.1f}" for name, value in strip.items()})
    where = {"x": f"{at:.1f}", "y": str(READOUT_Y), "text-anchor": anchor}
    ET.SubElement(group, "text", where).text = hit.text
    return group


def halved_between(places: Floats) -> list[tuple[float, float]]:
    """For each place, the part of the axis that is nearer to it than to any other place."""
    borders = [float(places[0]), *((a + b) / 2 for a, b in pairwise(places.tolist()))]
    return list(pairwise([*borders, float(places[-1])]))
