"""Tables of partial rows: rows with the same keys become one, now or later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import xxhash

from sparq.pipeline.tables import Table

if TYPE_CHECKING:
    import polars as pl

MINUTE = pa.field("minute", pa.timestamp("us", "UTC"))


def partial_table(
    name: str, keys: Sequence[pa.Field], values: Sequence[pa.Field], how: Mapping[str, str]
) -> Table:
    """A table by minute, whose rows can be summed up.

    The keys identify a row: MINUTE, and others. `how` is for each other column "sum", "min", "max",
    or "union" of lists without repetitions.
    """
    schema = pa.schema([*keys, *values])
    names = tuple(key.name for key in keys)
    return Table(name, schema, MINUTE.name, partial(summed, schema=schema, keys=names, how=how))


def summed(
    rows: pa.Table, schema: pa.Schema, keys: tuple[str, ...], how: Mapping[str, str]
) -> pa.Table:
    """The rows, one for each combination of keys, ordered by keys; see `partial_table`."""
    import polars as pl  # noqa: PLC0415 - not before Spark forks its workers

    def combined(name: str) -> pl.Expr:
        column = pl.col(name)
        if how[name] == "union":
            return column.explode().drop_nulls().unique()
        found: pl.Expr = getattr(column, how[name])()
        return found

    frame = pl.DataFrame(pl.from_arrow(rows.select(schema.names)))
    found = frame.group_by(keys).agg(combined(name) for name in how)
    return to_arrow(found.sort(keys), schema)


def hashes_of(texts: pa.Array) -> pa.Int64Array:
    """XXH3-64 of each text, null for null: equal in all processes and versions."""
    known = texts.dictionary_encode()
    # Each text once: they are hashed one by one.
    hashes = [xxhash.xxh3_64_intdigest(text.encode()) for text in known.dictionary.to_pylist()]
    return pa.array(np.array(hashes, np.uint64).view(np.int64)).take(known.indices)


def to_arrow(frame: pl.DataFrame, schema: pa.Schema) -> pa.Table:
    """The columns of a schema, with its types."""
    import polars as pl  # noqa: PLC0415 - not before Spark forks its workers

    found = frame.select(schema.names).to_arrow(compat_level=pl.CompatLevel.oldest())
    return found.cast(schema)
