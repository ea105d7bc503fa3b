"""Selects the rows of a list that are shown: filters, sorts and pages. Pure functions.

1. A column has the name of the row's field; a `-` in front reverses the order. Unknown figures are
   at the end in both orders, and equal rows stay in the order of the list.
2. A filter is a text that the name must contain; upper and lower case do not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

from sparq.cluster.figures import STATES

T = TypeVar("T")

LIMIT_MAX: Final = 1000
LIMIT: Final = 50
BY_NAME: Final = "name"


class ListPage(NamedTuple, Generic[T]):
    """A page of a list.

    Attributes:
        total: number of rows that match the filter.
        offset, limit: the requested part of them.
    """

    rows: tuple[T, ...]
    total: int
    offset: int
    limit: int


def page(rows: Sequence[T], *, offset: int = 0, limit: int = LIMIT, **wanted: str) -> ListPage[T]:
    """Get a page of a list.

    Args:
        rows: rows with a `text` that filters search.
        offset: number of rows to skip, from 0.
        limit: rows per page, 1 to `LIMIT_MAX`.
        wanted: the arguments of `in_order`.

    Raises:
        ValueError: the column or state does not exist, or a number is out of bounds.
    """
    found = in_order(rows, **wanted)
    if offset < 0:
        raise ValueError("offset must be 0 or more")
    if not 1 <= limit <= LIMIT_MAX:
        raise ValueError(f"limit must be from 1 to {LIMIT_MAX:,}")
    return ListPage(tuple(found[offset : offset + limit]), len(found), offset, limit)


def in_order(
    rows: Iterable[T], *, sort: str = BY_NAME, filter: str = "", topic: str = "", state: str = ""
) -> list[T]:
    """All rows that match a filter, sorted.

    Args:
        sort: a field of the rows, or `name` for the order that they have; with `-` in front, the
            largest first.
        filter: only rows whose text contains this.
        topic: only channels of this topic.
        state: only channels in this state.

    Raises:
        ValueError: the column or state does not exist.
    """
    name, wanted, found = sort.removeprefix("-"), filter.lower(), [*rows]
    one: Any = found[0] if found else None
    if name != BY_NAME and one is not None and not hasattr(one, name):
        fields = sorted(getattr(one, "__struct_fields__", ()))
        raise ValueError(f"sort must be one of {', '.join((BY_NAME, *fields))}")
    if state and (state not in STATES or (one is not None and not hasattr(one, "state"))):
        raise ValueError(f"state must be one of {', '.join(STATES)}")
    if state:
        found = [row for row in found if getattr(row, "state", "") == state]
    if topic:
        found = [row for row in found if getattr(row, "topic", "") == topic]
    if wanted:
        found = [row for row in found if wanted in getattr(row, "text", "").lower()]
    if name == BY_NAME:
        return found[::-1] if sort != name else found
    get: Any = attrgetter(name)
    known = [row for row in found if get(row) is not None]
    unknown = [row for row in found if get(row) is None] if len(known) < len(found) else []
    key = get
    if known and isinstance(get(known[0]), tuple):
        key = lambda row: len(get(row))  # noqa: E731 # a column of lists is sorted by their length
    elif name == "state" and known and get(known[0]) in STATES:
        key = lambda row: STATES.index(row.state)  # noqa: E731 # worse states come later
    return sorted(known, key=key, reverse=sort != name) + unknown
