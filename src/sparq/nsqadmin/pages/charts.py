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

from sparq.nsqadmin import words

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

    def figure(self, value: float | None) -> str:
        """A figure as a text: a whole number if the line counts."""
        return words.rate(value) if self.unit else words.grouped(value)


@dataclass(frozen=True)
class Chart:
    """A chart in the form that its template macro takes.

    Attributes:
        id: id of its HTML element.
        times: seconds since 1970, one for each figure of a line.
        data: JSON for `charts.js`.
        count: number of its points.
        sentences: its content: sentences, each with the time at its end (0.0: none).
    """

    id: str
    title: str
    times: Sequence[float]
    lines: Sequence[Line]
    data: str
    count: int
    sentences: Sequence[tuple[str, float]]

    @property
    def rows(self) -> range:
        """The places of the figures in its table, the latest first."""
        last = len(self.times) - 1
        return range(last, -1, -max(1, last // (TABLE_ROWS - 1)))


def chart(
    name: str, title: str, times: Sequence[float], lines: Sequence[Line], *, bars: bool = False
) -> Chart:
    """Build a chart of lines, or bars, over the same times in seconds since 1970."""
    step, last = -(-len(times) // POINTS_MAX) or 1, len(times) - 1
    # Counted from the end, so that the newest figure is always included. A point without figures is
    # kept: it is all that keeps a line from being drawn over a gap.
    kept = [
        place
        for place in range(len(times))
        if (last - place) % step == 0 or all(line.values[place] is None for line in lines)
    ]
    series = [
        {
            "label": line.label,
            "unit": line.unit,
            "values": [
                None if value is None else round(value, 0 if abs(value) >= 100 else 2)
                for value in map(line.values.__getitem__, kept)
            ],
        }
        for line in lines
    ]
    data = {"times": [round(times[place], 3) for place in kept], "series": series, "bars": bars}
    text = json.dumps(data, separators=(",", ":"))
    sentences = [(SCALE_OF_BARS, 0.0)] if bars else _sentences(times, lines)
    return Chart(name, title, times, lines, text, len(kept), sentences)


def _sentences(times: Sequence[float], lines: Sequence[Line]) -> list[tuple[str, float]]:
    sentences = []
    for line in lines:
        pairs = zip(line.values, times, strict=True)
        most, when = max(((value, at) for value, at in pairs if value is not None), default=(0, -1))
        if when >= 0:
            now = line.values[-1]  # unknown if its node is gone
            said = "unknown" if now is None else f"{line.figure(now)}{line.unit}"
            text = f"{line.label}: now {said}, at most {line.figure(most)}{line.unit} at"
            sentences.append((text, when))
    return sentences


def spark(times: Sequence[float], values: Values) -> str:
    """The `d` of an SVG path in a box of 100 x 20, with a gap where figures are unknown.

    It is "" for fewer than two known figures. The box starts at zero, and at the first time.
    """
    known = [value for value in values if value is not None]
    if len(known) < 2 or times[-1] <= times[0]:
        return ""
    most, path, verb = max(known) or 1.0, [], "M"
    for at, value in zip(times, values, strict=True):
        if value is not None:
            x = 100 * (at - times[0]) / (times[-1] - times[0])
            path.append(f"{verb}{x:.0f},{19 - value * 18 / most:.1f}")
        verb = "M" if value is None else "L"
    return "".join(path)
