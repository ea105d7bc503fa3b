"""The results of runs, their medians, and the table as text and Markdown.

Ratios are to Go's nsqd in memory, its best case, in the same run.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.generator import BUSY_SHARE, Figures

REFERENCE = "go"


@dataclass
class Cell:
    """All rounds of one contestant on one line."""

    label: str
    rounds: list[Figures] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Median messages per second."""
        return statistics.median(each.rate for each in self.rounds)

    @property
    def server_us(self) -> float:
        """Median microseconds of server CPU per message."""
        return statistics.median(each.server_us for each in self.rounds)

    @property
    def generator_us(self) -> float:
        """Median microseconds of the generator's CPU per message."""
        return statistics.median(each.generator_us for each in self.rounds)

    @property
    def generator_share(self) -> float:
        """Median part of the time for which the generator was busy."""
        return statistics.median(each.generator_share for each in self.rounds)

    def quantile_ms(self, part: float) -> float:
        """A quantile of the times of all rounds, in ms."""
        times = [second for each in self.rounds for second in each.times]
        return float(np.quantile(times, part)) * 1e3 if times else float("nan")


@dataclass
class Result:
    """One line of the table: a cell for each contestant that took part, by key."""

    name: str
    has_times: bool
    cells: dict[str, Cell] = field(default_factory=dict)

    def columns(self, key: str) -> list[str]:
        """A cell's figures, formatted for the table."""
        cell, go = self.cells[key], self.cells.get(REFERENCE)
        mark = "*" if cell.generator_share > BUSY_SHARE else ""
        found = [
            f"{cell.rate:,.0f}{mark}",
            f"{cell.server_us:.2f}",
            f"{cell.generator_us:.2f}",
            f"{cell.generator_share:.0%}",
            f"{cell.rate / go.rate:.2f}" if go and go.rate else "",
            f"{cell.server_us / go.server_us:.2f}" if go and go.server_us else "",
        ]
        if self.has_times:
            found += [f"{cell.quantile_ms(0.5):.3f}", f"{cell.quantile_ms(0.99):.3f}"]
        return found


HEADINGS = (
    "msg/s",
    "CPU us",
    "load us",
    "load busy",
    "rate : Go",
    "CPU : Go",
    "p50 ms",
    "p99 ms",
)
WIDTHS = (12, 10, 9, 10, 10, 10, 10, 10)
NOTE = "* the load generator was busy all the time: the server may be faster than this"


def text(result: Result) -> str:
    """A line and its contestants, for a terminal."""
    headings = HEADINGS if result.has_times else HEADINGS[:6]
    lines = [f"{result.name:<44}" + padded(headings)]
    lines += [
        f"  {cell.label:<42}" + padded(result.columns(key)) for key, cell in result.cells.items()
    ]
    return "\n".join(lines)


def padded(columns: Sequence[str]) -> str:
    """Columns right-aligned under their headings."""
    return "".join(
        f"{column:>{width}}" for column, width in zip(columns, WIDTHS[: len(columns)], strict=True)
    )


def markdown(results: Sequence[Result]) -> str:
    """All lines as a Markdown table."""
    rows: list[tuple[str, ...]] = [("", *HEADINGS)]
    for result in results:
        rows.append((f"**{result.name}**", *[""] * len(HEADINGS)))
        for key, cell in result.cells.items():
            columns = result.columns(key)
            rows.append((cell.label, *columns, *[""] * (len(HEADINGS) - len(columns))))
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|---" * (len(HEADINGS) + 1) + "|")
    return "\n".join(lines)
