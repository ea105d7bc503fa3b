"""Packed rows: send the clicks of a batch to the buckets of a stateful query, one row per bucket.

`transformWithStateInPandas` has a cost for every input row. So a function before it (`mapInArrow`,
on the executors) sorts its partition by bucket and sends one row to *every* bucket:

    bucket INT          0 .. buckets - 1, the key of the stateful stage
    marks STRING        JSON {nsqd: newest event time in s, clamped to publish time}
    published_s BIGINT  newest publish time of the partition, s since 1970
    batch_ms BIGINT     time of the batch, ms since 1970, equal when the batch is replayed
    blob BINARY         the partition's tables for this bucket (see `to_blob`)

1. A bucket without clicks gets its row, too. So all buckets of a query are called in each batch
   that has rows, see the same marks, and compute the same low mark.
2. Spark may shuffle the rows of a bucket in any order: `receive` sorts the blobs.
3. The number of buckets follows from the number of shuffle partitions, which Spark freezes in the
   checkpoint at the first start; it never depends on the current number of cores.
4. State and buckets identify visitors and pages by 64-bit hashes (`hashes_of`).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

if TYPE_CHECKING:
    import pandas as pd

Ints = npt.NDArray[np.int64]
Marks = npt.NDArray[np.bool_]

BUCKETS_PER_PARTITION = 8
PACKED_SCHEMA = pa.schema(
    [
        ("bucket", pa.int32()),
        ("marks", pa.string()),
        ("published_s", pa.int64()),
        ("batch_ms", pa.int64()),
        ("blob", pa.binary()),
    ]
)
PACKED_DDL = "bucket INT, marks STRING, published_s BIGINT, batch_ms BIGINT, blob BINARY"


@dataclass(frozen=True, slots=True)
class BucketHeader:
    """Facts about a batch that every bucket needs.

    Attributes:
        marks: newest event time of each nsqd, clamped to its publish time, in s since 1970; without
            nsqds of which the batch has only rejected messages.
        published_s: newest publish time, in s since 1970.
        batch_ms: time of the batch, in ms since 1970.
    """

    marks: dict[str, int]
    published_s: int
    batch_ms: int


@dataclass(frozen=True, slots=True)
class BucketInput:
    """The input of one bucket in one batch: the merged header of its rows, and the sorted blobs."""

    header: BucketHeader
    blobs: list[bytes]


def bucket_count(shuffle_partitions: int) -> int:
    """The number of buckets of a query with this many shuffle partitions."""
    return BUCKETS_PER_PARTITION * shuffle_partitions


def buckets_of(hashes: Ints, buckets: int) -> Ints:
    """The bucket of each 64-bit hash: Spark's function pmod."""
    # numpy's % has the sign of the divisor, as pmod has: no bucket is negative.
    return hashes % buckets


def pack_partition(
    batches: Iterable[pa.RecordBatch],
    blobs_of: Callable[[pa.Table, int], list[bytes]],
    buckets: int,
) -> Iterator[pa.RecordBatch]:
    """Pack one partition; `mapInArrow` runs this.

    Args:
        batches: the rows of one partition and batch, with the columns that `header_of` reads.
        blobs_of: makes the blob of each bucket from these rows and the number of buckets.
        buckets: the number of buckets of the query.

    Yields:
        One RecordBatch of PACKED_SCHEMA with a row for each bucket; nothing for an empty partition.
    """
    messages = gather(batches)
    if messages is not None:
        yield pack(header_of(messages), blobs_of(messages, buckets))


def gather(batches: Iterable[pa.RecordBatch]) -> pa.Table | None:
    """The rows of a partition as one table without chunks; None if there are none.

    Spark splits a partition into Arrow batches (`spark.sql.execution.arrow.maxRecordsPerBatch`);
    packing each of them would send that many times as many rows.
    """
    filled = [batch for batch in batches if batch.num_rows]
    return pa.Table.from_batches(filled).combine_chunks() if filled else None


def header_of(messages: pa.Table) -> BucketHeader:
    """The header of a partition.

    Args:
        messages: one row or more, with the columns `nsqd` STRING, `newest_s` BIGINT (event time
            clamped to publish time; null if the message is rejected), `published_s` BIGINT and
            `batch_ms` BIGINT.
    """
    newest = messages.group_by("nsqd", use_threads=False).aggregate([("newest_s", "max")])
    names, seconds = newest["nsqd"].to_pylist(), newest["newest_s_max"].to_pylist()
    return BucketHeader(
        {name: second for name, second in zip(names, seconds, strict=True) if second is not None},
        pc.max(messages["published_s"]).as_py(),
        pc.max(messages["batch_ms"]).as_py(),
    )


def split(table: pa.Table, buckets: Ints, count: int) -> list[pa.Table]:
    """Split a table by bucket into `count` tables; rows keep their order.

    Args:
        table: any table.
        buckets: the bucket of each of its rows, 0 .. count - 1.
        count: the number of buckets.
    """
    if (buckets[1:] < buckets[:-1]).any():
        order = np.argsort(buckets, kind="stable")
        table, buckets = table.take(pa.array(order)), buckets[order]
    ends = np.searchsorted(buckets, np.arange(count + 1)).tolist()
    return [table.slice(first, end - first) for first, end in pairwise(ends)]


def pack(header: BucketHeader, blobs: Sequence[bytes]) -> pa.RecordBatch:
    """The rows that a partition sends, of PACKED_SCHEMA: `blobs[b]` goes to bucket b."""
    count = len(blobs)
    columns = [
        pa.array(range(count), pa.int32()),
        pa.array([json.dumps(header.marks, sort_keys=True)] * count, pa.string()),
        pa.array([header.published_s] * count, pa.int64()),
        pa.array([header.batch_ms] * count, pa.int64()),
        pa.array(blobs, pa.binary()),
    ]
    return pa.record_batch(columns, schema=PACKED_SCHEMA)


def receive(frames: Iterable[pd.DataFrame]) -> BucketInput:
    """Combine all rows that a bucket gets in one batch, as `handleInputRows` receives them.

    Args:
        frames: pandas frames with the columns of PACKED_SCHEMA; at least one row in total.
    """
    marks: dict[str, int] = {}
    published_s = batch_ms = 0
    blobs: list[bytes] = []
    for frame in frames:
        for text in frame["marks"]:
            for nsqd, newest in json.loads(text).items():
                marks[nsqd] = max(newest, marks.get(nsqd, newest))
        published_s = max(published_s, int(frame["published_s"].max()))
        batch_ms = max(batch_ms, int(frame["batch_ms"].max()))
        blobs.extend(frame["blob"])
    return BucketInput(BucketHeader(marks, published_s, batch_ms), sorted(blobs))


def to_blob(tables: Sequence[pa.Table]) -> bytes:
    """Encode tables: the length of each (unsigned 64 bits, little-endian), then their streams.

    A stream is in Arrow's IPC stream format. An empty table has length 0 and no stream, since most
    buckets of a small batch are empty, and a schema alone takes 300 bytes or more.
    """
    streams = [_stream(table) if len(table) else b"" for table in tables]
    lengths = struct.pack(f"<{len(streams)}Q", *map(len, streams))
    return b"".join([lengths, *streams])


def from_blob(blob: bytes, schemas: Sequence[pa.Schema]) -> list[pa.Table]:
    """Decode `to_blob` without copying; empty tables get their schema from `schemas`."""
    held = pa.py_buffer(blob)
    at = 8 * len(schemas)
    tables = []
    for schema, length in zip(schemas, struct.unpack_from(f"<{len(schemas)}Q", blob), strict=True):
        if length:
            tables.append(pa.ipc.open_stream(held.slice(at, length)).read_all())
        else:
            tables.append(schema.empty_table())
        at += length
    return tables


def _stream(table: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    stream: bytes = out.getvalue().to_pybytes()
    return stream


def hashes_of(texts: pa.Array) -> Ints:
    """The 64-bit hash of each text; equal in all processes and versions.

    Args:
        texts: strings without nulls. Pass each text once, such as the dictionary of a
            dictionary-encoded column, since texts are hashed one by one.
    """
    # Not Python's `hash`, which differs from process to process.
    digests = [xxhash.xxh3_64_intdigest(text.encode()) for text in texts.to_pylist()]
    return np.array(digests, np.uint64).view(np.int64)
