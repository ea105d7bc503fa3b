"""The screen of `sparq top`: a head line, the rows that fit or one channel, errors, and the keys.

An opened channel shows its figures at each nsqd, and its clients, which can be scrolled. An nsqd
that no longer answers keeps its row with its last figures, and is marked.

Text from a peer is drawn as plain text, never read as markup: names are those that NSQ allows, and
other text contains no control characters (`cluster`).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from sparq.cluster.figures import Client
from sparq.protocol.names import one_line
from sparq.tools.overview import ChannelPart, Overview, OverviewRow, severity
from sparq.tools.view import BY_NAME, COLUMNS, GAP, Column, View, aligned, cell, duration, rate

COMPLAINTS_MAX: Final = 3
FRAME_LINES: Final = 4
"""The head line, the table's headings, the keys, and one free line."""

KEYS: Final = (
    "q: quit   underlined letter: sort, again: reverse   arrows: select   Enter: open"
    "   /: filter   space: freeze"
)
DISMISS_KEY: Final = "   x: dismiss gone nsqds"
NOT_LISTED: Final = "no nsqlookupd lists it any more"
CHANNEL_KEYS: Final = (
    "q: quit   Esc: back   arrows, pages, home, end: scroll the clients   space: freeze"
)
FIGURES: Final = (
    *("in", "out", "depth", "in_flight", "deferred", "lag"),
    *("requeued", "timed_out", "clients"),
)
CLIENT_HEADINGS: Final = (
    *("NSQD", "HOST", "ADDRESS", "CLIENT", "USER AGENT"),
    *("RDY", "IN FLIGHT", "FINISHED", "REQUEUED", "CONNECTED"),
)
CLIENT_TEXTS: Final = range(5)
OTHER_LINES: Final = 4
"""The first line, the headings of both tables, and a blank line between the tables."""

NAME_WIDTH: Final = 12
"""Names are cut to this width before a column with a figure is dropped."""

SPARED: Final = (
    *("paused", "timed_out", "requeued", "deferred", "clients", "in_flight"),
    *("in", "out", "lag", "state"),
)
"""Columns that a narrow terminal drops, in this order; never the sort column."""


@dataclass(slots=True)
class ChannelFacts:
    """The data of the opened channel.

    Attributes:
        row: the sum over its nsqds; None if no nsqd has it any more.
        parts: its row at each nsqd.
        clients: its clients, each with the address of its nsqd; None until an nsqd has been asked.
    """

    row: OverviewRow | None = None
    parts: list[ChannelPart] = field(default_factory=list)
    clients: list[tuple[str, Client]] | None = None


class Screen:
    """Draws overviews on a terminal.

    Args:
        view: selects and sorts the rows.
        title: the beginning of the head line.
        console: the terminal.

    Attributes:
        live: uses the full screen for the duration of a `with` block.
    """

    def __init__(self, view: View, title: str, console: Console | None = None) -> None:
        self._view = view
        self._title = title
        self._console = console or Console()
        self.live = Live(console=self._console, screen=True, auto_refresh=False)
        self._complaints = 0

    def page_size(self) -> int:
        """Return the number of rows that fit, given the error lines of the last refresh."""
        lines = self._console.height - FRAME_LINES - min(self._complaints, COMPLAINTS_MAX + 1)
        return max(1, lines)

    def draw(self, seen: Overview, errors: dict[str, str], opened: ChannelFacts) -> None:
        """Draw the screen now; `opened` belongs to the view's opened channel, if there is one."""
        self.live.update(self.contents(seen, errors, opened), refresh=True)

    def contents(self, seen: Overview, errors: dict[str, str], opened: ChannelFacts) -> Group:
        """Return the content of the screen."""
        view = self._view
        wrong = complaints(seen, errors)
        self._complaints = len(wrong)
        if len(wrong) > COMPLAINTS_MAX:
            wrong[COMPLAINTS_MAX:] = [f"... and {len(wrong) - COMPLAINTS_MAX} more"]
        body = self._rows(seen) if view.opened is None else self._channel(view.opened, opened)
        # The filter while it is typed or active, otherwise the keys.
        last = KEYS + (DISMISS_KEY if seen.gone else "")
        if view.is_typing:
            last = f"filter: {view.filter}_   Enter: keep it   Esc: show all"
        elif view.opened is not None:
            last = CHANNEL_KEYS
        elif view.filter:
            last = f"filter: {view.filter}   {view.matching} of {len(seen.rows)} rows   Esc: all"
        depth, in_flight = (int(seen.total(name) or 0) for name in ("depth", "in_flight"))
        first = [
            self._title,
            "frozen" if view.is_frozen else f"{datetime.now():%H:%M:%S}",
            f"{seen.nsqds} nsqds" + (f", {len(seen.gone)} gone" if seen.gone else ""),
            f"{seen.topics:,} topics",
            f"in {rate(seen.in_rate)}/s",
            f"out {rate(seen.total('out_rate'))}/s",
            f"depth {depth:,}",
            f"in flight {in_flight:,}",
        ]
        errors_shown = [_line(text, "red") for text in wrong]
        return Group(_line("   ".join(first), "bold"), *body, *errors_shown, _line(last, "dim"))

    def _rows(self, seen: Overview) -> list[Text]:
        view = self._view
        page = view.page(seen.rows, self.page_size())
        every = {row.key: [column.text(row) for column in COLUMNS] for row in seen.rows}
        kept = fitting([*every.values()], self._console.width, view.column)
        # With all rows, so that the columns do not move sideways while scrolling.
        rows = (*(every[row.key] for row in page), *every.values())
        cells = [[row[at] for at in kept] for row in rows]
        columns = [COLUMNS[at] for at in kept]
        texts = {at for at, column in enumerate(columns) if column.is_text}
        styles = []
        for row in page:
            # Red if messages wait and none is finished, yellow for less.
            style = "yellow" if row.severity >= severity("behind") or row.gone else ""
            waits = row.depth or row.in_flight or row.gone
            if waits and row.severity >= severity("no channel"):
                style = "red"
            if row.paused:
                style = "dim"
            styles.append("reverse" if view.is_selected(row) else style)
        head, *lines = self._table([_heading(view, each) for each in columns], cells, texts, styles)
        for column in columns:
            if (at := head.plain.find(column.heading)) >= 0:
                at += column.heading.lower().index(column.key)
                head.stylize("underline", at, at + 1)
        return [head, *lines]

    def _channel(self, key: tuple[str, str], facts: ChannelFacts) -> list[Text]:
        """Return the lines of the opened channel."""
        topic, channel = key
        height = self.page_size() + 1
        head = "no nsqd has it any more"
        if facts.row is not None:
            head = facts.row.state
            if head.startswith("stuck"):
                head += f": nothing finished for {duration(facts.row.unfinished_seconds)}"
            head += "   read by Spark" if facts.row.reader else ""
        lines = [_line(f"{topic} / {channel}   {head}" if channel else f"{topic}   {head}", "bold")]
        columns = [BY_NAME[name] for name in FIGURES]
        parts = facts.parts[: max(1, height // 2)]
        all_shown = len(parts) == len(facts.parts)
        heading = "NSQD" if all_shown else f"NSQD ({len(parts)} of {len(facts.parts)})"
        cells = [
            [
                *(part.address, *(column.text(part.row) for column in columns)),
                "gone: last figures" if part.is_gone else "",
            ]
            for part in parts
        ]
        styles = ["yellow" if part.is_gone else "" for part in parts]
        headings = [heading, *(column.heading for column in columns), ""]
        lines += self._table(headings, cells, range(1), styles)
        if channel:
            lines += [Text(), *self._clients(facts, max(1, height - OTHER_LINES - len(parts)))]
        return lines

    def _clients(self, facts: ChannelFacts, room: int) -> list[Text]:
        if not facts.clients:
            text = "asking for its clients ..." if facts.clients is None else "no clients"
            return [Text(text, style="dim")]
        view, count = self._view, len(facts.clients)
        view.first = max(0, min(view.first, count - room))
        shown = facts.clients[view.first : view.first + room]
        *headings, last = CLIENT_HEADINGS
        if len(shown) < count:
            last += f" ({view.first + 1}-{view.first + len(shown)} of {count})"
        cells = []
        for address, client in shown:
            since = max(0.0, time.time() - client.connect_ts) if client.connect_ts else None
            texts = (client.hostname, client.remote_address, client.client_id)
            counts = (
                *(client.ready_count, client.in_flight_count),
                *(client.finish_count, client.requeue_count),
            )
            agent = cell("", client.user_agent)
            figures = (*(f"{value:,}" for value in counts), duration(since))
            cells.append([address, *map(one_line, texts), agent, *figures])
        return self._table([*headings, last], cells, CLIENT_TEXTS, [""] * len(cells))

    def _table(
        self,
        headings: Sequence[str],
        cells: Sequence[Sequence[str]],
        texts: Collection[int],
        styles: Sequence[str],
    ) -> list[Text]:
        """Return the lines of a table, as many as there are styles; see `aligned`."""
        width = self._console.width
        lines = aligned([headings, *cells], texts, width)
        # Text objects: rich would read a plain string as markup.
        return [
            _line(line.ljust(width), style)
            for line, style in zip(lines, ("reverse", *styles), strict=False)
        ]


def complaints(seen: Overview, errors: dict[str, str]) -> list[str]:
    """Return a sentence per failing daemon; for a gone nsqd it includes the last figures."""
    found = {**errors, **seen.ill}
    for address, last in seen.gone.items():
        found[address] = (
            f"{found.get(address, NOT_LISTED)}; gone for {duration(last['seconds'])}, its last"
            f" figures: depth {last['depth']:,}, in flight {last['in_flight']:,},"
            f" deferred {last['deferred']:,}"
        )
    # Daemons that are gone come first: their messages cannot be delivered.
    first = sorted(found, key=lambda address: address not in seen.gone)
    return [f"{address}: {found[address]}" for address in first]


def _line(text: str, style: str = "") -> Text:
    """Return a line that is cut at the screen's width."""
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _heading(view: View, column: Column) -> str:
    arrow = " v" if view.is_descending else " ^"
    return column.heading + (arrow if column is view.column else "")


def fitting(rows: Sequence[Sequence[str]], width: int, sorted_by: Column) -> list[int]:
    """Return which columns fit side by side: names are cut, then columns are dropped.

    Each row has the cells of all columns.
    """
    headings = [column.heading for column in COLUMNS]
    widths = {
        column: max(map(len, cells))
        for column, cells in zip(COLUMNS, zip(headings, *rows, strict=True), strict=True)
    }
    widths[sorted_by] = max(widths[sorted_by], len(sorted_by.heading) + len(" v"))
    for column in COLUMNS[:2]:
        widths[column] = min(widths[column], NAME_WIDTH)
    for name in SPARED:
        if sum(widths.values()) + len(GAP) * (len(widths) - 1) <= width:
            break
        if BY_NAME[name] is not sorted_by:
            del widths[BY_NAME[name]]
    return [at for at, column in enumerate(COLUMNS) if column in widths]
