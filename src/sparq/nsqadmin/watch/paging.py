"""Selects the rows of a list that are shown: filters, sorts and pages. Pure functions.

1. A column has the name of the row's field; a `-` in front reverses the order. Unknown figures are
   at the end in both orders, and equal rows stay in the order of their names.
2. A filter is a text that the name must contain; upper and lower case do not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from sparq.cluster.figures import STATES
from sparq.nsqadmin.watch.rows import ClientGroup, NodeRow
from sparq.nsqadmin.watch.tables import ColumnTable

S = TypeVar("S")
T = TypeVar("T")
Places = NDArray[np.intp]

LIMIT_MAX: Final = 1000
LIMIT: Final = 50
BY_NAME: Final = "name"


@dataclass(frozen=True, slots=True)
class ListPage(Generic[T]):
    """A page of a list.

    Attributes:
        total: number of rows that match the filter.
        offset, limit: the requested part of them.
    """

    rows: tuple[T, ...]
    total: int
    offset: int
    limit: int


def page(
    table: ColumnTable[T],
    *,
    sort: str = BY_NAME,
    filter: str = "",
    topic: str = "",
    state: str = "",
    offset: int = 0,
    limit: int = LIMIT,
) -> ListPage[T]:
    """Get a page of channels or topics.

    Args:
        sort: a numeric field of the row, or `name`; with `-` in front, the largest first.
        filter: only rows whose `topic/channel` contains this text.
        topic: only rows of this topic.
        state: only channels in this state.
        offset: number of rows to skip, from 0.
        limit: rows per page, 1 to `LIMIT_MAX`.

    Raises:
        ValueError: the column or state does not exist, or a number is out of bounds.
    """
    places = in_order(table, sort=sort, filter=filter, topic=topic, state=state)
    return _page(places.tolist(), offset, limit, table.row)


def _page(found: list[S], offset: int, limit: int, row: Callable[[S], T]) -> ListPage[T]:
    if offset < 0:
        raise ValueError("offset must be 0 or more")
    if not 1 <= limit <= LIMIT_MAX:
        raise ValueError(f"limit must be from 1 to {LIMIT_MAX:,}")
    shown = tuple(row(each) for each in found[offset : offset + limit])
    return ListPage(shown, len(found), offset, limit)


def in_order(
    table: ColumnTable[T],
    *,
    sort: str = BY_NAME,
    filter: str = "",
    topic: str = "",
    state: str = "",
) -> Places:
    """The places of all rows that match a filter, sorted. The arguments are those of `page`.

    Raises:
        ValueError: the column or state does not exist.
    """
    places: Places = np.arange(len(table))
    if state:
        if state not in STATES or "state" not in table.columns:
            raise ValueError(f"state must be one of {', '.join(STATES)}")
        places = np.flatnonzero(table.columns["state"] == STATES.index(state))
    if topic:
        places = places[[table.keys[place][0] == topic for place in places]]
    if filter:
        wanted, texts = filter.lower(), table.texts
        places = places[[wanted in texts[place] for place in places]]
    name = sort.removeprefix("-")
    if name == BY_NAME:
        return places[::-1] if sort != name else places
    if name not in table.columns:
        raise ValueError(f"sort must be one of {', '.join((BY_NAME, *sorted(table.columns)))}")
    figures = table.columns[name][places].astype(np.float64)
    # Negated, not reversed: unknown figures (nan) stay at the end, equal rows in order of names.
    return places[np.argsort(-figures if sort != name else figures, kind="stable")]


def page_of_nodes(
    nodes: Sequence[NodeRow], *, offset: int = 0, limit: int = LIMIT, **wanted: str
) -> ListPage[NodeRow]:
    """Get a page of the nodes of `nodes_in_order`. Raises like `page`."""
    return _page(nodes_in_order(nodes, **wanted), offset, limit, lambda node: node)


def nodes_in_order(
    nodes: Sequence[NodeRow], *, sort: str = "hostname", filter: str = ""
) -> list[NodeRow]:
    """Filter nodes by address, host name and version, and sort them. Raises like `in_order`."""
    texts = [f"{node.address} {node.hostname} {node.version}" for node in nodes]
    return _sorted(nodes, texts, sort, filter)


def page_of_clients(
    clients: Sequence[ClientGroup], *, offset: int = 0, limit: int = LIMIT, **wanted: str
) -> ListPage[ClientGroup]:
    """Get a page of the client groups of `clients_in_order`. Raises like `page`."""
    return _page(clients_in_order(clients, **wanted), offset, limit, lambda group: group)


def clients_in_order(
    clients: Sequence[ClientGroup], *, sort: str = "-connections", filter: str = ""
) -> list[ClientGroup]:
    """Filter groups by host, user agent and channel, and sort them. Raises like `in_order`."""
    texts = [f"{each.hostname} {each.user_agent} {each.topic}/{each.channel}" for each in clients]
    return _sorted(clients, texts, sort, filter)


def page_of(
    rows: Sequence[T],
    texts: Sequence[str],
    *,
    sort: str,
    filter: str = "",
    offset: int = 0,
    limit: int = LIMIT,
) -> ListPage[T]:
    """Get a page of any rows; `texts` has the text of each that a filter looks into."""
    return _page(_sorted(rows, texts, sort, filter), offset, limit, lambda row: row)


def _sorted(rows: Sequence[T], texts: Sequence[str], sort: str, filter: str) -> list[T]:
    wanted, name = filter.lower(), sort.removeprefix("-")
    left = [row for row, text in zip(rows, texts, strict=True) if wanted in text.lower()]
    if rows and not hasattr(rows[0], name):
        fields = sorted(getattr(type(rows[0]), "__dataclass_fields__", ()))
        raise ValueError(f"sort must be one of {', '.join(fields)}")

    def value(row: T) -> Any:
        found = getattr(row, name)
        return len(found) if isinstance(found, tuple) else found

    known = [row for row in left if value(row) is not None]
    unknown = [row for row in left if value(row) is None]
    return sorted(known, key=value, reverse=sort != name) + unknown
