"""Text in aligned columns, for people and for the tools that cut it up again."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], left: int = 2) -> list[str]:
    """A line a row, all columns as wide as their widest cell; the first ones to the left.

    Args:
        rows: cells; all rows have the same number of them.
        left: how many columns are text, which is aligned to the left. The others are numbers.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
