"""The columns of a click for messages, by `sparq.pipeline.reading` and `sparq.pipeline.enrich`.

Every row comes out, once, in its place. `reason` is null for a click; otherwise it says in words
why the message is none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa

from sparq.pipeline.enrich import Enricher
from sparq.pipeline.reading.schema import Reading, click_schema

if TYPE_CHECKING:
    from sparq.pipeline.reading.reader import ClickReader

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
    """Add columns of `click_schema(reading)`, in its order, to rows with a binary column `body`.

    Other columns are passed on. Without `columns`, all are made.
    """
    schema = click_schema(reading)
    if columns is not None:
        schema = pa.schema([one for one in schema if one.name in columns])
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


@lru_cache(8)
def _readers(reading: Reading) -> tuple[ClickReader, Enricher]:
    # It loads polars, which must not be loaded before Spark forks its workers.
    from sparq.pipeline.reading.reader import ClickReader  # noqa: PLC0415 - not before the fork

    return ClickReader(reading), Enricher(reading)
