"""How the rows of an overview are shown: their columns, their order, and which part of them.

1. A column is named the same on the command line (`--sort`) and under a key; pressing its key a
   second time turns the order round. Numbers begin with the largest, names with the first.
2. What is unknown is shown as `-`, and is the smallest of its column.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparq.program.mistakes import suggestion

if TYPE_CHECKING:
    from sparq.tools.overview import Row

MINUTE, HOUR, DAY = 60, 3600, 86_400
UNKNOWN = "-"


def count(value: int) -> str:
    """`12,345`."""
    return f"{value:,}"


def rate(value: float | None) -> str:
    """`12,345`; with a decimal below 10, where it says something."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def duration(seconds: float | None) -> str:
    """`0.4s`, `5m02s`, `3h07m`, `2d04h`; `stuck` for what never ends."""
    if seconds is None:
        return UNKNOWN
    if math.isinf(seconds):
        return "stuck"
    if seconds < MINUTE:
        return f"{seconds:.1f}s" if seconds else "0s"
    whole = round(seconds)
    if whole < HOUR:
        return f"{whole // MINUTE}m{whole % MINUTE:02}s"
    if whole < DAY:
        return f"{whole // HOUR}h{whole % HOUR // MINUTE:02}m"
    return f"{whole // DAY}d{whole % DAY // HOUR:02}h"


def yes_or_no(value: bool) -> str:
    """As NSQ's own pages have it."""
    return "yes" if value else "no"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: what it is called, its key, the figure, and how that is written."""

    name: str
    key: str
    heading: str
    figure: Callable[[Row], Any]
    text: Callable[[Any], str]

    @property
    def is_text(self) -> bool:
        """Whether it holds names."""
        return self.text is str

    def order(self, row: Row) -> Any:
        """What rows are sorted by."""
        figure = self.figure(row)
        return -1 if figure is None else figure


COLUMNS = (
    Column("topic", "t", "TOPIC", lambda row: row.topic, str),
    Column("channel", "c", "CHANNEL", lambda row: row.channel or UNKNOWN, str),
    Column("in", "i", "IN/S", lambda row: row.in_rate, rate),
    Column("out", "o", "OUT/S", lambda row: row.out_rate, rate),
    Column("depth", "d", "DEPTH", lambda row: row.depth, count),
    Column("in_flight", "f", "IN FLIGHT", lambda row: row.in_flight, count),
    Column("deferred", "e", "DEFERRED", lambda row: row.deferred, count),
    Column("lag", "l", "LAG", lambda row: row.lag_seconds, duration),
    Column("requeued", "r", "REQUEUED/S", lambda row: row.requeue_rate, rate),
    Column("timed_out", "m", "TIMED OUT/S", lambda row: row.timeout_rate, rate),
    Column("clients", "n", "CLIENTS", lambda row: row.clients, count),
    Column("paused", "p", "PAUSED", lambda row: row.is_paused, yes_or_no),
)
BY_NAME = {column.name: column for column in COLUMNS}
BY_KEY = {column.key: column for column in COLUMNS}


def column_name(text: str) -> str:
    """A column's name, from a command line: its heading in any case, or without its ``/S``.

    Between two words stands a space, a dash or an underscore.

    Raises:
        ValueError: there is none of that name.
    """
    wanted = _plain(text)
    for column in COLUMNS:
        if wanted in (_plain(column.name), _plain(column.heading)):
            return column.name
    raise ValueError(f"column must be one of {', '.join(BY_NAME)}{suggestion(wanted, BY_NAME)}")


def _plain(text: str) -> str:
    return text.lower().replace(" ", "_").replace("-", "_").removesuffix("/s")


class View:
    """What of the rows is on the screen.

    Args:
        sort: name of the column to sort by.

    Attributes:
        column: the one that rows are sorted by.
        is_descending: whether the largest comes first.
        is_frozen: whether the screen is to stay as it is.
        first: how many rows are above the screen.
    """

    def __init__(self, sort: str = "topic") -> None:
        self.column = BY_NAME[sort]
        self.is_descending = not self.column.is_text
        self.is_frozen = False
        self.first = 0

    def press(self, key: str, page: int) -> bool:
        """Do what a key asks for; False when it is none of the view's.

        Args:
            key: a letter, or `up`, `down`, `page up`, `page down`, `home`, `end`, `space`.
            page: rows that fit on the screen.
        """
        steps = {"up": -1, "down": 1, "page up": -page, "page down": page}
        if key in steps:
            self.first = max(0, self.first + steps[key])
        elif key == "home":
            self.first = 0
        elif key == "end":
            self.first = sys.maxsize  # `page` knows which that is
        elif key == "space":
            self.is_frozen = not self.is_frozen
        elif key in BY_KEY:
            self._sort_by(BY_KEY[key])
        else:
            return False
        return True

    def _sort_by(self, column: Column) -> None:
        same = column is self.column
        self.is_descending = not self.is_descending if same else not column.is_text
        self.column, self.first = column, 0

    def sorted(self, rows: Sequence[Row]) -> list[Row]:
        """All rows in order; equal ones by topic and channel."""
        by_name = sorted(rows, key=lambda row: (row.topic, row.channel))
        return sorted(by_name, key=self.column.order, reverse=self.is_descending)

    def page(self, rows: Sequence[Row], size: int) -> list[Row]:
        """The rows that are to be seen, at most so many."""
        self.first = max(0, min(self.first, len(rows) - size))
        return self.sorted(rows)[self.first : self.first + size]


def cells(row: Row, columns: Sequence[Column] = COLUMNS) -> list[str]:
    """A row as texts."""
    return [column.text(column.figure(row)) for column in columns]
