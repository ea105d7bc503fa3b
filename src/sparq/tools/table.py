"""Text tables with aligned columns, for people and for tools that split them again."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Final

from sparq.protocol.names import one_line
from sparq.tools.view import UNKNOWN, duration

SECONDS: Final = "_seconds"
TEXTS: Final = ("body", "detail", "result", "would")
"""Columns that hold text, whatever their position."""


def aligned(rows: Sequence[Sequence[str]], left: int | Container[int] = 2) -> list[str]:
    """Return a line for each row, every column padded to its widest cell.

    Args:
        rows: the cells; all rows have the same number of them.
        left: the text columns, which are left-aligned: their number at the beginning, or their
            indexes. The others hold numbers.
    """
    texts = range(left) if isinstance(left, int) else left
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if at in texts else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def table(headings: Sequence[str], rows: Iterable[Mapping[str, Any]], texts: int) -> list[str]:
    """Return the lines of a table, without characters that a terminal would interpret.

    Args:
        headings: the keys of the rows in order, as in JSON (`in_flight`).
        rows: the cells by key; None means unknown.
        texts: the number of leading text columns; the others hold numbers.
    """
    lefts = {*range(texts), *(at for at, name in enumerate(headings) if name in TEXTS)}
    first = [name.removesuffix(SECONDS).replace("_", " ").upper() for name in headings]
    return aligned(
        [first, *([cell(name, row.get(name)) for name in headings] for row in rows)], lefts
    )


def cell(name: str, value: Any) -> str:
    """Format a value as text on one line."""
    if value is None or value == "":
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return duration(float(value)) if name.endswith(SECONDS) else f"{value:,}"
    return one_line(str(value))
