"""The table of the pipeline's bench: its figures, and for each a limit and a target.

A figure is the median of its rounds. A ratio is that of two medians of one run, whose sides were
measured in turn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

HEADER = f"{'figure':<62}{'median':>14}  unit  (rounds)"


@dataclass
class Figure:
    """One line of the table: all rounds of one figure."""

    name: str
    unit: str
    rounds: list[float] = field(default_factory=list)

    @property
    def value(self) -> float:
        """The median of the rounds."""
        return median(self.rounds)

    def line(self) -> str:
        """The line of the table; with several rounds, their values too."""
        places = 0 if self.value >= 1_000 else 2
        text = f"{self.name:<62}{self.value:>14,.{places}f}  {self.unit}"
        more = ", ".join(f"{value:,.{places}f}" for value in self.rounds)
        return f"{text}  ({more})" if len(self.rounds) > 1 else text

    def as_json(self) -> dict[str, Any]:
        """The figure as JSON; an infinite value, of something that never arrived, is null."""
        rounds = [value if math.isfinite(value) else None for value in self.rounds]
        value = self.value if math.isfinite(self.value) else None
        return {"figure": self.name, "unit": self.unit, "median": value, "rounds": rounds}


class Target(NamedTuple):
    """A figure's limit (`must`) and its target; lower bounds if `is_least`, else upper bounds."""

    figure: str
    must: float
    target: float
    is_least: bool = False

    def grade(self, value: float) -> str:
        """The grade of a value: "target met", "must met" or "MISSED"."""
        for name, limit in (("target met", self.target), ("must met", self.must)):
            if value >= limit if self.is_least else value <= limit:
                return name
        return "MISSED"

    def line(self, value: float) -> str:
        """The figure, its bounds and its grade, as text."""
        side = "at least" if self.is_least else "at most"
        bounds = f"{side} {self.must:g}" + f", target {self.target:g}" * (self.target != self.must)
        return f"  {self.figure:<62}{value:>12,.2f}  {bounds}: {self.grade(value)}"


COMBINED = "CPU of reading a combined line"
JSON = "CPU of reading a JSON click"
WORST_JSON = "CPU of reading a JSON click with escapes and a float time"

REFERENCE = "reference: three batch jobs from Parquet"
SUSTAINED = "three queries side by side, sustained"
SUSTAINED_RATIO = "three queries : reference"
ALONE = {
    "archive": "archive alone, sustained",
    "metrics": "metrics alone, sustained",
    "spam_analysis": "sessions and findings alone, sustained",
}
LONG = "make run with start and end, {:,} clicks"
LONG_RATIO = "make run with start and end, {:,} clicks : reference"
OPENED = "open a table of a batch a second and count its rows"
RUN = "make run, start to report"
FIRST = "make run, start to first click archived"
PEAK_RATIO = "driver's peak memory, all clicks : a tenth"
LIVE_RATIO = "driver's live heap and Python, all clicks : a tenth"
STATE_RATIO = "batch of 5,000 clicks, many open visitors : few"
MINUTE_50, MINUTE_99 = "click to readable minute, p50", "click to readable minute, p99"
FINDING_50, FINDING_99 = "click to readable finding, p50", "click to readable finding, p99"

TARGETS = (
    Target(COMBINED, 3, 2),
    Target(JSON, 5, 3),
    Target(WORST_JSON, 12, 8),
    Target(SUSTAINED_RATIO, 0.9, 1.2, is_least=True),
    Target(ALONE["archive"], 55_000, 75_000, is_least=True),
    Target(ALONE["metrics"], 100_000, 150_000, is_least=True),
    Target(ALONE["spam_analysis"], 60_000, 90_000, is_least=True),
    Target(RUN, 35, 30),
    Target(FIRST, 15, 12),
    Target(LONG_RATIO.format(500_000), 0.35, 0.5, is_least=True),
    Target(LONG_RATIO.format(2_000_000), 0.6, 0.9, is_least=True),
    Target(OPENED, 3, 1),
    Target(PEAK_RATIO, 1.15, 1.15),
    Target(LIVE_RATIO, 1.15, 1.15),
    Target(STATE_RATIO, 2.0, 1.3),
    Target(MINUTE_50, 3, 1.5),
    Target(MINUTE_99, 8, 4),
    Target(FINDING_50, 5, 3),
    Target(FINDING_99, 10, 6),
)


def graded(figures: Sequence[Figure]) -> list[tuple[Target, float]]:
    """Each target whose figure was measured, with its value."""
    values = {figure.name: figure.value for figure in figures if figure.rounds}
    return [(target, values[target.figure]) for target in TARGETS if target.figure in values]


def verdicts(figures: Sequence[Figure]) -> list[str]:
    """A line for each target whose figure was measured."""
    return [target.line(value) for target, value in graded(figures)]


def report(figures: Sequence[Figure], commit: str) -> str:
    """The table of all targets whose figures were measured, with the commit; "" if none was."""
    found = verdicts(figures)
    return "\n".join([f"targets at commit {commit}:", *found]) if found else ""


def as_json(figures: Sequence[Figure]) -> dict[str, Any]:
    """Figures and targets for a JSON file."""
    targets = [
        {
            "figure": target.figure,
            "must": target.must,
            "target": target.target,
            "is": target.grade(value),
        }
        for target, value in graded(figures)
    ]
    return {"figures": [figure.as_json() for figure in figures], "targets": targets}
