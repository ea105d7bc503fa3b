"""How figures are printed: durations, rates, cells, and tables with aligned columns.

Unknown values are shown as `-`. No cell has characters that a terminal would interpret.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from sparq.protocol.names import one_line

MINUTE, HOUR, DAY = 60, 3600, 86_400
UNKNOWN: Final = "-"
GAP: Final = "  "
SECONDS: Final = "_seconds"
RATE: Final = "_rate"


def duration(seconds: float | None) -> str:
    """Format as `0.4s`, `5m02s`, `3h07m`, `2d04h`."""
    if seconds is None:
        return UNKNOWN
    if seconds < MINUTE:
        return f"{seconds:.1f}s" if seconds else "0s"
    whole = round(seconds)
    if whole < HOUR:
        return f"{whole // MINUTE}m{whole % MINUTE:02}s"
    if whole < DAY:
        return f"{whole // HOUR}h{whole % HOUR // MINUTE:02}m"
    return f"{whole // DAY}d{whole % DAY // HOUR:02}h"


def rate(value: float | None) -> str:
    """Format as `12,345`; below 10 with one decimal, unless it is 0."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def cell(name: str, value: Any) -> str:
    """Format a value on one line; `name` is its key in JSON, such as `lag_seconds`, `in_rate`."""
    if value is None or value == "":
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if name.endswith(RATE):
            return rate(value)
        return duration(float(value)) if name.endswith(SECONDS) else f"{value:,}"
    return one_line(str(value))


def aligned(
    rows: Sequence[Sequence[str]], texts: Collection[int], width: float = math.inf
) -> list[str]:
    """Return a line for each row, every column padded to its widest cell.

    Args:
        rows: the cells; all rows have the same number of them.
        texts: the indexes of text columns, which are left-aligned. The others hold numbers.
        width: the maximum length of a line: texts are cut, the longest first, but no numbers.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    while sum(widths) + len(GAP) * (len(widths) - 1) > width:
        longest = max(texts, key=widths.__getitem__)
        if widths[longest] == 1:
            break
        widths[longest] -= 1

    def fit(cell: str, at: int) -> str:
        if len(cell) > widths[at]:
            return f"{cell[: widths[at] - 1]}…"
        return cell.ljust(widths[at]) if at in texts else cell.rjust(widths[at])

    return [GAP.join(fit(cell, at) for at, cell in enumerate(row)).rstrip() for row in rows]


def table(
    names: Sequence[str], rows: Iterable[Mapping[str, Any]], width: float = math.inf
) -> list[str]:
    """Return the lines of a table: headings, and the rows' cells of these names; see `aligned`.

    Names are keys as in JSON (`in_flight`). A column in which any value is a text is left-aligned.
    """
    rows = [*rows]
    texts = {at for at, name in enumerate(names) if any(isinstance(r.get(name), str) for r in rows)}
    first = [name.removesuffix(SECONDS).replace("_", " ").upper() for name in names]
    cells = [[cell(name, row.get(name)) for name in names] for row in rows]
    return aligned([first, *cells], texts, width)
