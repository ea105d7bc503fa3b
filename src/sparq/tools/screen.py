"""The screen of `sparq top`: a head line, the rows that fit, what is wrong, and the keys.

What came from a peer is drawn as text and never read as markup: names are those that NSQ allows,
other texts have no control characters (`cluster`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Final, Literal

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sparq.tools.overview import Overview, Row
from sparq.tools.view import BY_NAME, COLUMNS, Column, View, cells, rate

COMPLAINTS_MAX: Final = 3
FRAME_LINES: Final = 4
"""The head line, the table's headings, the keys, and one that stays free."""

KEYS: Final = (
    "q: quit   underlined letter: sort, again: reverse   arrows, pages, home, end: scroll"
    "   space: freeze"
)
GAP: Final = 2
ARROW: Final = 2
"""What a heading is longer by when rows are sorted by its column."""

NAME_WIDTH: Final = 12
"""Names are cut to it, rather than that a column with a figure is spared."""

SPARED: Final = ("paused", "timed_out", "requeued", "deferred", "clients", "in_flight")
SPARED_AT_LAST: Final = ("in", "out", "lag")
"""Columns that a narrow terminal does without, the first one first; not the one sorted by."""

SLOW_SECONDS: Final = 60


class Screen:
    """Draws overviews on a terminal.

    Args:
        view: which rows, in which order.
        title: what the head line begins with.
        console: the terminal.
    """

    def __init__(self, view: View, title: str, console: Console | None = None) -> None:
        self._view = view
        self._title = title
        self._console = console or Console()
        self._live = Live(console=self._console, screen=True, auto_refresh=False)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Take the whole terminal for the time of the block."""
        with self._live:
            yield

    def page_size(self, complaints: int) -> int:
        """How many rows fit beside so many complaints."""
        lines = self._console.height - FRAME_LINES - min(complaints, COMPLAINTS_MAX + 1)
        return max(1, lines)

    def draw(self, seen: Overview, errors: dict[str, str]) -> None:
        """Show this now."""
        self._live.update(self.picture(seen, errors), refresh=True)

    def picture(self, seen: Overview, errors: dict[str, str]) -> Group:
        """All that is on the screen."""
        complaints = [f"{address}: {why}" for address, why in {**errors, **seen.ill}.items()]
        size = self.page_size(len(complaints))
        return Group(
            self._head(seen),
            self._table(seen, size),
            *self._complaints(complaints),
            Text(KEYS, style="dim", no_wrap=True, overflow="ellipsis"),
        )

    def _head(self, seen: Overview) -> Text:
        depth, in_flight = (int(seen.total(name) or 0) for name in ("depth", "in_flight"))
        parts = [
            self._title,
            "frozen" if self._view.is_frozen else f"{datetime.now():%H:%M:%S}",
            f"{seen.nsqds} nsqds",
            f"{seen.topics:,} topics",
            f"in {rate(seen.in_rate)}/s",
            f"out {rate(seen.total('out_rate'))}/s",
            f"depth {depth:,}",
            f"in flight {in_flight:,}",
        ]
        return Text("   ".join(parts), style="bold", no_wrap=True, overflow="ellipsis")

    def _table(self, seen: Overview, size: int) -> Table:
        rows = self._view.page(seen.rows, size)
        # Those of all rows: nothing moves sideways while somebody scrolls.
        columns = fitting(seen.rows, self._console.width, self._view.column)
        table = Table(box=None, expand=True, header_style="reverse", pad_edge=False, padding=(0, 1))
        for column, width in columns.items():
            justify: Literal["left", "right"] = "left" if column.is_text else "right"
            table.add_column(self._heading(column), justify=justify, no_wrap=True, width=width)
        for row in rows:
            table.add_row(*map(Text, cells(row, list(columns))), style=_style(row))
        return table

    def _heading(self, column: Column) -> Text:
        arrow = {True: " v", False: " ^"}[self._view.is_descending]
        heading = Text(column.heading + (arrow if column is self._view.column else ""))
        at = column.heading.lower().index(column.key)
        heading.stylize("underline", at, at + 1)
        return heading

    def _complaints(self, complaints: list[str]) -> list[Text]:
        shown = complaints[:COMPLAINTS_MAX]
        if len(complaints) > len(shown):
            shown.append(f"... and {len(complaints) - len(shown)} more")
        return [Text(text, style="red", no_wrap=True, overflow="ellipsis") for text in shown]


def fitting(rows: Sequence[Row], width: int, sorted_by: Column) -> dict[Column, int]:
    """The columns that have room beside one another, and how wide they are.

    No figure is ever cut: names are, and columns spared.
    """
    widths = {column: _width(column, rows, sorted_by) for column in COLUMNS}
    for name in (*SPARED, *SPARED_AT_LAST):
        least = sum(min(each, NAME_WIDTH) if of.is_text else each for of, each in widths.items())
        if least + GAP * (len(widths) - 1) <= width:
            break
        if name != sorted_by.name:
            del widths[BY_NAME[name]]
    figures = sum(each for of, each in widths.items() if not of.is_text)
    _cut_names(widths, width - figures - GAP * (len(widths) - 1))
    return widths


def _width(column: Column, rows: Sequence[Row], sorted_by: Column) -> int:
    heading = len(column.heading) + (ARROW if column is sorted_by else 0)
    return max(heading, *(len(column.text(column.figure(row))) for row in rows), 0)


def _cut_names(widths: dict[Column, int], room: int) -> None:
    """Let topic and channel share the room that there is for them: the short one is whole."""
    topic, channel = (BY_NAME[name] for name in ("topic", "channel"))
    short, long = sorted((topic, channel), key=lambda column: widths[column])
    widths[short] = max(1, min(widths[short], room // 2))
    widths[long] = max(1, min(widths[long], room - widths[short]))


def _style(row: Row) -> str:
    """What deserves a look: a channel that does not get on, one that lags, one that is paused."""
    lag = row.lag_seconds
    if row.is_paused:
        return "dim"
    if lag is None or lag < SLOW_SECONDS:
        return ""
    return "red" if math.isinf(lag) else "yellow"
