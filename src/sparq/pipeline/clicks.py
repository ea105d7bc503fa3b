"""The columns of a click for messages, by `sparq.pipeline.reading` and `sparq.pipeline.enrich`.

Every row comes out, once, in its place. `reason` is null for a click; otherwise it says in words
why the message is none. A column that is not requested is not made.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa

from sparq.pipeline.enrich import Enricher
from sparq.pipeline.reading.schema import CLICK_SCHEMA, Reading, click_schema

if TYPE_CHECKING:
    from sparq.pipeline.reading.reader import ClickReader

__all__ = ["CLICK_SCHEMA", "parse_arrow", "parse_batches"]

USUAL = Reading()
ROWS = 200_000


def parse_batches(
    batches: Iterable[pa.RecordBatch], columns: Collection[str], reading: Reading = USUAL
) -> Iterator[pa.Table]:
    """Parse the messages of a partition, about ROWS at a time: a .gz file is one partition."""
    parts: list[pa.Table] = []
    for batch in batches:
        if batch.num_rows:
            parts.append(parse_arrow(batch, columns, reading))
        if sum(map(len, parts)) >= ROWS:
            yield pa.concat_tables(parts)
            parts = []
    if parts:
        yield pa.concat_tables(parts)


def parse_arrow(
    messages: pa.Table | pa.RecordBatch,
    columns: Collection[str] | None = None,
    reading: Reading = USUAL,
) -> pa.Table:
    """Add some columns of a click to rows that have a binary column `body`.

    Args:
        messages: any number of rows; their other columns are passed on.
        columns: the columns to add, in the order of the schema; None: all.
        reading: how messages are read.
    Returns:
        One row for each input row, in the same order, with types as in `click_schema(reading)`.
    Raises:
        ValueError: a click has no such column.
    """
    schema = _schema(columns, reading)
    table = pa.table(messages) if isinstance(messages, pa.RecordBatch) else messages
    bodies = table["body"].combine_chunks().cast(pa.binary())
    bodies = bodies.fill_null(b"") if bodies.null_count else bodies
    reader, enricher = _readers(reading)
    found = enricher.add(reader.read(bodies, enricher.inputs(schema.names)), schema.names)
    if reading.anonymize:
        at = table.column_names.index("body")
        masked = enricher.bodies(bodies, found["reason"])
        table = table.set_column(at, table.schema.field("body"), masked)
    for one in schema:
        table = table.append_column(one, found[one.name])
    return table


def _schema(columns: Collection[str] | None, reading: Reading) -> pa.Schema:
    schema = click_schema(reading)
    if columns is None:
        return schema
    unknown = sorted(set(columns) - set(schema.names))
    if unknown:
        raise ValueError(
            f"a click has no column {unknown[0]!r}; choose from {', '.join(schema.names)}"
        )
    return pa.schema([one for one in schema if one.name in columns])


@lru_cache(8)
def _readers(reading: Reading) -> tuple[ClickReader, Enricher]:
    # It loads polars, which must not be loaded before Spark forks its workers.
    from sparq.pipeline.reading.reader import ClickReader  # noqa: PLC0415 - not before the fork

    return ClickReader(reading), Enricher(reading)
