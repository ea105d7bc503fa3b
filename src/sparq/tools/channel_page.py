"""One channel of `sparq top`, opened with Enter: its figures at each nsqd, and its clients.

An nsqd that is gone keeps its row with its last figures, and is marked. The screen scrolls through
the clients, and says how many there are.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sparq.tools.clients import ClientFacts
from sparq.tools.history import Part
from sparq.tools.overview import Key, Row
from sparq.tools.state import STUCK
from sparq.tools.view import BY_NAME, UNKNOWN, count, duration

FIGURES: Final = (
    *("in", "out", "depth", "in_flight", "deferred", "lag", "oldest"),
    *("requeued", "timed_out", "clients"),
)
CLIENT_HEADINGS: Final = (
    *("NSQD", "HOST", "ADDRESS", "CLIENT", "USER AGENT"),
    *("RDY", "IN FLIGHT", "FINISHED", "REQUEUED", "CONNECTED"),
)
CLIENT_TEXTS: Final = 5
OTHER_LINES: Final = 4
"""The first line, the headings of both tables, and one between them."""

KEYS: Final = "q: quit   Esc: back   arrows, pages, home, end: scroll the clients   space: freeze"


@dataclass(slots=True)
class ChannelFacts:
    """What is known of the channel that is opened.

    Attributes:
        row: the sum over its nsqds; None where nobody has it any more.
        parts: its row at each nsqd.
        clients: its clients by nsqd; None before an nsqd was asked.
    """

    row: Row | None = None
    parts: list[Part] = field(default_factory=list)
    clients: Mapping[str, list[ClientFacts]] | None = None

    @property
    def all_clients(self) -> list[tuple[str, ClientFacts]]:
        """Each client with its nsqd's address."""
        found = sorted((self.clients or {}).items())
        return [(address, client) for address, clients in found for client in clients]


def channel_page(key: Key, facts: ChannelFacts, first: int, height: int) -> Group:
    """What the screen shows of a channel.

    Args:
        key: topic and channel.
        facts: what is known.
        first: how many clients are above the screen.
        height: lines that there are for all of it.
    """
    nodes = facts.parts[: max(1, height // 2)]
    room = max(1, height - OTHER_LINES - len(nodes))
    parts: list[RenderableType] = [_head(key, facts), _nodes(nodes, len(facts.parts))]
    if key[1]:
        parts += [Text(), _clients(facts, first, room)]
    return Group(*parts)


def clients_above(facts: ChannelFacts, first: int, room: int) -> int:
    """How many clients may be above the screen at most."""
    return max(0, min(first, len(facts.all_clients) - room))


def _head(key: Key, facts: ChannelFacts) -> Text:
    topic, channel = key
    name = f"{topic} / {channel}" if channel else topic
    if facts.row is None:
        return Text(f"{name}   no nsqd has it any more", style="bold")
    state = facts.row.state
    told = state.words
    if state.severity // 2 == STUCK.severity // 2 and facts.row.idle_seconds:
        told = f"{told}: nothing finished for {duration(facts.row.idle_seconds)}"
    readers = "   read by Spark" if facts.row.readers else ""
    return Text(f"{name}   {told}{readers}", style="bold", no_wrap=True, overflow="ellipsis")


def _table(headings: Sequence[str], texts: int) -> Table:
    """An empty table; the first columns hold text, the others figures, which are never cut."""
    table = Table(box=None, header_style="reverse", pad_edge=False, padding=(0, 1))
    for heading in headings[:texts]:
        table.add_column(heading, justify="left", no_wrap=True, overflow="ellipsis")
    for heading in headings[texts:]:
        table.add_column(heading, justify="right", no_wrap=True, min_width=len(heading))
    return table


def _nodes(parts: Sequence[Part], total: int) -> Table:
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
    """The last heading, which says too which clients these are where there are more."""
    if total <= room:
        return CLIENT_HEADINGS[-1]
    return f"{CLIENT_HEADINGS[-1]} ({above + 1}-{min(total, above + room)} of {total})"


def _client_cells(address: str, client: ClientFacts) -> list[str]:
    connected = time.time() - client.connected_at if client.connected_at else None
    return [
        *(address, client.hostname, client.remote_address, client.client_id),
        client.user_agent or UNKNOWN,
        *map(count, (client.ready, client.in_flight, client.finished, client.requeued)),
        duration(None if connected is None else max(0.0, connected)),
    ]
