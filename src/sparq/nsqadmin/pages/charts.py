"""A chart's data for the script, its summary in words, and its figures as a table. Pure.

1. A canvas is not accessible to users who cannot see it, so each chart also has sentences and a
   table with the same content.
2. Axes are honest: a value axis starts at zero, and has whole numbers if it counts (a line without
   a unit); the distance of two points is their distance in time, and no line is drawn over a time
   without figures.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sparq.nsqadmin.pages import words

Values = Sequence[float | None]
TABLE_ROWS: Final = 13
POINTS_MAX: Final = 180
SCALE_OF_BARS: Final = (
    "The height of a bar is the square root of its number, so that small ones stay visible"
)


class Line(NamedTuple):
    """One line of a chart: its label, its figures, and their unit."""

    label: str
    values: Values
    unit: str = ""


@dataclass(frozen=True)
class Chart:
    """A chart in the form that its template macro takes.

    Attributes:
        id: id of its HTML element.
        data: JSON for `charts.js`.
        count: number of its points.
        span: how long its times last, as a text.
        sentences: its content: sentences, each with the time at its end (0.0: none).
        rows: (time, figures) of the table, the latest first.
    """

    id: str
    title: str
    lines: Sequence[Line]
    data: str
    count: int
    span: str
    sentences: Sequence[tuple[str, float]]
    rows: Sequence[tuple[float, Sequence[str]]]

    @property
    def is_empty(self) -> bool:
        """Whether there are too few points to draw."""
        return self.count < 2

    @property
    def summary(self) -> str:
        """Its sentences as a text."""
        said = (f"{text} {words.clock(at)} UTC" if at else text for text, at in self.sentences)
        return "".join(f"{one}. " for one in said).strip()


def chart(
    name: str, title: str, times: Sequence[float], lines: Sequence[Line], *, bars: bool = False
) -> Chart:
    """Build a chart of lines, or bars, over the same times in seconds since 1970."""
    step = -(-len(times) // POINTS_MAX) or 1
    # Counted from the end, so that the newest figure is always included. A point without figures is
    # kept: it is all that keeps a line from being drawn over a gap.
    last = len(times) - 1
    kept = [
        place
        for place in range(len(times))
        if (last - place) % step == 0 or all(line.values[place] is None for line in lines)
    ]
    data = {
        "times": [round(times[place], 3) for place in kept],
        "series": [
            {
                "label": line.label,
                "unit": line.unit,
                "values": [_rounded(line.values[place]) for place in kept],
            }
            for line in lines
        ],
    }
    text = json.dumps(data | {"bars": bars}, separators=(",", ":"))
    span = words.seconds(times[-1] - times[0]) if times else ""
    sentences = [(SCALE_OF_BARS, 0.0)] if bars else _sentences(times, lines)
    return Chart(name, title, lines, text, len(kept), span, sentences, _rows(times, lines))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 0 if abs(value) >= 100 else 2)


def _figure(value: float | None, line: Line) -> str:
    """A figure of a line: a whole number if it counts."""
    return words.rate(value) if line.unit else words.grouped(value)


def _sentences(times: Sequence[float], lines: Sequence[Line]) -> list[tuple[str, float]]:
    sentences = []
    for line in lines:
        known = [
            (value, at) for value, at in zip(line.values, times, strict=True) if value is not None
        ]
        if not known:
            continue
        most, when = max(known)
        now = line.values[-1]  # unknown if its node is gone
        said = "unknown" if now is None else f"{_figure(now, line)}{line.unit}"
        text = f"{line.label}: now {said}, at most {_figure(most, line)}{line.unit} at"
        sentences.append((text, when))
    return sentences


def _rows(times: Sequence[float], lines: Sequence[Line]) -> list[tuple[float, list[str]]]:
    step = max(1, (len(times) - 1) // (TABLE_ROWS - 1)) if len(times) > 1 else 1
    places = range(len(times) - 1, -1, -step)
    return [
        (times[place], [_figure(line.values[place], line) for line in lines]) for place in places
    ]


def spark(times: Sequence[float], values: Values) -> str:
    """The `d` of an SVG path in a box of 100 x 20, with a gap where figures are unknown.

    It is "" for fewer than two known figures. The box starts at zero, and at the first time.
    """
    known = [value for value in values if value is not None]
    if len(known) < 2 or times[-1] <= times[0]:
        return ""
    most, path, verb = max(known) or 1.0, [], "M"
    for at, value in zip(times, values, strict=True):
        if value is None:
            verb = "M"
            continue
        x = 100 * (at - times[0]) / (times[-1] - times[0])
        path.append(f"{verb}{x:.0f},{19 - value * 18 / most:.1f}")
        verb = "L"
    return "".join(path)
