"""The query `metrics`: figures per minute of event time, and clicks per page and minute.

The tables have partial rows, one for each minute and task of a batch: readers, and merges of files,
sum them up. So the query has no state, and a late click is one more row of its minute, however late
it is. `visitor_hashes` has the XXH3-64 of each visitor (address, line feed, user agent), with which
visitors of a day are counted exactly, too. On the topic are the minutes that a batch has touched,
summed up so far; `revision` is the version of the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from sparq.pipeline.enrich import USUAL, parse_batches
from sparq.pipeline.sink import Output
from sparq.pipeline.tables import Table

if TYPE_CHECKING:
    import polars as pl

    from sparq.pipeline.own_metrics import MetricTable
    from sparq.pipeline.reading.schema import Reading

QUERY = "metrics"
STATUS_CLASSES = ("1xx", "2xx", "3xx", "4xx", "5xx", "other")
PAGE_CHARACTERS_MAX = 1_000
BYTES_MAX = 1 << 50  # more bytes count as this many: sums of a minute stay below 64 bits
MINUTE = pa.field("minute", pa.timestamp("us", "UTC"))


def partial_table(
    name: str, keys: Sequence[pa.Field], values: Mapping[str, tuple[pa.DataType, str]]
) -> Table:
    """A table by minute, whose rows can be summed up, one for each combination of keys.

    Each other column has a type and "sum", "min", "max", or "union" of lists without repetitions.
    """
    schema = pa.schema([*keys, *((one, kind) for one, (kind, _) in values.items())])
    names, how = tuple(key.name for key in keys), {one: each for one, (_, each) in values.items()}
    return Table(name, schema, MINUTE.name, partial(summed, schema=schema, keys=names, how=how))


def summed(
    rows: pa.Table, schema: pa.Schema, keys: tuple[str, ...], how: Mapping[str, str]
) -> pa.Table:
    """The rows, summed up and ordered by keys; see `partial_table`."""
    import polars as pl  # noqa: PLC0415 - not before Spark forks its workers

    def combined(name: str) -> pl.Expr:
        lists = pl.col(name).explode().drop_nulls().unique()
        return lists if how[name] == "union" else getattr(pl.col(name), how[name])()

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


_COLUMNS = ("time", "address", "user_agent", "page", "status", "bytes", "reason")
_SUMS = ("clicks", "bytes", *(f"status_{name}" for name in STATUS_CLASSES))
_SUM = (pa.int64(), "sum")
_VISITORS = {"visitor_hashes": (pa.list_(pa.int64()), "union")}
MINUTES = partial_table("minutes", [MINUTE], {**dict.fromkeys(_SUMS, _SUM), **_VISITORS})
PAGES = partial_table("pages", [MINUTE, pa.field("page", pa.string())], {"clicks": _SUM})


def split(
    batches: Iterable[pa.RecordBatch], own: Sequence[MetricTable] = (), reading: Reading = USUAL
) -> Iterator[Mapping[str, pa.Table]]:
    """The messages of a partition as rows of both tables, and of those of the user's metrics."""
    columns = list(dict.fromkeys([*_COLUMNS, *(name for one in own for name in one.columns)]))
    for found in parse_batches(batches, columns, reading):
        clicks = found.select(columns).filter(pc.is_null(found["reason"]))
        yield {**rows_of(clicks), **{one.table.name: one.rows(clicks) for one in own}}


def rows_of(clicks: pa.Table) -> dict[str, pa.Table]:
    """Clicks as rows of both tables, a row per minute, and per minute and page."""
    import polars as pl  # noqa: PLC0415 - not before Spark forks its workers

    frame = pl.DataFrame(pl.from_arrow(clicks.select(["time", "page", "status", "bytes"])))
    frame = frame.with_columns(
        pl.col("time").dt.truncate("1m").alias("minute"),
        pl.Series("visitor", visitor_hashes(clicks["address"], clicks["user_agent"])),
        pl.col("bytes").clip(0, BYTES_MAX),
        pl.col("page").str.slice(0, PAGE_CHARACTERS_MAX),
        (pl.col("status") // 100).alias("class"),
    )
    minutes = frame.group_by("minute").agg(
        pl.len().alias("clicks"),
        pl.col("bytes").sum(),
        *(
            (pl.col("class") == number).sum().alias(f"status_{name}")
            for number, name in enumerate(STATUS_CLASSES[:-1], 1)
        ),
        pl.col("class").is_between(1, 5).fill_null(False).not_().sum().alias("status_other"),
        pl.col("visitor").drop_nulls().unique().alias("visitor_hashes"),
    )
    pages = frame.filter(pl.col("page").is_not_null()).group_by("minute", "page")
    return {
        MINUTES.name: to_arrow(minutes, MINUTES.schema),
        PAGES.name: to_arrow(pages.agg(pl.len().alias("clicks")), PAGES.schema),
    }


def visitor_hashes(addresses: pa.ChunkedArray, agents: pa.ChunkedArray) -> pa.Int64Array:
    """The visitor of each click; null without an address. Equal in all processes and versions."""
    texts = pc.binary_join_element_wise(addresses, pc.fill_null(agents, "-"), "\n")
    return hashes_of(texts.combine_chunks())


def output(own: Sequence[MetricTable] = (), reading: Reading = USUAL) -> Output:
    """The tables and messages of this query, the user's metrics included."""
    tables = [*(one.table for one in own), PAGES, MINUTES]
    return Output(
        tables, partial(split, own=tuple(own), reading=reading), MINUTES.name, "metrics", as_json
    )


def as_json(row: dict[str, Any], revision: int) -> bytes:
    """Encode the total of a minute for the topic."""
    statuses = {name: row.pop(f"status_{name}") for name in STATUS_CLASSES}
    row["visitors"] = len(row.pop("visitor_hashes"))
    minute = row["minute"].strftime("%Y-%m-%dT%H:%M:%SZ")
    return json.dumps({**row, "minute": minute, "revision": revision, "status": statuses}).encode()
