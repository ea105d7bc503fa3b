"""How the rows of an overview are displayed: columns, order, and the visible part.

1. A column has the same name on the command line (`--sort`) and for its key; pressing the key again
   reverses the order. Numbers start with the largest, names with the first, states with the worst.
2. Unknown values are shown as `-`, and sort as the smallest of their column.
3. One row is selected, and stays selected while rows change places. Enter opens its channel, Esc
   closes it. `/` begins a filter: a text that a row must have in its topic, channel or state.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sparq.program.mistakes import suggestion

if TYPE_CHECKING:
    from sparq.tools.overview import Key, OverviewRow, Severity

MINUTE, HOUR, DAY = 60, 3600, 86_400
UNKNOWN = "-"
FILTER_LENGTH_MAX: Final = 64


def count(value: int | None) -> str:
    """Format as `12,345`."""
    return UNKNOWN if value is None else f"{value:,}"


def rate(value: float | None) -> str:
    """Format as `12,345`; below 10 with one decimal, unless it is 0."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


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


def yes_or_no(value: bool) -> str:
    """Return "yes" or "no", as NSQ's own pages do."""
    return "yes" if value else "no"


def known(name: str) -> Callable[[OverviewRow], int | None]:
    """Return a function that gets a count of a row; None if no nsqd that has the row answers."""
    return lambda row: getattr(row, name) if row.nsqds else None


def words_of(state: Severity) -> str:
    """Return the words of a state."""
    return state.words


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its key, its heading, its value in a row, and how to format that."""

    name: str
    key: str
    heading: str
    figure: Callable[[OverviewRow], Any]
    text: Callable[[Any], str]

    @property
    def is_text(self) -> bool:
        """Whether the column shows names, not figures."""
        return self.text is str

    @property
    def is_left(self) -> bool:
        """Whether its cells are left-aligned: words, not figures."""
        return self.is_text or self.text is words_of

    def order(self, row: OverviewRow) -> Any:
        """Return the value that rows are sorted by."""
        figure = self.figure(row)
        return -1 if figure is None else figure


COLUMNS = (
    Column("topic", "t", "TOPIC", lambda row: row.topic, str),
    Column("channel", "c", "CHANNEL", lambda row: row.channel or UNKNOWN, str),
    Column("in", "i", "IN/S", lambda row: row.in_rate, rate),
    Column("out", "o", "OUT/S", lambda row: row.out_rate, rate),
    Column("depth", "d", "DEPTH", known("depth"), count),
    Column("in_flight", "f", "IN FLIGHT", known("in_flight"), count),
    Column("deferred", "e", "DEFERRED", known("deferred"), count),
    Column("lag", "l", "LAG", lambda row: row.lag_seconds, duration),
    Column("requeued", "r", "REQUEUED/S", lambda row: row.requeue_rate, rate),
    Column("timed_out", "m", "TIMED OUT/S", lambda row: row.timeout_rate, rate),
    Column("clients", "n", "CLIENTS", known("clients"), count),
    Column("paused", "p", "PAUSED", lambda row: row.is_paused, yes_or_no),
    Column("state", "a", "STATE", lambda row: row.state, words_of),
)
BY_NAME = {column.name: column for column in COLUMNS}
BY_KEY = {column.key: column for column in COLUMNS}


def column_name(text: str) -> str:
    """Return a column's name, given its name or heading in any case, with or without ``/S``.

    Two words may be joined by a space, a dash or an underscore.

    Raises:
        ValueError: there is no such column.
    """
    wanted = _plain(text)
    for column in COLUMNS:
        if wanted in (_plain(column.name), _plain(column.heading)):
            return column.name
    raise ValueError(f"column must be one of {', '.join(BY_NAME)}{suggestion(wanted, BY_NAME)}")


def _plain(text: str) -> str:
    return text.lower().replace(" ", "_").replace("-", "_").removesuffix("/s")


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
        self.is_descending = not self.column.is_text
        self.is_frozen = False
        self.first = 0
        self.filter = ""
        self.is_typing = False
        self.selected: Key | None = None
        self.opened: Key | None = None
        self.matching = 0
        self._keys: list[Key] = []
        self._cursor = 0

    def press(self, key: str, page: int) -> bool:
        """Handle a key; return False if the view has no use for it.

        Args:
            key: a character, or one of the names in `terminal.NAMES`.
            page: the number of rows that fit on the screen.
        """
        if self.is_typing:
            return self._type(key)
        if key == "escape":
            return self._go_back()
        if self.opened is not None:
            return self._press_in_channel(key, page)
        if key == "enter":
            self._open()
        elif key == "/":
            self.is_typing = True
        elif key == "space":
            self.is_frozen = not self.is_frozen
        elif key in BY_KEY:
            self._sort_by(BY_KEY[key])
        else:
            return self._move(key, page)
        return True

    def _type(self, key: str) -> bool:
        """Handle a key while the filter is typed: Enter keeps the filter, Esc drops it."""
        if key == "enter":
            self.is_typing = False
        elif key == "escape":
            self.is_typing, self.filter = False, ""
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif key == "space" or len(key) == 1:
            letter = " " if key == "space" else key
            self.filter = (self.filter + letter)[:FILTER_LENGTH_MAX]
        else:
            return False
        return True

    def _go_back(self) -> bool:
        """Close the channel; if none is open, drop the filter."""
        if self.opened is not None:
            self.opened, self.first = None, 0
        else:
            self.filter = ""
        return True

    def _press_in_channel(self, key: str, page: int) -> bool:
        """Handle a key of an opened channel, whose clients may need scrolling."""
        steps = {"up": -1, "down": 1, "page up": -page, "page down": page}
        if key == "space":
            self.is_frozen = not self.is_frozen
        elif key in steps:
            self.first = max(0, self.first + steps[key])
        elif key in ("home", "end"):
            self.first = 0 if key == "home" else sys.maxsize
        else:
            return False
        return True

    def _open(self) -> None:
        if self._keys:
            self.opened, self.first = self._keys[self._cursor], 0

    def _move(self, key: str, page: int) -> bool:
        """Select another row."""
        steps = {"up": -1, "down": 1, "page up": -page, "page down": page}
        steps |= {"home": -len(self._keys), "end": len(self._keys)}
        if key not in steps:
            return False
        if self._keys:
            self._cursor = max(0, min(self._cursor + steps[key], len(self._keys) - 1))
            self.selected = None if key == "home" else self._keys[self._cursor]
        return True

    def _sort_by(self, column: Column) -> None:
        same = column is self.column
        self.is_descending = not self.is_descending if same else not column.is_text
        self.column, self.first, self._cursor, self.selected = column, 0, 0, None

    def sorted(self, rows: Sequence[OverviewRow]) -> list[OverviewRow]:
        """Return all rows in order; equal ones by topic and channel."""
        # Two sorts: with one key, `reverse` would also reverse the names of equal rows.
        by_name = sorted(rows, key=lambda row: (row.topic, row.channel))
        return sorted(by_name, key=self.column.order, reverse=self.is_descending)

    def page(self, rows: Sequence[OverviewRow], size: int) -> list[OverviewRow]:
        """Return the visible rows, at most ``size``; the selected row is among them."""
        found = self.sorted([row for row in rows if self._matches(row)])
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

    def _matches(self, row: OverviewRow) -> bool:
        where = f"{row.topic}/{row.channel} {row.state.words}"
        return self.filter.lower() in where.lower()


def cells(row: OverviewRow, columns: Sequence[Column] = COLUMNS) -> list[str]:
    """Format a row's cells."""
    return [column.text(column.figure(row)) for column in columns]
