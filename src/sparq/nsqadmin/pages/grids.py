"""Lists of channels, topics, nodes and clients: their columns as data, and pages of their rows.

The server sorts, filters and pages (`watch.paging`): a browser gets 50 rows out of ten thousand.
The whole state of a grid is in the URL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sparq.daemon.http import HttpError
from sparq.nsqadmin.pages.page_request import PageRequest
from sparq.nsqadmin.watch import paging

LIMITS: Final = (50, 200, 1000)


class GridColumn(NamedTuple):
    """A column.

    Attributes:
        key: the row's field, also used to sort by.
        label: its heading.
        kind: how `parts.html` formats a cell.
        title: an explanation, if the heading is not enough.
        priority: 1 is shown everywhere, 2 not on a phone, 3 only on a wide screen.
        ascending: whether the first click sorts the smallest figures first.
    """

    key: str
    label: str
    kind: str = "count"
    title: str = ""
    priority: int = 1
    ascending: bool = False


CHANNELS: Final = (
    GridColumn("name", "Channel", "channel", ascending=True),
    GridColumn("state", "State", "channel_state", priority=2),
    GridColumn(
        "depth", "Waiting", "count", "waiting messages, without those in flight or deferred"
    ),
    GridColumn("lag_seconds", "Lag", "lag", "age of the oldest waiting message"),
    GridColumn("in_rate", "In/s", "rate", "messages arriving per second", 2),
    GridColumn("out_rate", "Out/s", "rate", "messages finished per second", 2),
    GridColumn(
        "growth", "Trend", "signed", "change of waiting messages per second, last minute", 3
    ),
    GridColumn(
        "clear_seconds", "Clear in", "seconds", "until no messages wait, at the current rates", 3
    ),
    GridColumn("in_flight", "In flight", "count", "delivered to consumers, not finished yet", 2),
    GridColumn("deferred", "Deferred", "count", "messages that are not due yet", 3),
    GridColumn("requeue_rate", "Requeued/s", "rate", "", 3),
    GridColumn("timeout_rate", "Timed out/s", "rate", "", 3),
    GridColumn("clients", "Consumers", "count", "connections", 2),
)
TOPICS: Final = (
    GridColumn("name", "Topic", "topic", ascending=True),
    GridColumn("waiting", "Waiting", "count", "waiting messages of the topic and all its channels"),
    GridColumn("lag_seconds", "Lag", "topic_lag", "lag of its slowest channel"),
    GridColumn("in_rate", "In/s", "rate", "messages published per second"),
    GridColumn("byte_rate", "Bytes/s", "size", "bytes published per second", 3),
    GridColumn("out_rate", "Out/s", "rate", "messages finished per second, over all channels", 2),
    GridColumn("in_flight", "In flight", "count", "", 3),
    GridColumn("deferred", "Deferred", "count", "", 3),
    GridColumn("channels", "Channels", "count", "", 2),
    GridColumn("clients", "Consumers", "count", "connections", 2),
    GridColumn("nodes", "Nodes", "count", "nsqds that have the topic", 3),
    GridColumn("messages", "Messages", "count", "published since each nsqd started", 3),
)
NODES: Final = (
    GridColumn("address", "Node", "node", ascending=True),
    GridColumn("state", "State", "node_state"),
    GridColumn("waiting", "Waiting", "count", "messages waiting at this node"),
    GridColumn("in_rate", "In/s", "rate", "", 2),
    GridColumn("out_rate", "Out/s", "rate", "", 2),
    GridColumn("clients", "Consumers", "count", "", 2),
    GridColumn("topics", "Topics", "count", "", 2),
    GridColumn("channels", "Channels", "count", "", 3),
    GridColumn("version", "Version", "version", "", 2, ascending=True),
    GridColumn("health", "Disk", "health", "", 3, ascending=True),
    GridColumn("zone", "Zone", "zone", "", 3, ascending=True),
    GridColumn("lookupds", "nsqlookupds", "lookupds", "nsqlookupds that list the node", 3),
)
CLIENTS: Final = (
    GridColumn("hostname", "Host", "client", ascending=True),
    GridColumn("user_agent", "Program", "text", "", 2, ascending=True),
    GridColumn("connections", "Connections", "count"),
    GridColumn("in_flight", "In flight", "count", "", 2),
    GridColumn("ready", "Ready", "count", "messages accepted at a time (RDY)", 3),
    GridColumn("finished", "Finished", "count", "", 2),
    GridColumn("requeued", "Requeued", "count", "", 3),
    GridColumn("nodes", "Nodes", "count", "", 3),
    GridColumn("connected_at", "Connected", "ago", "age of the oldest connection", 3),
)


@dataclass(frozen=True)
class Grid:
    """A page of a list, and the links to its other pages.

    Attributes:
        heads: (column, link that sorts by it, `aria-sort` or "").
    """

    heads: Sequence[tuple[GridColumn, str, str]]
    rows: Sequence[Any]
    total: int
    first: int
    previous: str
    next: str
    filter: str
    limits: Sequence[tuple[int, str, bool]]

    @property
    def columns(self) -> list[GridColumn]:
        """The columns of the list."""
        return [column for column, _, _ in self.heads]

    @property
    def last(self) -> int:
        """The number of the page's last row in the list, counted from 1."""
        return self.first + len(self.rows) - 1


def grid(
    request: PageRequest,
    columns: Sequence[GridColumn],
    rows: Sequence[Any],
    *,
    default: str,
    prefix: str = "",
    **of: Any,
) -> Grid:
    """Build the page of a list that the query asks for.

    Args:
        default: the sort order if the query has none.
        prefix: prefix of the parameters' names, for a page with several lists.
        of: `topic` or `state`: only such channels.

    Raises:
        HttpError: 400 if the query asks for a column or page that cannot exist.
    """
    sort = request.query.get(f"{prefix}sort", "") or default
    wanted = request.query.get(f"{prefix}filter", "")
    offset = request.number(f"{prefix}offset", 0, 0, 10_000_000)
    limit = request.number(f"{prefix}limit", LIMITS[0], 1, paging.LIMIT_MAX)
    try:
        page = paging.page(rows, sort=sort, filter=wanted, offset=offset, limit=limit, **of)
    except ValueError as error:
        raise HttpError(400, str(error)) from None

    def to(**changes: object) -> str:
        return request.here(**{f"{prefix}{name}": value for name, value in changes.items()})

    is_descending = sort.startswith("-")
    heads = []
    for column in columns:
        # A second click on the sorted column reverses the order.
        is_sorted = sort.removeprefix("-") == column.key
        goes_up = is_descending if is_sorted else column.ascending
        link = to(sort=column.key if goes_up else f"-{column.key}", offset="")
        order = ("descending" if is_descending else "ascending") if is_sorted else ""
        heads.append((column, link, order))
    before = max(0, offset - limit)
    after = offset + limit
    return Grid(
        heads=heads,
        rows=page.rows,
        total=page.total,
        first=offset + 1,
        previous=to(offset=before or "") if offset else "",
        next=to(offset=after) if after < page.total else "",
        filter=wanted,
        limits=[(n, to(limit="" if n == LIMITS[0] else n, offset=""), n == limit) for n in LIMITS],
    )
