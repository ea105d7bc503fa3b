"""A chart's data for the script, its summary in words, and its figures as a table. Pure.

A canvas is not accessible to users who cannot see it, so each chart also has a sentence and a table
with the same content.
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
        summary: its content in a sentence or two.
        rows: (time, figures) of the table, the latest first.
    """

    id: str
    title: str
    lines: Sequence[Line]
    data: str
    count: int
    summary: str
    rows: Sequence[tuple[str, Sequence[str]]]

    @property
    def is_empty(self) -> bool:
        """Whether there are too few points to draw."""
        return self.count < 2


def chart(
    name: str, title: str, times: Sequence[float], lines: Sequence[Line], *, bars: bool = False
) -> Chart:
    """Build a chart of lines, or bars, over the same times in seconds since 1970."""
    step = -(-len(times) // POINTS_MAX) or 1
    # Counted from the end, so that the newest figure is always included.
    thin = slice(-1, None, -step)
    data = {
        "times": [round(at, 3) for at in times[thin]][::-1],
        "series": [
            {
                "label": line.label,
                "unit": line.unit,
                "values": [_rounded(value) for value in line.values[thin]][::-1],
            }
            for line in lines
        ],
    }
    text = json.dumps(data | {"bars": bars}, separators=(",", ":"))
    summary = "" if bars else _summary(times, lines)
    return Chart(name, title, lines, text, len(times[thin]), summary, _rows(times, lines))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 0 if abs(value) >= 100 else 2)


def _summary(times: Sequence[float], lines: Sequence[Line]) -> str:
    sentences = []
    for line in lines:
        known = [
            (value, at) for value, at in zip(line.values, times, strict=True) if value is not None
        ]
        if not known:
            continue
        most, when = max(known)
        now = words.rate(known[-1][0])
        sentences.append(
            f"{line.label}: now {now}{line.unit}, at most {words.rate(most)}{line.unit}"
            f" at {words.clock(when)}."
        )
    return " ".join(sentences)


def _rows(times: Sequence[float], lines: Sequence[Line]) -> list[tuple[str, list[str]]]:
    step = max(1, (len(times) - 1) // (TABLE_ROWS - 1)) if len(times) > 1 else 1
    places = range(len(times) - 1, -1, -step)
    return [
        (words.clock(times[place]), [words.rate(line.values[place]) for line in lines])
        for place in places
    ]


def spark(values: Values) -> str:
    """The `points` of an SVG polyline in a box of 100 x 20; "" for fewer than two figures."""
    known = [value or 0.0 for value in values]
    if len(known) < 2:
        return ""
    most = max(known) or 1.0
    return " ".join(
        f"{place * 100 / (len(known) - 1):.0f},{19 - value * 18 / most:.1f}"
        for place, value in enumerate(known)
    )
