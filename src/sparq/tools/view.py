"""How figures are displayed: cells, tables, and the columns, order and visible part of `sparq top`.

1. A column has the same name on the command line (`--sort`) and for its key; pressing the key again
   reverses the order. Numbers start with the largest, names with the first, states with the worst.
2. Unknown values are shown as `-`, and sort as the smallest of their column.
3. One row is selected, and stays selected while rows change places. Enter opens its channel, Esc
   closes it. `/` begins a filter: a text that a row must have in its topic, channel or state.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sparq.options.mistakes import suggestion
from sparq.protocol.names import one_line

if TYPE_CHECKING:
    from sparq.cluster.rows import Key
    from sparq.tools.overview import OverviewRow

MINUTE, HOUR, DAY = 60, 3600, 86_400
UNKNOWN: Final = "-"
GAP: Final = "  "
FILTER_LENGTH_MAX: Final = 64
SECONDS: Final = "_seconds"
TEXTS: Final = ("body", "detail", "result", "would")
"""Columns of `table` that hold text, whatever their position."""


def duration(seconds: float | None) -> str:
    """Format as `0.4s`, `5m02s`, `3h07m`, `2d04h`."""
    if seconds is None:
        return UNKNOWN
    if seconds < MINUTE:
        return f"{seconds:.1f}s" if seconds else "0s"
    whole = round(seconds)
    if whole < HOUR:
        return f"{whole // MINUTE}m{whole % MINUTE:02}s"
    if whole < DAY:
        return f"{whole // HOUR}h{whole % HOUR // MINUTE:02}m"
    return f"{whole // DAY}d{whole % DAY // HOUR:02}h"


def rate(value: float | None) -> str:
    """Format as `12,345`; below 10 with one decimal, unless it is 0."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def cell(name: str, value: Any) -> str:
    """Format a value as text on one line; `name` is its column's key in JSON (`lag_seconds`)."""
    if value is None or value == "":
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return duration(float(value)) if name.endswith(SECONDS) else f"{value:,}"
    return one_line(str(value))


def aligned(
    rows: Sequence[Sequence[str]], texts: Collection[int], width: float = math.inf
) -> list[str]:
    """Return a line for each row, every column padded to its widest cell.

    Args:
        rows: the cells; all rows have the same number of them.
        texts: the indexes of text columns, which are left-aligned. The others hold numbers.
        width: the maximum length of a line: texts are cut, the longest first, but no numbers.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    while sum(widths) + len(GAP) * (len(widths) - 1) > width:
        longest = max(texts, key=widths.__getitem__)
        if widths[longest] == 1:
            break
        widths[longest] -= 1

    def fit(cell: str, at: int) -> str:
        if len(cell) > widths[at]:
            return f"{cell[: widths[at] - 1]}…"
        return cell.ljust(widths[at]) if at in texts else cell.rjust(widths[at])

    return [GAP.join(fit(cell, at) for at, cell in enumerate(row)).rstrip() for row in rows]


def table(headings: Sequence[str], rows: Iterable[Mapping[str, Any]], texts: int) -> list[str]:
    """Return the lines of a table, without characters that a terminal would interpret.

    Args:
        headings: the keys of the rows in order, as in JSON (`in_flight`).
        rows: the cells by key; None means unknown.
        texts: the number of leading text columns; the others hold numbers.
    """
    lefts = {*range(texts), *(at for at, name in enumerate(headings) if name in TEXTS)}
    first = [name.removesuffix(SECONDS).replace("_", " ").upper() for name in headings]
    return aligned(
        [first, *([cell(name, row.get(name)) for name in headings] for row in rows)], lefts
    )


@dataclass(frozen=True, slots=True)
class Column:
    """One column of `sparq top`: its key and heading, and the field of a row that it shows.

    `kind` says how: name, words, count, rate, or as `cell` does.
    """

    key: str
    heading: str
    field: str
    kind: str = ""

    @property
    def is_text(self) -> bool:
        """Whether it holds text."""
        return self.kind in ("name", "words")

    def value(self, row: OverviewRow) -> Any:
        """Return the value of a row's cell; None: unknown."""
        # A count is unknown if no nsqd that has it answers.
        return None if self.kind == "count" and not row.nodes else getattr(row, self.field)

    def order(self, row: OverviewRow) -> Any:
        """Return the value that rows are sorted by."""
        value = self.value(row)
        if self.kind == "words":
            return row.severity, value
        return -1 if value is None else value

    def text(self, row: OverviewRow) -> str:
        """Format a row's cell."""
        value = self.value(row)
        return rate(value) if self.kind == "rate" else cell(self.field, value)


def _name(text: str) -> str:
    return text.lower().replace(" ", "_").replace("-", "_").removesuffix("/s")


COLUMNS = (
    Column("t", "TOPIC", "topic", "name"),
    Column("c", "CHANNEL", "channel", "name"),
    Column("i", "IN/S", "in_rate", "rate"),
    Column("o", "OUT/S", "out_rate", "rate"),
    Column("d", "DEPTH", "depth", "count"),
    Column("f", "IN FLIGHT", "in_flight", "count"),
    Column("e", "DEFERRED", "deferred", "count"),
    Column("l", "LAG", "lag_seconds"),
    Column("r", "REQUEUED/S", "requeue_rate", "rate"),
    Column("m", "TIMED OUT/S", "timeout_rate", "rate"),
    Column("n", "CLIENTS", "clients", "count"),
    Column("p", "PAUSED", "paused"),
    Column("a", "STATE", "state", "words"),
)
BY_NAME = {_name(column.heading): column for column in COLUMNS}
BY_KEY = {column.key: column for column in COLUMNS}


def column_name(text: str) -> str:
    """Return a column's name, given its name or heading in any case, with or without ``/S``.

    Two words may be joined by a space, a dash or an underscore.

    Raises:
        ValueError: there is no such column.
    """
    wanted = _name(text)
    if wanted not in BY_NAME:
        raise ValueError(f"column must be one of {', '.join(BY_NAME)}{suggestion(wanted, BY_NAME)}")
    return wanted


class View:
    """The visible part of the rows.

    Args:
        sort: name of the column to sort by.

    Attributes:
        column: the column to sort by.
        is_descending: whether the largest comes first.
        is_frozen: whether the screen stays unchanged.
        first: the number of rows above the screen.
        filter: text that a row must have; "": all rows are shown.
        is_typing: whether keys are letters of the filter.
        selected: topic and channel that the selection follows; None: it stays in its position.
        opened: topic and channel that is shown alone; None: the list of all.
        matching: the number of rows that match the filter.
    """

    def __init__(self, sort: str = "topic") -> None:
        self.column = BY_NAME[sort]
        self.is_descending = self.column.kind != "name"
        self.is_frozen = False
        self.first = 0
        self.filter = ""
        self.is_typing = False
        self.selected: Key | None = None
        self.opened: Key | None = None
        self.matching = 0
        self._keys: list[Key] = []
        self._cursor = 0

    def press(self, key: str, page: int) -> None:
        """Handle a key.

        Args:
            key: a character, or one of the names in `terminal.NAMES`.
            page: the number of rows that fit on the screen.
        """
        steps = {"up": -1, "down": 1, "page up": -page, "page down": page}
        steps |= {"home": -sys.maxsize, "end": sys.maxsize}
        if self.is_typing:
            self._type(key)
        elif key == "space":
            self.is_frozen = not self.is_frozen
        elif self.opened is not None:
            self.first = max(0, self.first + steps.get(key, 0))
            if key == "escape":
                self.opened, self.first = None, 0
        elif key == "escape":
            self.filter = ""
        elif key == "/":
            self.is_typing = True
        elif (column := BY_KEY.get(key)) is not None:
            is_same = column is self.column
            self.is_descending = not self.is_descending if is_same else column.kind != "name"
            self.column, self.first, self._cursor, self.selected = column, 0, 0, None
        elif self._keys and key == "enter":
            self.opened, self.first = self._keys[self._cursor], 0
        elif self._keys and key in steps:
            self._cursor = max(0, min(self._cursor + steps[key], len(self._keys) - 1))
            self.selected = None if key == "home" else self._keys[self._cursor]

    def _type(self, key: str) -> None:
        """Handle a key while the filter is typed: Enter keeps the filter, Esc drops it."""
        letter = " " if key == "space" else key
        if key in ("enter", "escape"):
            self.is_typing = False
        if key == "escape":
            self.filter = ""
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(letter) == 1:
            self.filter = (self.filter + letter)[:FILTER_LENGTH_MAX]

    def sorted(self, rows: Iterable[OverviewRow]) -> list[OverviewRow]:
        """Return all rows in order; equal ones by topic and channel."""
        # Two sorts: with one key, `reverse` would also reverse the names of equal rows.
        by_name = sorted(rows, key=lambda row: row.key)
        return sorted(by_name, key=self.column.order, reverse=self.is_descending)

    def page(self, rows: Sequence[OverviewRow], size: int) -> list[OverviewRow]:
        """Return the visible rows, at most ``size``; the selected row is among them."""
        wanted = self.filter.lower()
        found = self.sorted(
            row for row in rows if wanted in f"{row.topic}/{row.channel} {row.state}".lower()
        )
        self._keys = [row.key for row in found]
        self.matching = len(found)
        # Found again by its name: rows move when figures change, and Enter must open the row that
        # was selected.
        if self.selected in self._keys:
            self._cursor = self._keys.index(self.selected)
        else:
            self.selected = None
        self._cursor = max(0, min(self._cursor, len(found) - 1))
        self.first = max(self._cursor - size + 1, min(self.first, self._cursor))
        self.first = max(0, min(self.first, len(found) - size))
        return found[self.first : self.first + size]

    def is_selected(self, row: OverviewRow) -> bool:
        """Whether Enter would open this row."""
        return bool(self._keys) and row.key == self._keys[self._cursor]
