"""The output of the stateful stage of `metrics`: one schema for four kinds of rows.

| kind | columns that it fills, in addition to `kind` and `bucket` |
|---|---|
| minute | minute, revision, final, clicks, visitors, bytes, status classes, top_pages |
| late | minute, clicks: clicks of a minute that had closed, or of one more than a day ahead |
| closed_early | minute, clicks: a minute that closed because the bucket was full |
| rejected | id, nsqd, index, timestamp, reason, body: a message that could not be read |

1. The newest revision of each (minute, bucket) counts; a minute is the sum over its buckets.
2. Clicks of all newest revisions + late clicks + rejected messages = messages.
3. In a batch every bucket writes a row for each minute that the batch touched, even if all its
   figures are zero. So the rows of one batch are also whole minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparq.pipeline.minutes_state.minutes import STATUS_CLASSES, Minutes, saturated_sums
from sparq.pipeline.minutes_state.page_texts import TOP_TYPE, PageTexts, candidates, top_pages
from sparq.pipeline.packing import Ints

MINUTE, LATE, CLOSED_EARLY, REJECTED = "minute", "late", "closed_early", "rejected"
FIGURES = ("clicks", "visitors", "bytes", *(f"status_{name}" for name in STATUS_CLASSES))
# The columns of a minute for readers.
MINUTE_SCHEMA = pa.schema(
    [
        ("minute", pa.timestamp("us", "UTC")),
        ("revision", pa.int64()),
        ("final", pa.bool_()),
        *((name, pa.int64()) for name in FIGURES),
        ("top_pages", TOP_TYPE),
    ]
)
REJECTED_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("nsqd", pa.string()),
        ("index", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("reason", pa.string()),
        ("body", pa.binary()),
    ]
)
SCHEMA = pa.schema(
    [("kind", pa.string()), ("bucket", pa.int32()), *MINUTE_SCHEMA, *REJECTED_SCHEMA]
)
EMPTY = SCHEMA.empty_table()
MINUTE_DDL = ", ".join(
    [
        "minute TIMESTAMP, revision BIGINT, final BOOLEAN",
        *(f"{name} BIGINT" for name in FIGURES),
        "top_pages ARRAY<STRUCT<page: STRING, clicks: BIGINT>>",
    ]
)
DDL = (
    f"kind STRING, bucket INT, {MINUTE_DDL}, "
    "id STRING, nsqd STRING, index BIGINT, timestamp TIMESTAMP, reason STRING, body BINARY"
)


def minute_rows(bucket: int, minutes: Minutes, texts: PageTexts, *, final: bool) -> pa.Table:
    """A row of kind `minute` for each minute; a final row counts as one more revision."""
    if not len(minutes):
        return EMPTY
    filled = {
        "minute": _as_time(minutes.minute),
        "revision": pa.array(minutes.sum_of("revisions") + int(final)),
        "final": pa.array(np.full(len(minutes), final)),
        "visitors": pa.array(minutes.visitor_counts),
        "top_pages": _top_pages(minutes, texts),
    }
    sums = {name: pa.array(minutes.sum_of(name)) for name in FIGURES if name not in filled}
    return _rows(MINUTE, bucket, len(minutes), filled | sums)


def rows_of(bucket: int, minutes: pa.Table) -> pa.Table:
    """Rows of kind `minute`, made from rows of MINUTE_SCHEMA."""
    if not len(minutes):
        return EMPTY
    filled = dict(zip(minutes.column_names, minutes.columns, strict=True))
    return _rows(MINUTE, bucket, len(minutes), filled)


def last_rows(bucket: int, last: pa.Table, touched: Ints, over: int) -> pa.Table:
    """The last rows of closed minutes that a batch must write.

    Args:
        bucket: its number.
        last: rows of MINUTE_SCHEMA: minutes that close in this batch or have closed early.
        touched: the minutes that the batch touches.
        over: the first minute that is not closed in every bucket after this batch.
    """
    if not len(last):
        return EMPTY
    is_over = pc.less(last["minute"], _as_time(np.array([over]))[0])
    return rows_of(
        bucket, last.filter(pc.or_(is_over, pc.is_in(last["minute"], _as_time(touched))))
    )


def since(rows: pa.Table, minute: int) -> pa.Table:
    """Those rows of MINUTE_SCHEMA whose minute is this one or a later one."""
    first = _as_time(np.array([minute]))[0]
    return rows.filter(pc.greater_equal(rows["minute"], first)) if len(rows) else rows


def counted_rows(kind: str, bucket: int, minutes: Minutes) -> pa.Table:
    """A row of kind `late` or `closed_early` for each minute."""
    if not len(minutes):
        return EMPTY
    filled = {"minute": _as_time(minutes.minute), "clicks": pa.array(minutes.sum_of("clicks"))}
    return _rows(kind, bucket, len(minutes), filled)


def rejected_rows(bucket: int, messages: pa.Table) -> pa.Table:
    """A row of kind `rejected` for each message, a row of REJECTED_SCHEMA."""
    if not len(messages):
        return EMPTY
    columns = dict(zip(messages.column_names, messages.columns, strict=True))
    return _rows(REJECTED, bucket, len(messages), columns)


def joined(*tables: pa.Table) -> pa.Table:
    """The rows of all tables of SCHEMA; in most batches, most of these tables are empty."""
    filled = [table for table in tables if len(table)]
    return pa.concat_tables(filled) if filled else EMPTY


def read(rows: pa.Table) -> pa.Table:
    """Combine rows to minutes: the newest revision of each bucket, summed over the buckets.

    In Spark, `rows.groupBy("minute").applyInArrow(read, MINUTE_DDL)` does this on the executors.

    Args:
        rows: rows with at least the columns of MINUTE_SCHEMA and `bucket`, of any batches and in
            any order; duplicate rows do no harm. If there is a column `kind`, only rows of kind
            `minute` are read.

    Returns:
        One row of MINUTE_SCHEMA per minute, ascending; `final` if all of its buckets are final.
    """
    if "kind" in rows.column_names:
        rows = rows.filter(pc.equal(rows["kind"], MINUTE))
    minute = rows["minute"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy()
    bucket, revision = rows["bucket"].to_numpy(), rows["revision"].to_numpy()
    order = np.lexsort((revision, bucket, minute))
    minute, bucket = minute[order], bucket[order]
    newest = np.ones(len(order), np.bool_)
    newest[:-1] = (minute[1:] != minute[:-1]) | (bucket[1:] != bucket[:-1])
    rows = rows.take(pa.array(order[newest]))
    return _over_buckets(minute[newest], rows)


def _over_buckets(minute: Ints, rows: pa.Table) -> pa.Table:
    """Sum rows of one revision per bucket, ascending by minute (in us), to one row per minute."""
    distinct, firsts, place = np.unique(minute, return_index=True, return_inverse=True)
    figures = np.array([rows[name].to_numpy() for name in FIGURES], np.int64)
    sums = saturated_sums(figures, firsts)
    revision = rows["revision"].to_numpy()
    final = rows["final"].to_numpy()
    pages = pc.list_flatten(rows["top_pages"]).combine_chunks()
    counts = pc.list_value_length(rows["top_pages"]).to_numpy()
    columns = {
        "minute": pa.array(distinct, pa.timestamp("us", "UTC")),
        "revision": np.maximum.reduceat(revision, firsts) if len(firsts) else revision,
        "final": np.logical_and.reduceat(final, firsts) if len(firsts) else final,
        **dict(zip(FIGURES, sums, strict=True)),
        "top_pages": top_pages(
            np.repeat(place, counts),
            pages.field("clicks").to_numpy(),
            pages.field("page"),
            len(distinct),
        ),
    }
    return pa.table(columns, schema=MINUTE_SCHEMA)


def _top_pages(minutes: Minutes, texts: PageTexts) -> pa.Array:
    rows = np.repeat(np.arange(len(minutes)), minutes.page_counts)
    best = candidates(rows, minutes.page_clicks)
    return top_pages(
        rows[best], minutes.page_clicks[best], texts.of(minutes.pages[best]), len(minutes)
    )


def _as_time(minute: Ints) -> pa.Array:
    return pa.array(minute * 60_000_000, pa.timestamp("us", "UTC"))


def _rows(kind: str, bucket: int, count: int, filled: Mapping[str, Any]) -> pa.Table:
    """Rows of SCHEMA; null in columns that the kind does not fill."""
    constant = {
        "kind": pa.array([kind] * count, pa.string()),
        "bucket": pa.array(np.full(count, bucket, np.int32)),
    }
    filled = constant | dict(filled)
    columns = [
        filled[field.name] if field.name in filled else pa.nulls(count, field.type)
        for field in SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)
