"""Selects the rows of a list that are shown: filters, sorts and pages. Pure functions.

1. A column has the name of the row's field; a `-` in front reverses the order. Unknown figures are
   at the end in both orders, and equal rows stay in the order of the list.
2. A filter is a text that the name must contain; upper and lower case do not matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from sparq.cluster.figures import STATES
from sparq.nsqadmin.watch.tables import ColumnTable

T = TypeVar("T")

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
    rows: ColumnTable[T] | Sequence[T], *, offset: int = 0, limit: int = LIMIT, **wanted: str
) -> ListPage[T]:
    """Get a page of a list.

    Args:
        rows: channels or topics, or rows with a `text` that filters search.
        offset: number of rows to skip, from 0.
        limit: rows per page, 1 to `LIMIT_MAX`.
        wanted: the arguments of `in_order`.

    Raises:
        ValueError: the column or state does not exist, or a number is out of bounds.
    """
    places = in_order(rows, **wanted)
    if offset < 0:
        raise ValueError("offset must be 0 or more")
    if not 1 <= limit <= LIMIT_MAX:
        raise ValueError(f"limit must be from 1 to {LIMIT_MAX:,}")
    shown = tuple(rows[place] for place in places[offset : offset + limit])
    return ListPage(shown, len(places), offset, limit)


def in_order(
    rows: ColumnTable[Any] | Sequence[Any],
    *,
    sort: str = BY_NAME,
    filter: str = "",
    topic: str = "",
    state: str = "",
) -> Sequence[int]:
    """The places of all rows that match a filter, sorted.

    Args:
        sort: a figure of the row, or for topics and channels `name`; with `-` in front, the
            largest first.
        filter: only rows whose name contains this text.
        topic: only channels of this topic.
        state: only channels in this state.

    Raises:
        ValueError: the column or state does not exist.
    """
    places: Sequence[int] = range(len(rows))
    name, wanted = sort.removeprefix("-"), filter.lower()
    if isinstance(rows, ColumnTable):
        columns, texts = rows.columns, rows.texts
        if state:
            if state not in STATES or "state" not in columns:
                raise ValueError(f"state must be one of {', '.join(STATES)}")
            places = (columns["state"] == STATES.index(state)).nonzero()[0].tolist()
        if topic:
            places = [place for place in places if rows.keys[place][0] == topic]
        fields = [BY_NAME, *sorted(columns)]
        values = columns[name].tolist() if name in columns else [*range(len(rows))]
    else:
        texts = [row.text.lower() for row in rows]
        fields = sorted(getattr(type(rows[0]), "__dataclass_fields__", ())) if rows else [name]
        values = [_value(row, name) for row in rows]
        fields += [name] if values and values[0] is not NotImplemented else []
    if name not in fields:
        raise ValueError(f"sort must be one of {', '.join(fields)}")
    if wanted:
        places = [place for place in places if wanted in texts[place]]
    known = [place for place in places if _is_known(values[place])]
    unknown = [place for place in places if not _is_known(values[place])]
    return sorted(known, key=values.__getitem__, reverse=sort != name) + unknown


def _is_known(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def _value(row: Any, name: str) -> Any:
    """The value by which a row is sorted; `NotImplemented`: it has no such field."""
    found = getattr(row, name, NotImplemented)
    return len(found) if isinstance(found, tuple) else found
