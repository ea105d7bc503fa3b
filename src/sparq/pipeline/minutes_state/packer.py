"""Reduces the clicks of a partition to what each bucket of `metrics` adds to its state.

This runs before the stateful stage, on the executors (`mapInArrow`). `prepared` turns messages, as
`sparq.pipeline.clicks.parse_arrow` returns them, into rows of PREPARED, one per message. Values
that many clicks share (a page, a visitor) are computed once per text. `blobs_of` packs the rows:

1. Each click counts once, in its visitor's bucket, and its page in the page's bucket. A rejected
   message goes unchanged to the bucket its index modulo the number of buckets.
2. Every bucket gets every minute that the partition touches, with zeros if it has no click in it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparq.pipeline import packing
from sparq.pipeline.minutes_state import minutes, page_texts
from sparq.pipeline.minutes_state.minutes import STATUS_CLASSES, SUMS, Minutes
from sparq.pipeline.minutes_state.output import REJECTED_SCHEMA
from sparq.pipeline.minutes_state.page_texts import PageTexts
from sparq.pipeline.packing import Ints, hashes_of

# Columns of a parsed message for `prepared`; also nsqd, id, index, timestamp, body and batch_ms.
PARSED_COLUMNS = ("time", "address", "page", "status", "bytes", "user_agent", "reason")
MICROSECONDS = 1_000_000
REJECTED_TYPE = pa.struct(list(REJECTED_SCHEMA))
PREPARED = pa.schema(
    [
        ("minute", pa.int64()),  # event time, minutes since 1970; null if the message is rejected
        ("visitor", pa.int64()),  # hash of address and user agent
        ("page", pa.string()),  # null if the request has no path
        ("page_hash", pa.int64()),  # 0 where there is no page
        ("bytes", pa.int64()),
        ("status", pa.int32()),  # null if the log has "-"
        # What `packing.header_of` reads.
        ("nsqd", pa.string()),
        ("newest_s", pa.int64()),
        ("published_s", pa.int64()),
        ("batch_ms", pa.int64()),
        ("rejected", REJECTED_TYPE),  # the whole message; null if it is a click
    ]
)


def prepared(messages: pa.Table) -> pa.Table:
    """Convert a table of messages to PREPARED, one row per message.

    Args:
        messages: columns nsqd STRING, id STRING, index BIGINT, timestamp TIMESTAMP (publish time),
            body BINARY, batch_ms BIGINT (see `packing.PACKED_SCHEMA`) and those of
            PARSED_COLUMNS.
    """
    messages = messages.combine_chunks()
    is_click = pc.is_null(messages["reason"]).combine_chunks()
    agents = pc.fill_null(messages["user_agent"].combine_chunks(), "-")
    addresses = messages["address"].combine_chunks()
    visitors = pc.binary_join_element_wise(addresses, agents, "\n").dictionary_encode()
    pages = messages["page"].combine_chunks().dictionary_encode()
    second = _seconds(messages["time"])
    published_s = _seconds(messages["timestamp"])
    columns = [
        pc.if_else(is_click, pc.divide(second, 60), None),
        _looked_up(hashes_of(visitors.dictionary), visitors.indices),
        messages["page"],
        _looked_up(hashes_of(pages.dictionary), pages.indices).fill_null(0),
        messages["bytes"],
        messages["status"],
        messages["nsqd"],
        # A rejected message has no event time, and its publish time must not be taken for one.
        pc.if_else(is_click, pc.min_element_wise(second, published_s, skip_nulls=False), None),
        published_s,
        messages["batch_ms"],
        _rejected(messages, is_click),
    ]
    return pa.table(dict(zip(PREPARED.names, columns, strict=True)), schema=PREPARED)


def _seconds(times: pa.ChunkedArray) -> pa.Int64Array:
    """Whole seconds since 1970, rounded down; null if the time is null."""
    micros = times.combine_chunks().cast(pa.int64())
    known = micros.is_valid().to_numpy(zero_copy_only=False)
    return pa.array(micros.fill_null(0).to_numpy() // MICROSECONDS, mask=~known)


def _looked_up(values: Ints, indices: pa.Array) -> pa.Int64Array:
    return pa.array(values).take(indices)


def _rejected(messages: pa.Table, is_click: pa.BooleanArray) -> pa.Array:
    if is_click.true_count == len(is_click):
        return pa.nulls(len(is_click), REJECTED_TYPE)
    kept = messages.select(REJECTED_SCHEMA.names).cast(REJECTED_SCHEMA)
    whole = [pc.if_else(is_click, None, kept[name].combine_chunks()) for name in kept.column_names]
    return pa.StructArray.from_arrays(whole, fields=list(REJECTED_SCHEMA), mask=is_click)


# The tables of a blob that a bucket receives.
BLOB_SCHEMAS = (minutes.SCHEMA, page_texts.SCHEMA, REJECTED_SCHEMA)


def blobs_of(messages: pa.Table, buckets: int) -> list[bytes]:
    """The blob for each bucket: tables of BLOB_SCHEMAS as `packing.to_blob` encodes them."""
    refused = _refused(messages)
    clicks = messages.filter(pc.is_valid(messages["minute"])) if len(refused) else messages
    index = refused["index"].to_numpy()
    parts = (
        _minutes_of(clicks, buckets),
        _texts_of(clicks, buckets),
        packing.split(refused, packing.buckets_of(index, buckets), buckets),
    )
    return [packing.to_blob(tables) for tables in zip(*parts, strict=True)]


def _refused(messages: pa.Table) -> pa.Table:
    column = messages["rejected"]
    held = column.filter(pc.is_valid(column)).combine_chunks()
    return pa.Table.from_struct_array(held).select(REJECTED_SCHEMA.names).cast(REJECTED_SCHEMA)


def _minutes_of(clicks: pa.Table, buckets: int) -> list[pa.Table]:
    """The m minutes of all buckets in one table, then split: bucket b has m rows from b * m on."""
    minute, place = np.unique(clicks["minute"].to_numpy(), return_inverse=True)
    visitor = clicks["visitor"].to_numpy()
    rows = packing.buckets_of(visitor, buckets) * len(minute) + place
    named = np.flatnonzero(clicks["page"].is_valid().to_numpy())
    page = clicks["page_hash"].to_numpy()[named]
    page_rows = packing.buckets_of(page, buckets) * len(minute) + place[named]
    table = minutes.grouped(
        np.tile(minute, buckets),
        _sums_of(clicks, rows, buckets * len(minute)),
        (rows, visitor),
        (page_rows, page, np.ones(len(page), np.int64)),
    ).table()
    return [table.slice(bucket * len(minute), len(minute)) for bucket in range(buckets)]


def _sums_of(clicks: pa.Table, rows: Ints, count: int) -> Ints:
    """SUMS of each row; `revisions` is 0 here, since it counts batches."""
    status = clicks["status"].fill_null(0).to_numpy() // 100
    status_class = np.where((status >= 1) & (status <= 5), status - 1, len(STATUS_CLASSES) - 1)
    classes = np.bincount(
        rows * len(STATUS_CLASSES) + status_class, minlength=count * len(STATUS_CLASSES)
    ).reshape(count, len(STATUS_CLASSES))
    sums = np.zeros((len(SUMS), count), np.int64)
    sums[SUMS.index("clicks")] = classes.sum(axis=1)
    sums[-len(STATUS_CLASSES) :] = classes.T
    order = np.argsort(rows, kind="stable")
    filled, firsts = np.unique(rows[order], return_index=True)
    size = clicks["bytes"].to_numpy()[order]
    sums[SUMS.index("bytes"), filled] = minutes.saturated_sums(size, firsts)
    return sums


def _texts_of(clicks: pa.Table, buckets: int) -> list[pa.Table]:
    named = clicks.select(["page", "page_hash"]).filter(pc.is_valid(clicks["page"]))
    pages, at = np.unique(named["page_hash"].to_numpy(), return_index=True)
    texts = named["page"].take(pa.array(at)).combine_chunks()
    table = PageTexts(pages, page_texts.shortened(texts)).table()
    return packing.split(table, packing.buckets_of(pages, buckets), buckets)


def received(blobs: Iterable[bytes]) -> tuple[Minutes, PageTexts, pa.Table]:
    """The input of a bucket in one batch: minutes with one revision, texts, rejected messages."""
    parts = [packing.from_blob(blob, BLOB_SCHEMAS) for blob in blobs]
    added = minutes.added_up([minutes.from_table(part[0]) for part in parts]).revised()
    texts = page_texts.EMPTY.with_more([page_texts.from_table(part[1]) for part in parts])
    refused = pa.concat_tables([part[2] for part in parts])
    if len(refused):
        refused = refused.sort_by([("nsqd", "ascending"), ("index", "ascending")])
    return added, texts, refused
