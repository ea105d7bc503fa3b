"""Tables of `sparq admin`: headings and rows as text, with nothing that a terminal would obey."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sparq.client.reasons import one_line
from sparq.tools.columns import aligned
from sparq.tools.view import UNKNOWN, duration

SECONDS: Final = "_seconds"
TEXTS: Final = ("body", "detail", "result", "would")
"""Columns that are text wherever they stand."""


def table(headings: Sequence[str], rows: Iterable[Mapping[str, Any]], texts: int) -> list[str]:
    """The lines of a table.

    Args:
        headings: the keys of the rows in their order, as JSON has them (`in_flight`).
        rows: the cells by key; None is unknown.
        texts: how many of the first columns hold text; the others are numbers.
    """
    lefts = {*range(texts), *(at for at, name in enumerate(headings) if name in TEXTS)}
    first = [name.removesuffix(SECONDS).replace("_", " ").upper() for name in headings]
    return aligned(
        [first, *([cell(name, row.get(name)) for name in headings] for row in rows)], lefts
    )


def cell(name: str, value: Any) -> str:
    """A value as text on one line."""
    if value is None or value == "":
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return duration(float(value)) if name.endswith(SECONDS) else f"{value:,}"
    return one_line(str(value))
