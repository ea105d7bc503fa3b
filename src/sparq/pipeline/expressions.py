"""Expressions of users, in polars' SQL: parsed without what could read files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import polars as pl

SUBQUERY: Final = re.compile(r"\b(select|table|values|with|from\s+\w+\s*\()\b", re.IGNORECASE)


def parse(text: str) -> pl.Expr:
    """Parse an expression.

    Raises:
        ValueError: it is none, or contains a subquery, which could read files: polars' SQL has
            `(SELECT * FROM read_csv(...))` in expressions, too. The text is one sentence.
    """
    import polars as pl  # noqa: PLC0415 - not before Spark forks its workers

    if found := SUBQUERY.search(text):
        raise ValueError(f"an expression may not contain the word {found[1].upper()}")
    try:
        return pl.sql_expr(text.strip())
    # Not all errors of the parser are polars' own: some are panics.
    except Exception as error:
        raise ValueError(str(error).strip().splitlines()[0]) from None
