"""The screen of `sparq top`: a head line, the rows that fit or one channel, errors, and the keys.

An opened channel shows its figures at each nsqd, and its clients, which can be scrolled. An nsqd
that no longer answers keeps its row with its last figures, and is marked.

Text from a peer is drawn as plain text, never read as markup: names are those that NSQ allows, and
other text contains no control characters (`cluster`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sparq.cluster.figures import Client
from sparq.protocol.names import one_line
from sparq.tools.overview import ChannelPart, Key, Overview, OverviewRow, severity
from sparq.tools.view import BY_NAME, COLUMNS, UNKNOWN, Column, View, duration, rate

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
        body: RenderableType
        if view.opened is None:
            body = self._rows(seen, self.page_size())
        else:
            view.first = clients_above(opened, view.first, 1)
            body = channel_page(view.opened, opened, view.first, self.page_size() + 1)
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
        return Group(
            _line("   ".join(first), "bold"),
            body,
            *(_line(text, "red") for text in wrong),
            _line(last, "dim"),
        )

    def _rows(self, seen: Overview, size: int) -> Table:
        view = self._view
        rows = view.page(seen.rows, size)
        # Computed from all rows, so that the columns do not move sideways while scrolling.
        columns = fitting(seen.rows, self._console.width, view.column)
        table = Table(box=None, expand=True, header_style="reverse", pad_edge=False, padding=(0, 1))
        for column, width in columns.items():
            arrow = ("", " v" if view.is_descending else " ^")[column is view.column]
            heading = Text(column.heading + arrow)
            at = column.heading.lower().index(column.key)
            heading.stylize("underline", at, at + 1)
            is_text = column.kind in ("name", "words")
            table.add_column(
                heading, justify="left" if is_text else "right", no_wrap=True, width=width
            )
        # Text objects: rich would read a plain string as markup.
        for row in rows:
            # Red if messages wait and none is finished, yellow for less.
            bad = row.state.severity
            style = "yellow" if bad >= severity("behind") or row.gone else ""
            if bad >= severity("no channel") and (row.unfinished or row.gone):
                style = "red"
            if row.is_paused:
                style = "dim"
            if view.is_selected(row):
                style = "reverse"
            table.add_row(*(Text(column.text(row)) for column in columns), style=style)
        return table


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


def _line(text: str, style: str = "") -> Text:
    """Return a line that is cut at the screen's width."""
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def fitting(rows: Sequence[OverviewRow], width: int, sorted_by: Column) -> dict[Column, int]:
    """Return the columns that fit side by side, with their widths.

    Figures are never cut: names are cut, and columns are dropped.
    """
    widths = {
        column: max(
            len(column.heading) + (ARROW if column is sorted_by else 0),
            *(len(column.text(row)) for row in rows),
            0,
        )
        for column in COLUMNS
    }
    topic, channel = (BY_NAME[name] for name in ("topic", "channel"))
    for name in (*SPARED, *SPARED_AT_LAST):
        cut = sum(max(0, widths[column] - NAME_WIDTH) for column in (topic, channel))
        if sum(widths.values()) - cut + GAP * (len(widths) - 1) <= width:
            break
        if name != sorted_by.name:
            del widths[BY_NAME[name]]
    # Topic and channel share the rest; the shorter one is cut last.
    figures = sum(each for column, each in widths.items() if column not in (topic, channel))
    room = width - figures - GAP * (len(widths) - 1)
    short, long = sorted((topic, channel), key=lambda column: widths[column])
    widths[short] = max(1, min(widths[short], room // 2))
    widths[long] = max(1, min(widths[long], room - widths[short]))
    return widths


def clients_above(facts: ChannelFacts, first: int, room: int) -> int:
    """Limit the number of clients scrolled past, so that the screen stays filled."""
    return max(0, min(first, len(facts.all_clients) - room))


def channel_page(key: Key, facts: ChannelFacts, first: int, height: int) -> Group:
    """Return the screen's content for one channel.

    Args:
        key: topic and channel.
        facts: the channel's data.
        first: the number of clients scrolled past.
        height: the available lines.
    """
    topic, channel = key
    name = f"{topic} / {channel}" if channel else topic
    if facts.row is None:
        head = Text(f"{name}   no nsqd has it any more", style="bold")
    else:
        words = facts.row.state.words
        if words.startswith("stuck"):
            words = f"{words}: nothing finished for {duration(facts.row.idle_seconds)}"
        readers = "   read by Spark" if facts.row.readers else ""
        head = _line(f"{name}   {words}{readers}", "bold")

    columns = [BY_NAME[name] for name in FIGURES]
    parts = facts.parts[: max(1, height // 2)]
    all_shown = len(parts) == len(facts.parts)
    heading = "NSQD" if all_shown else f"NSQD ({len(parts)} of {len(facts.parts)})"
    nodes = _table([heading, *(column.heading for column in columns), ""], 1)
    for address, row, is_gone in parts:
        mark, style = ("gone: last figures", "yellow") if is_gone else ("", "")
        texts = (address, *(column.text(row) for column in columns), mark)
        nodes.add_row(*map(Text, texts), style=style)
    if not channel:
        return Group(head, nodes)
    room = max(1, height - OTHER_LINES - len(parts))
    return Group(head, nodes, Text(), _clients(facts, first, room))


def _table(headings: Sequence[str], texts: int) -> Table:
    """Return an empty table: text columns first, then figures, which are never cut."""
    table = Table(box=None, header_style="reverse", pad_edge=False, padding=(0, 1))
    for at, heading in enumerate(headings):
        if at < texts:
            table.add_column(heading, justify="left", no_wrap=True, overflow="ellipsis")
        else:
            table.add_column(heading, justify="right", no_wrap=True, min_width=len(heading))
    return table


def _clients(facts: ChannelFacts, first: int, room: int) -> RenderableType:
    if facts.clients is None:
        return Text("asking for its clients ...", style="dim")
    found = facts.all_clients
    if not found:
        return Text("no clients", style="dim")
    above = clients_above(facts, first, room)
    shown = found[above : above + room]
    last = CLIENT_HEADINGS[-1]
    if len(shown) < len(found):
        last += f" ({above + 1}-{above + len(shown)} of {len(found)})"
    table = _table([*CLIENT_HEADINGS[:-1], last], CLIENT_TEXTS)
    for address, client in shown:
        since = max(0.0, time.time() - client.connect_ts) if client.connect_ts else None
        texts = (
            *(client.hostname, client.remote_address, client.client_id),
            client.user_agent or UNKNOWN,
        )
        counts = (
            *(client.ready_count, client.in_flight_count),
            *(client.finish_count, client.requeue_count),
        )
        cells = [*map(one_line, texts), *(f"{value:,}" for value in counts), duration(since)]
        table.add_row(*map(Text, [address, *cells]))
    return table
