"""Sums up rows of a table of partial rows: rows with the same keys become one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import xxhash

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True)
class PartialRows:
    """How the rows of a table are summed up; picklable.

    Attributes:
        schema: the columns of the table.
        keys: the columns that identify a row.
        how: for each other column "sum", "min", "max", or "union" of lists without repetitions.
    """

    schema: pa.Schema
    keys: tuple[str, ...]
    how: Mapping[str, str]

    def __call__(self, rows: pa.Table) -> pa.Table:
        """The rows, one for each combination of keys, ordered by keys.

        Lists are held as one value per element, 8 bytes for a hash; the caller bounds the rows.
        """
        import polars as pl  # noqa: PLC0415 - not before Spark forks its workers

        def combined(name: str) -> pl.Expr:
            column = pl.col(name)
            if self.how[name] == "union":
                return column.explode().drop_nulls().unique()
            found: pl.Expr = getattr(column, self.how[name])()
            return found

        frame = pl.DataFrame(pl.from_arrow(rows.select(self.schema.names)))
        found = frame.group_by(self.keys).agg(combined(name) for name in self.how)
        return to_arrow(found.sort(self.keys), self.schema)


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
