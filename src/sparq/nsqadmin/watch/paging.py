"""Which rows of a list are shown: filtered, sorted, and a page of them. Pure functions.

1. A column is named as the row's field; `-` before it turns the order round. What is unknown stands
   at the end in both orders, and equal rows stay in the order of their names.
2. A filter is a text that the name has somewhere, in small or capital letters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from sparq.nsqadmin.watch.merge import STATES
from sparq.nsqadmin.watch.rows import ClientGroup, Node
from sparq.nsqadmin.watch.table import Table

T = TypeVar("T")
Places = NDArray[np.intp]

LIMIT_MAX: Final = 1000
LIMIT: Final = 50
BY_NAME: Final = "name"


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some rows of a list.

    Attributes:
        total: number of rows that the filter leaves.
        offset, limit: which of them were asked for.
    """

    rows: tuple[T, ...]
    total: int
    offset: int
    limit: int


def page(
    table: Table[T],
    *,
    sort: str = BY_NAME,
    filter: str = "",
    topic: str = "",
    state: str = "",
    offset: int = 0,
    limit: int = LIMIT,
) -> Page[T]:
    """A page of channels or topics.

    Args:
        sort: a field of the row with figures, or `name`; with `-` before it, the largest first.
        filter: only rows whose `topic/channel` has this text.
        topic: only rows of this topic.
        state: only channels in this state.
        offset: rows to leave out, from 0 on.
        limit: rows of a page, at most `LIMIT_MAX`.

    Raises:
        ValueError: there is no such column or state, or a number is out of bounds.
    """
    check_bounds(offset, limit)
    places = chosen(table, filter=filter, topic=topic, state=state)
    places = _in_order(table, places, sort)
    rows = tuple(table.row(int(place)) for place in places[offset : offset + limit])
    return Page(rows, len(places), offset, limit)


def check_bounds(offset: int, limit: int) -> None:
    """Raise a ValueError for a page that there cannot be."""
    if offset < 0:
        raise ValueError("offset must be 0 or more")
    if not 1 <= limit <= LIMIT_MAX:
        raise ValueError(f"limit must be from 1 to {LIMIT_MAX:,}")


def chosen(table: Table[T], *, filter: str = "", topic: str = "", state: str = "") -> Places:
    """The places of the rows that a filter leaves, in the order of their names.

    Raises:
        ValueError: there is no such state.
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
    return places


def in_order(
    table: Table[T], *, sort: str, filter: str, topic: str = "", state: str = ""
) -> list[int]:
    """The places of all rows that a filter leaves, sorted: for an export, row by row.

    Raises:
        ValueError: there is no such column or state.
    """
    found = chosen(table, filter=filter, topic=topic, state=state)
    return [int(place) for place in _in_order(table, found, sort)]


def _in_order(table: Table[T], places: Places, sort: str) -> Places:
    name = sort.removeprefix("-")
    if name == BY_NAME:
        return places[::-1] if sort != name else places
    if name not in table.columns:
        raise ValueError(f"sort must be one of {', '.join((BY_NAME, *sorted(table.columns)))}")
    figures = table.columns[name][places].astype(np.float64)
    return places[np.argsort(-figures if sort != name else figures, kind="stable")]


def page_of_nodes(
    nodes: Sequence[Node],
    *,
    sort: str = "hostname",
    filter: str = "",
    offset: int = 0,
    limit: int = LIMIT,
) -> Page[Node]:
    """A page of nodes; a filter looks at address, host name and version. Raises as `page`."""
    texts = [f"{node.address} {node.hostname} {node.version}" for node in nodes]
    return _page_of(nodes, texts, (sort, filter), offset, limit)


def page_of_clients(
    clients: Sequence[ClientGroup],
    *,
    sort: str = "-connections",
    filter: str = "",
    offset: int = 0,
    limit: int = LIMIT,
) -> Page[ClientGroup]:
    """A page of client groups; a filter looks at host, user agent and channel. Raises as `page`."""
    texts = [f"{each.hostname} {each.user_agent} {each.topic}/{each.channel}" for each in clients]
    return _page_of(clients, texts, (sort, filter), offset, limit)


def _page_of(
    rows: Sequence[T], texts: Sequence[str], asked: tuple[str, str], offset: int, limit: int
) -> Page[T]:
    check_bounds(offset, limit)
    sort, wanted = asked[0], asked[1].lower()
    left = [row for row, text in zip(rows, texts, strict=True) if wanted in text.lower()]
    name = sort.removeprefix("-")
    if rows and not hasattr(rows[0], name):
        fields = sorted(getattr(type(rows[0]), "__dataclass_fields__", ()))
        raise ValueError(f"sort must be one of {', '.join(fields)}")
    value = _value(name)
    known = [row for row in left if value(row) is not None]
    unknown = [row for row in left if value(row) is None]
    known.sort(key=value, reverse=sort != name)
    shown = (known + unknown)[offset : offset + limit]
    return Page(tuple(shown), len(left), offset, limit)


def _value(name: str) -> Callable[[Any], Any]:
    def value(row: Any) -> Any:
        found = getattr(row, name)
        return len(found) if isinstance(found, tuple) else found

    return value
