"""The clicks of a partition, reduced to what each bucket of `metrics` adds to its state.

Runs in front of the stateful stage, on the executors (`mapInArrow`). Input rows, one a message:

    minute BIGINT         event time, minutes since 1970; null if the message is rejected
    visitor BIGINT        xxhash64 of address and user agent
    page STRING           null where the request names none
    page_hash BIGINT      xxhash64 of the page
    bytes BIGINT, status INT (null where the log has "-")
    nsqd, newest_s, published_s, batch_ms      as `packing.header_of` takes them
    rejected STRUCT<...>  fields of REJECTED_SCHEMA; null if the message is a click

1. Each click counts once, in its visitor's bucket; its page in the page's bucket; a rejected
   message is in the bucket `index pmod buckets`, whole.
2. Every bucket is told every minute that the partition touches, with zeros where it has no click.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparq.pipeline import packing
from sparq.pipeline.minutes_state import minutes, page_texts
from sparq.pipeline.minutes_state.minutes import STATUS_CLASSES, SUMS, Minutes
from sparq.pipeline.minutes_state.output import REJECTED_SCHEMA
from sparq.pipeline.minutes_state.page_texts import PageTexts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

# The tables of a blob that a bucket receives.
BLOB_SCHEMAS = (minutes.SCHEMA, page_texts.SCHEMA, REJECTED_SCHEMA)

Packer = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def packer(buckets: int) -> Packer:
    """The function for `mapInArrow(packer(buckets), packing.PACKED_DDL)`."""

    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        messages = packing.gather(batches)
        if messages is not None:
            yield packing.pack(packing.header_of(messages), blobs_of(messages, buckets))

    return pack


def blobs_of(messages: pa.Table, buckets: int) -> list[bytes]:
    """What each bucket is sent: tables of BLOB_SCHEMAS as `packing.to_blob` writes them."""
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
    """The m minutes of all buckets at once, then cut: bucket b's are rows b * m and following."""
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


def _sums_of(clicks: pa.Table, rows: Numbers, count: int) -> Numbers:
    """SUMS of each row; revisions are the batch's to count, and 0 here."""
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
    """What a bucket got in one batch: minutes with one revision each, texts, rejected messages."""
    parts = [packing.from_blob(blob, BLOB_SCHEMAS) for blob in blobs]
    added = minutes.added_up([minutes.from_table(part[0]) for part in parts]).revised()
    texts = page_texts.EMPTY.with_more([page_texts.from_table(part[1]) for part in parts])
    refused = pa.concat_tables([part[2] for part in parts])
    if len(refused):
        refused = refused.sort_by([("nsqd", "ascending"), ("index", "ascending")])
    return added, texts, refused
