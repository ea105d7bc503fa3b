"""Text in aligned columns, for people and for the tools that cut it up again."""

from __future__ import annotations

from collections.abc import Container, Sequence


def aligned(rows: Sequence[Sequence[str]], left: int | Container[int] = 2) -> list[str]:
    """A line for each row, all columns as wide as their widest cell.

    Args:
        rows: cells; all rows have the same number of them.
        left: the columns of text, which are aligned to the left: how many at the beginning, or
            their indexes. The others are numbers.
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
