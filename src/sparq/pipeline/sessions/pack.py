"""Packs a partition of messages into one row per bucket of visitors; `mapInArrow` runs it.

    bucket INT          0 .. buckets - 1, the key of the stateful stage
    marks STRING        JSON {nsqd: newest event time in s, clamped to publish time}
    published_s BIGINT  newest publish time of the partition, s since 1970
    batch_ms BIGINT     time of the batch, ms since 1970, equal when the batch is replayed
    clicks BINARY       the partition's clicks of this bucket, columns of `rules.CLICK` and those
                        that the rules use, as an Arrow stream; empty if there are none
    visitors BINARY     each of their visitors once: VISITOR

1. A bucket without clicks gets its row, too: all buckets of a query see the same marks, and compute
   the same low mark (`low_mark`).
2. The number of buckets follows from the number of shuffle partitions, which Spark freezes in the
   checkpoint at the first start; it never depends on the current number of cores.
3. A visitor is a hash of 64 bits, equal in all processes and versions.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import xxhash

from sparq.pipeline.clicks import USUAL, parse_batches
from sparq.pipeline.enrich import kind, robot
from sparq.pipeline.reading.schema import Reading
from sparq.pipeline.sessions.rules import CLICK, KIND, Compiled, Rules, compiled

BUCKETS_PER_PARTITION = 8
PACKED_DDL = (
    "bucket INT, marks STRING, published_s BIGINT, batch_ms BIGINT, clicks BINARY, visitors BINARY"
)
VISITOR: dict[str, Any] = {
    "visitor": pl.Int64,
    "address": pl.String,
    "user_agent": pl.String,
    "robot": pl.String,
}
TEXT_CHARACTERS_MAX = 400
"""Of a page, an address or a user agent: a finding must fit into a message."""


def bucket_count(shuffle_partitions: int) -> int:
    """The number of buckets of a query with this many shuffle partitions."""
    return BUCKETS_PER_PARTITION * shuffle_partitions


def packer(
    rules: Rules, buckets: int, reading: Reading = USUAL
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`: messages with `batch_ms` in, rows of PACKED_DDL out."""

    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        use = compiled(rules)
        for messages in parse_batches(batches, use.needed, reading):
            yield packed(messages, use, buckets)

    return pack


def packed(messages: pa.Table, use: Compiled, buckets: int) -> pa.RecordBatch:
    """Pack the parsed messages of a partition: nsqd, id, timestamp, batch_ms, and `use.needed`."""
    published_s = messages["timestamp"].cast(pa.int64()).to_numpy() // 1_000_000
    readable = pl.from_arrow(messages.select(["nsqd", "id", "timestamp", *use.needed]))
    assert isinstance(readable, pl.DataFrame)
    readable = readable.filter(pl.col("reason").is_null())
    clicks, visitors, marks = prepared(readable, use)
    by_bucket = pl.col("visitor").mod(buckets).alias("bucket")
    columns = [_blobs(frame.with_columns(by_bucket), buckets) for frame in (clicks, visitors)]
    batch_ms = messages["batch_ms"][0].as_py()
    return pa.record_batch(
        [
            pa.array(range(buckets), pa.int32()),
            pa.array([json.dumps(marks, sort_keys=True)] * buckets, pa.string()),
            pa.array([int(published_s.max())] * buckets, pa.int64()),
            pa.array([batch_ms] * buckets, pa.int64()),
            *(pa.array(blobs, pa.binary()) for blobs in columns),
        ],
        names=["bucket", "marks", "published_s", "batch_ms", "clicks", "visitors"],
    )


def prepared(
    messages: pl.DataFrame, use: Compiled
) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, int]]:
    """The clicks in the form of the state, their visitors once each, and the nsqds' marks.

    Clicks without the first of the columns that tell visitors apart are left out: they would all be
    one visitor, whose session never ends.
    """
    names = use.settings.visit.visitor
    marks = messages.group_by("nsqd").agg(
        pl.min_horizontal(pl.col("time", "timestamp").dt.epoch("s")).max()
    )
    messages = messages.filter(pl.col(names[0]).is_not_null())
    short = [
        pl.col(name).str.slice(0, TEXT_CHARACTERS_MAX).fill_null("-")
        for name in dict.fromkeys(("address", "user_agent", *names))
    ]
    texts = messages.select(short).with_columns(key=pl.concat_str(names, separator="\n"))
    first = texts.select(at=pl.int_range(pl.len()), key="key").group_by("key").first()
    hashes = [xxhash.xxh3_64_intdigest(key.encode()) for key in first["key"]]
    first = first.with_columns(visitor=pl.Series(hashes, dtype=pl.UInt64).reinterpret(signed=True))
    visitors = texts[first["at"]].select("address", "user_agent", first["visitor"])
    robots = {agent: robot(agent)[0] for agent in visitors["user_agent"].unique()}
    names_of = pl.col("user_agent").replace_strict(robots, return_dtype=pl.String)
    visitors = visitors.with_columns(robot=names_of).select(list(VISITOR))
    kinds = {page: kind(page, use.settings.kinds)[0] for page in messages["page"].unique()}
    keys = texts.select("key").join(first, on="key", how="left", maintain_order="left")
    clicks = messages.with_columns(
        visitor=keys["visitor"],
        second=pl.col("time").dt.epoch("s"),
        kind=pl.col("page").replace_strict(kinds, return_dtype=KIND),
        id=pl.Series(ids_of(messages["id"]), dtype=pl.UInt64),
    ).with_columns(**{name: made for name, made in use.clicks.items() if name in use.kept})
    clicks = clicks.with_columns(page=pl.col("page").str.slice(0, TEXT_CHARACTERS_MAX))
    return clicks.select([*CLICK, *use.kept]), visitors, dict(marks.iter_rows())


def ids_of(texts: pl.Series) -> npt.NDArray[np.uint64]:
    """Message ids, texts of 16 hex digits, as numbers.

    Raises:
        ValueError: an id does not have 16 hex digits.
    """
    for wrong in texts.filter(texts.str.len_bytes() != 16):
        raise ValueError(f"column id: '{wrong}' is not a message id: it must have 16 hex digits")
    return np.frombuffer(bytes.fromhex("".join(texts)), ">u8").astype(np.uint64)


def _blobs(rows: pl.DataFrame, buckets: int) -> list[bytes]:
    parts = rows.partition_by("bucket", as_dict=True, include_key=False)
    return [to_blob(parts[(at,)]) if (at,) in parts else b"" for at in range(buckets)]


def to_blob(rows: pl.DataFrame) -> bytes:
    """Encode a table as a compressed Arrow stream; an empty one as no bytes."""
    if not len(rows):
        return b""
    out = io.BytesIO()
    rows.write_ipc_stream(out, compression="lz4")
    return out.getvalue()


def from_blob(blob: bytes) -> pl.DataFrame:
    """Decode `to_blob`; not for empty tables."""
    return pl.read_ipc_stream(blob)
