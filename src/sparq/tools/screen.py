"""The screen of `sparq top`: a head line, the rows that fit or one channel, errors, and the keys.

An opened channel shows its figures at each nsqd, and its clients, which can be scrolled. An nsqd
that no longer answers keeps its row with its last figures, and is marked.

Text from a peer is drawn as plain text, never read as markup: names are those that NSQ allows, and
other text contains no control characters (`cluster`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sparq.cluster.figures import Client
from sparq.protocol.names import one_line
from sparq.tools.overview import ChannelPart, Key, Overview, OverviewRow, severity
from sparq.tools.view import BY_NAME, COLUMNS, UNKNOWN, Column, View, cells, count, duration, rate

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
CLIENT_TEXTS: Final = 5
OTHER_LINES: Final = 4
"""The first line, the headings of both tables, and a blank line between the tables."""

GAP: Final = 2
ARROW: Final = 2
"""Width that the sort arrow adds to a heading."""

NAME_WIDTH: Final = 12
"""Names are cut to this width before a column with a figure is dropped."""

SPARED: Final = ("paused", "timed_out", "requeued", "deferred", "clients", "in_flight")
SPARED_AT_LAST: Final = ("in", "out", "lag", "state")
"""Columns that a narrow terminal drops, in this order after `SPARED`; never the sort column."""


@dataclass(slots=True)
class ChannelFacts:
    """The data of the opened channel.

    Attributes:
        row: the sum over its nsqds; None if no nsqd has it any more.
        parts: its row at each nsqd.
        clients: its clients by nsqd; None until an nsqd has been asked.
    """

    row: OverviewRow | None = None
    parts: list[ChannelPart] = field(default_factory=list)
    clients: Mapping[str, list[Client]] | None = None

    @property
    def all_clients(self) -> list[tuple[str, Client]]:
        """Each client with its nsqd's address."""
        found = sorted((self.clients or {}).items())
        return [(address, client) for address, clients in found for client in clients]


class Screen:
    """Draws overviews on a terminal.

    Args:
        view: selects and sorts the rows.
        title: the beginning of the head line.
        console: the terminal.
    """

    def __init__(self, view: View, title: str, console: Console | None = None) -> None:
        self._view = view
        self._title = title
        self._console = console or Console()
        self._live = Live(console=self._console, screen=True, auto_refresh=False)
        self._complaints = 0

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Use the full screen for the duration of the block."""
        with self._live:
            yield

    def page_size(self) -> int:
        """Return the number of rows that fit, given the error lines of the last refresh."""
        lines = self._console.height - FRAME_LINES - min(self._complaints, COMPLAINTS_MAX + 1)
        return max(1, lines)

    def draw(self, seen: Overview, errors: dict[str, str], opened: ChannelFacts) -> None:
        """Draw the screen now; `opened` belongs to the view's opened channel, if there is one."""
        self._live.update(self.contents(seen, errors, opened), refresh=True)

    def contents(self, seen: Overview, errors: dict[str, str], opened: ChannelFacts) -> Group:
        """Return the content of the screen."""
        wrong = complaints(seen, errors)
        self._complaints = len(wrong)
        return Group(
            self._head(seen),
            self._body(seen, opened),
            *_complaint_lines(wrong),
            Text(self._last_line(seen), style="dim", no_wrap=True, overflow="ellipsis"),
        )

    def _body(self, seen: Overview, opened: ChannelFacts) -> RenderableType:
        if self._view.opened is None:
            return self._table(seen, self.page_size())
        height = self.page_size() + 1
        self._view.first = clients_above(opened, self._view.first, 1)
        return channel_page(self._view.opened, opened, self._view.first, height)

    def _last_line(self, seen: Overview) -> str:
        """Return the filter while it is typed or active, otherwise the keys."""
        view = self._view
        if view.is_typing:
            return f"filter: {view.filter}_   Enter: keep it   Esc: show all"
        if view.opened is not None:
            return CHANNEL_KEYS
        if view.filter:
            return f"filter: {view.filter}   {view.matching} of {len(seen.rows)} rows   Esc: all"
        return KEYS + (DISMISS_KEY if seen.gone else "")

    def _head(self, seen: Overview) -> Text:
        depth, in_flight = (int(seen.total(name) or 0) for name in ("depth", "in_flight"))
        parts = [
            self._title,
            "frozen" if self._view.is_frozen else f"{datetime.now():%H:%M:%S}",
            f"{seen.nsqds} nsqds" + (f", {len(seen.gone)} gone" if seen.gone else ""),
            f"{seen.topics:,} topics",
            f"in {rate(seen.in_rate)}/s",
            f"out {rate(seen.total('out_rate'))}/s",
            f"depth {depth:,}",
            f"in flight {in_flight:,}",
        ]
        return Text("   ".join(parts), style="bold", no_wrap=True, overflow="ellipsis")

    def _table(self, seen: Overview, size: int) -> Table:
        view = self._view
        rows = view.page(seen.rows, size)
        # Computed from all rows, so that the columns do not move sideways while scrolling.
        columns = fitting(seen.rows, self._console.width, self._view.column)
        table = Table(box=None, expand=True, header_style="reverse", pad_edge=False, padding=(0, 1))
        for column, width in columns.items():
            justify: Literal["left", "right"] = "left" if column.is_left else "right"
            table.add_column(self._heading(column), justify=justify, no_wrap=True, width=width)
        # Text objects: rich would read a plain string as markup.
        for row in rows:
            style = "reverse" if view.is_selected(row) else _style(row)
            table.add_row(*map(Text, cells(row, list(columns))), style=style)
        return table

    def _heading(self, column: Column) -> Text:
        arrow = {True: " v", False: " ^"}[self._view.is_descending]
        heading = Text(column.heading + (arrow if column is self._view.column else ""))
        at = column.heading.lower().index(column.key)
        heading.stylize("underline", at, at + 1)
        return heading


def complaints(seen: Overview, errors: dict[str, str]) -> list[str]:
    """Return a sentence per failing daemon; for a gone nsqd it includes the last figures."""
    found = {**errors, **seen.ill}
    for address, last in seen.gone.items():
        found[address] = (
            f"{found.get(address, NOT_LISTED)}; gone for {duration(last.seconds)}, its last"
            f" figures: depth {last.depth:,}, in flight {last.in_flight:,},"
            f" deferred {last.deferred:,}"
        )
    # Daemons that are gone come first: their messages cannot be delivered.
    first = sorted(found, key=lambda address: address not in seen.gone)
    return [f"{address}: {found[address]}" for address in first]


def _complaint_lines(found: list[str]) -> list[Text]:
    shown = found[:COMPLAINTS_MAX]
    if len(found) > len(shown):
        shown.append(f"... and {len(found) - len(shown)} more")
    return [Text(text, style="red", no_wrap=True, overflow="ellipsis") for text in shown]


def fitting(rows: Sequence[OverviewRow], width: int, sorted_by: Column) -> dict[Column, int]:
    """Return the columns that fit side by side, with their widths.

    Figures are never cut: names are cut, and columns are dropped.
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


def _width(column: Column, rows: Sequence[OverviewRow], sorted_by: Column) -> int:
    heading = len(column.heading) + (ARROW if column is sorted_by else 0)
    return max(heading, *(len(column.text(column.figure(row))) for row in rows), 0)


def _cut_names(widths: dict[Column, int], room: int) -> None:
    """Divide the available width between topic and channel; the shorter one is cut last."""
    topic, channel = (BY_NAME[name] for name in ("topic", "channel"))
    short, long = sorted((topic, channel), key=lambda column: widths[column])
    widths[short] = max(1, min(widths[short], room // 2))
    widths[long] = max(1, min(widths[long], room - widths[short]))


def _style(row: OverviewRow) -> str:
    """Return the row's style: red if messages wait and none is finished, yellow for less."""
    bad = row.state.severity
    if row.is_paused:
        return "dim"
    if bad >= severity("no channel") and (row.unfinished or row.gone):
        return "red"
    return "yellow" if bad >= severity("behind") or row.gone else ""


def channel_page(key: Key, facts: ChannelFacts, first: int, height: int) -> Group:
    """Return the screen's content for one channel.

    Args:
        key: topic and channel.
        facts: the channel's data.
        first: the number of clients scrolled past.
        height: the available lines.
    """
    nodes = facts.parts[: max(1, height // 2)]
    room = max(1, height - OTHER_LINES - len(nodes))
    parts: list[RenderableType] = [_channel_head(key, facts), _nodes(nodes, len(facts.parts))]
    if key[1]:
        parts += [Text(), _clients(facts, first, room)]
    return Group(*parts)


def clients_above(facts: ChannelFacts, first: int, room: int) -> int:
    """Limit the number of clients scrolled past, so that the screen stays filled."""
    return max(0, min(first, len(facts.all_clients) - room))


def _channel_head(key: Key, facts: ChannelFacts) -> Text:
    topic, channel = key
    name = f"{topic} / {channel}" if channel else topic
    if facts.row is None:
        return Text(f"{name}   no nsqd has it any more", style="bold")
    state = facts.row.state
    words = state.words
    if state.is_stuck:
        words = f"{words}: nothing finished for {duration(facts.row.idle_seconds)}"
    readers = "   read by Spark" if facts.row.readers else ""
    return Text(f"{name}   {words}{readers}", style="bold", no_wrap=True, overflow="ellipsis")


def _table(headings: Sequence[str], texts: int) -> Table:
    """Return an empty table: text columns first, then figures, which are never cut."""
    table = Table(box=None, header_style="reverse", pad_edge=False, padding=(0, 1))
    for heading in headings[:texts]:
        table.add_column(heading, justify="left", no_wrap=True, overflow="ellipsis")
    for heading in headings[texts:]:
        table.add_column(heading, justify="right", no_wrap=True, min_width=len(heading))
    return table


def _nodes(parts: Sequence[ChannelPart], total: int) -> Table:
    columns = [BY_NAME[name] for name in FIGURES]
    heading = "NSQD" if len(parts) == total else f"NSQD ({len(parts)} of {total})"
    table = _table([heading, *(column.heading for column in columns), ""], 1)
    for address, row, is_gone in parts:
        cells = [column.text(column.figure(row)) for column in columns]
        mark = "gone: last figures" if is_gone else ""
        style = "yellow" if is_gone else ""
        table.add_row(*map(Text, [address, *cells, mark]), style=style)
    return table


def _clients(facts: ChannelFacts, first: int, room: int) -> RenderableType:
    if facts.clients is None:
        return Text("asking for its clients ...", style="dim")
    found = facts.all_clients
    if not found:
        return Text("no clients", style="dim")
    above = clients_above(facts, first, room)
    table = _table(
        [*CLIENT_HEADINGS[:-1], _connected_heading(above, room, len(found))], CLIENT_TEXTS
    )
    for address, client in found[above : above + room]:
        table.add_row(*map(Text, _client_cells(address, client)))
    return table


def _connected_heading(above: int, room: int, total: int) -> str:
    """Return the last heading; if not all clients fit, with the range of clients shown."""
    if total <= room:
        return CLIENT_HEADINGS[-1]
    return f"{CLIENT_HEADINGS[-1]} ({above + 1}-{min(total, above + room)} of {total})"


def _client_cells(address: str, client: Client) -> list[str]:
    connected = time.time() - client.connect_ts if client.connect_ts else None
    texts = (client.hostname, client.remote_address, client.client_id, client.user_agent or UNKNOWN)
    return [
        *(address, *map(one_line, texts)),
        *map(count, (client.ready_count, client.in_flight_count)),
        *map(count, (client.finish_count, client.requeue_count)),
        duration(None if connected is None else max(0.0, connected)),
    ]
