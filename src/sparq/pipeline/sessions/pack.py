"""Packs a partition of messages into one row per bucket of visitors; `mapInArrow` runs it.

    bucket INT          0 .. buckets - 1, the key of the stateful stage
    marks STRING        JSON {nsqd: newest event time in s, clamped to publish time}
    published_s BIGINT  newest publish time of the partition, s since 1970
    clicks BINARY       the partition's clicks of this bucket, columns of `rules.CLICK` and those
                        that the rules use, as an Arrow stream; empty if there are none
    visitors BINARY     each of their visitors once: VISITOR

A bucket without clicks gets its row, too: all buckets of a query see the same marks.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from typing import Any

import polars as pl
import pyarrow as pa

from sparq.pipeline.enrich import USUAL, kind, parse_batches, robot
from sparq.pipeline.metrics import hashes_of
from sparq.pipeline.reading.schema import Reading
from sparq.pipeline.sessions.rules import CLICK, KIND, Rules

BUCKETS_PER_PARTITION = 8  # of the shuffle, of which Spark freezes the number
PACKED_DDL = "bucket INT, marks STRING, published_s BIGINT, clicks BINARY, visitors BINARY"
VISITOR: dict[str, Any] = {
    "visitor": pl.Int64,
    **dict.fromkeys(("address", "user_agent", "robot"), pl.String),
}
TEXT_CHARACTERS_MAX = 400  # a finding must fit into a message


def pack(
    batches: Iterable[pa.RecordBatch], rules: Rules, buckets: int, reading: Reading = USUAL
) -> Iterator[pa.RecordBatch]:
    """Messages of a partition as rows of PACKED_DDL."""
    for messages in parse_batches(batches, rules.needed, reading):
        yield packed(messages, rules, buckets)


def packed(messages: pa.Table, rules: Rules, buckets: int) -> pa.RecordBatch:
    """Pack the parsed messages of a partition: nsqd, id, timestamp, `rules.needed`."""
    read = pl.DataFrame(pl.from_arrow(messages.select(["nsqd", "id", "timestamp", *rules.needed])))
    newest = pl.min_horizontal(pl.col("time", "timestamp").dt.epoch("s")).max()
    marks = dict(read.filter(pl.col("reason").is_null()).group_by("nsqd").agg(newest).iter_rows())
    clicks, visitors = prepared(read.filter(pl.col("reason").is_null()), rules)
    published_s = read.select(pl.col("timestamp").max().dt.epoch("s")).item()
    by_bucket = pl.col("visitor").mod(buckets).alias("bucket")
    columns = [_blobs(frame.with_columns(by_bucket), buckets) for frame in (clicks, visitors)]
    return pa.record_batch(
        [
            pa.array(range(buckets), pa.int32()),
            pa.array([json.dumps(marks, sort_keys=True)] * buckets, pa.string()),
            pa.array([published_s] * buckets, pa.int64()),
            *(pa.array(blobs, pa.binary()) for blobs in columns),
        ],
        names=["bucket", "marks", "published_s", "clicks", "visitors"],
    )


def prepared(messages: pl.DataFrame, rules: Rules) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The clicks in the form of the state, and their visitors once each."""
    names = rules.visit.visitor
    # Without the first of these columns, all would be one visitor, whose session never ends.
    messages = messages.filter(pl.col(names[0]).is_not_null())
    texts = messages.select(
        pl.col(name).str.slice(0, TEXT_CHARACTERS_MAX).fill_null("-")
        for name in dict.fromkeys(("address", "user_agent", *names))
    )
    keys = texts.select(key=pl.concat_str(names, separator="\n"))["key"].to_arrow()
    texts = texts.with_columns(visitor=pl.Series(hashes_of(keys)))
    visitors = texts.unique("visitor", keep="first", maintain_order=True)
    robots = {agent: robot(agent)[0] for agent in visitors["user_agent"].unique()}
    names_of = pl.col("user_agent").replace_strict(robots, return_dtype=pl.String)
    kinds = {page: kind(page, rules.kinds)[0] for page in messages["page"].unique()}
    clicks = messages.with_columns(
        texts["visitor"],
        second=pl.col("time").dt.epoch("s"),
        kind=pl.col("page").replace_strict(kinds, return_dtype=KIND),
        id=pl.col("id").str.to_integer(base=16, dtype=pl.UInt64),
    ).with_columns(**{name: made for name, made in rules.clicks.items() if name in rules.kept})
    clicks = clicks.with_columns(page=pl.col("page").str.slice(0, TEXT_CHARACTERS_MAX))
    visitors = visitors.with_columns(robot=names_of).select(list(VISITOR))
    return clicks.select([*CLICK, *rules.kept]), visitors


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
