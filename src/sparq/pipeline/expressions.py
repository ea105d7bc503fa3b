"""What users write in TOML: values with types, and expressions in polars' SQL, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from sparq.options.mistakes import suggestion

if TYPE_CHECKING:
    import polars as pl

SUBQUERY: Final = re.compile(r"\b(select|table|values|with|from\s+\w+\s*\()\b", re.IGNORECASE)
"""An expression never runs as Python; its only way out of a table is `(SELECT * FROM read_csv(`."""
_WORDS: Final = {
    **{"array": "a list", "object": "a table", "str": "a text in quotes", "int": "a whole number"},
    **{"bool": "true or false", "float": "a number"},
}


def checked(
    empty: pl.DataFrame, text: str, place: str, wanted: Any = None, *, aggregate: bool = False
) -> tuple[pl.Expr, pl.DataType]:
    """An expression over the columns of a frame without rows, and its type.

    With `aggregate` it must make one value of all rows, otherwise one of each.

    Raises:
        ValueError: what is wrong, as one sentence that begins with the place.
    """
    import polars as pl  # noqa: PLC0415 - not before Spark forks its workers

    try:
        if word := SUBQUERY.search(text):
            raise ValueError(f"an expression may not contain the word {word[1].upper()}")
        made = pl.sql_expr(text.strip())
        for name in made.meta.root_names():
            if name not in empty.columns:
                raise ValueError(f"no column {name}{suggestion(name, empty.columns)}")
        if aggregate:
            found = empty.group_by(pl.lit(0)).agg(made.alias("it"))["it"].dtype
            if isinstance(found, pl.List):
                raise ValueError("it gives a value for each row: it must aggregate them")
        else:
            # Two rows of nulls: an aggregate, which would give all rows one value, gives one row.
            column = empty.clear(2).select(made.alias("it"))["it"]
            found = column.dtype
            if len(column) == 1 and made.meta.root_names():
                raise ValueError("it may not aggregate")
    # Not all errors of the parser are polars' own: some are panics.
    except Exception as error:
        raise ValueError(f"{place}: {str(error).strip().splitlines()[0]}") from None
    if wanted is not None and found != wanted:
        raise ValueError(f"{place} must be true or false, and is of type {found}")
    return made, found


def typed(value: Any, kind: Any, place: str) -> Any:
    """A value of a TOML file as a type of Python or a `msgspec.Struct`.

    Raises:
        ValueError: what is wrong, as one sentence that begins with the place.
    """
    fields = getattr(kind, "__struct_fields__", ())
    for key in value if fields and isinstance(value, Mapping) else ():
        if key not in fields:
            raise ValueError(f"{place}.{key} is unknown{suggestion(key, fields)}")
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text, _, inside = str(error).partition(" - at `$")
        text = text.replace("Object missing required field", "it lacks the key")
        text = re.sub(r"`(\w+)`", lambda name: _WORDS.get(name[1], name[1]), text)
        raise ValueError(f"{place}{inside.rstrip('`')}: {text}") from None
