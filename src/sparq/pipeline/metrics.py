"""The query `metrics`: per minute of event time what happened, and what could not be read.

A click is never lost as late: it corrects its minute, by a newer revision of the row, or is
counted in `late` (see `minutes`). The query also keeps the rejected messages, since its books are
the ones that must come out even: clicks + late + rejected = messages that the logs hold.

    data/metrics/batch=12/minutes.parquet     rows of ROW_SCHEMA: the newest revision counts
    data/late/batch=12/minutes.parquet        clicks of minutes that were closed
    data/rejected/batch=12/*.parquet          id, nsqd, index, timestamp, reason, body
    topics clicks.metrics, clicks.rejected    the same as JSON, at least once

1. What a batch writes lies in a folder of its id, so a repeated batch replaces it: exactly once.
2. The state is saved last: what stands in it has been written.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparq.pipeline import clicks as click
from sparq.pipeline.folders import (
    Folders,
    batch_folder,
    discard_batch,
    read_batches,
    write_batch,
)
from sparq.pipeline.minutes import (
    ENTRY_SCHEMA,
    LATE_SCHEMA,
    MINUTE,
    PAGE,
    ROW_SCHEMA,
    STATUS_CLASSES,
    VISITOR,
    MinuteBooks,
)
from sparq.pipeline.state import StateStore

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

QUERY = "metrics"
METRICS_TOPIC = "clicks.metrics"
REJECTED_TOPIC = "clicks.rejected"
PAGE_CHARACTERS_MAX = 500  # a longer page keeps its start, and a digest instead of the rest
# Of a rejected message on its topic: JSON may make six bytes of one, and nsqd takes 1 MiB.
ORIGINAL_BYTES_MAX = 160_000

REJECTED_SCHEMA = pa.schema([("id", pa.string()), ("reason", pa.string()), ("body", pa.binary())])

Publish = Callable[[str, list[bytes]], None]

# The four ways in which a batch is grouped, as bits of Spark's grouping_id over these columns.
_GROUPED = ("minute", "visitor", "page", "nsqd")
_BY_MINUTE, _BY_VISITOR, _BY_PAGE, _BY_NSQD = 0b0111, 0b0011, 0b0101, 0b1110
_KINDS = {_BY_MINUTE: MINUTE, _BY_VISITOR: VISITOR, _BY_PAGE: PAGE}


def visitor() -> Column:
    """Who clicked: a digest of address and user agent, 16 bytes."""
    name = F.concat_ws("\n", "address", F.coalesce("user_agent", F.lit("-")))
    return F.unhex(F.substring(F.sha2(name, 256), 1, 32))


def prepared(messages: DataFrame) -> DataFrame:
    """Each message as the books need it; a rejected one whole.

    For the stream, not for its batches: these expressions are planned once, not once a batch.
    """
    parsed = click.parse(messages)
    readable = F.col("reason").isNull()
    return parsed.select(
        F.when(readable, F.floor(F.unix_seconds("time") / 60).cast("bigint")).alias("minute"),
        F.when(readable, visitor()).alias("visitor"),
        F.when(readable, _short_page().cast("binary")).alias("page"),
        F.when(readable, F.col("bytes")).otherwise(0).alias("bytes"),
        F.when(readable, _status_class()).alias("class"),
        # Of a rejected message there is no event time: its publish time must not pass for one.
        F.when(readable, F.least(F.unix_seconds("time"), F.unix_seconds("timestamp"))).alias(
            "newest"
        ),
        *("id", "nsqd", "index", "timestamp", "reason"),
        F.when(~readable, F.col("body")).alias("body"),
    )


def reduced(clicks: DataFrame) -> DataFrame:
    """One row per minute, minute and visitor, minute and page, and nsqd, of a prepared batch."""
    readable = F.col("reason").isNull()
    minute, visits, page, nsqd = (F.col(name) for name in _GROUPED)
    sets = clicks.groupingSets([[minute], [minute, visits], [minute, page], [nsqd]], *_GROUPED)
    return sets.agg(
        F.grouping_id().alias("grouping"),
        F.count(F.when(readable, 1)).alias("clicks"),
        F.count(F.when(~readable, 1)).alias("rejected"),
        F.sum("bytes").alias("bytes"),
        *(
            F.count(F.when(F.col("class") == name, 1)).alias(f"status_{name}")
            for name in STATUS_CLASSES
        ),
        F.max("newest").alias("newest"),
        F.max(F.unix_seconds("timestamp")).alias("published"),
    )


def _short_page() -> Column:
    page = F.col("page")
    digest = F.substring(F.sha2(page, 256), 1, 16)
    short = F.concat(page.substr(1, PAGE_CHARACTERS_MAX - 20), F.lit("..."), digest)
    return F.when(F.length(page) > PAGE_CHARACTERS_MAX, short).otherwise(page)


def _status_class() -> Column:
    first = F.floor(F.col("status") / 100)
    known = F.concat(first.cast("string"), F.lit("xx"))
    return F.when(first.between(1, 5), known).otherwise("other")


def entries_of(groups: pa.Table) -> pa.Table:
    """The grouped rows of a batch as entries of the minutes' books."""
    parts = []
    for grouping, kind in _KINDS.items():
        mine = groups.filter(pc.equal(groups["grouping"], grouping))
        key = {VISITOR: "visitor", PAGE: "page"}.get(kind)
        present = pc.is_valid(mine["minute"])
        if key is not None:
            present = pc.and_(present, pc.is_valid(mine[key]))
        mine = mine.filter(present)
        constant = {
            "kind": pa.array([kind] * len(mine), pa.int32()),
            "key": mine[key] if key else pa.array([b""] * len(mine), pa.binary()),
            "revisions": pa.array([int(kind == MINUTE)] * len(mine), pa.int64()),
        }
        columns = {name: constant.get(name) for name in ENTRY_SCHEMA.names}
        parts.append(
            pa.table(
                {name: mine[name] if held is None else held for name, held in columns.items()}
            ).cast(ENTRY_SCHEMA)
        )
    return pa.concat_tables(parts)


class MetricsSink:
    """What foreachBatch calls: one reduced batch into the books, its rows onto disk and topic."""

    def __init__(self, folders: Folders, publish: Publish, sink_options: dict[str, str]) -> None:
        self._folders = folders
        self._publish = publish
        self._sink_options = sink_options
        self._store = StateStore(folders.state_of(QUERY))
        self._books = MinuteBooks()
        self._next_batch = -1

    def __call__(self, clicks: DataFrame, batch_id: int) -> None:
        """Take in one prepared micro-batch, or the same one once more."""
        books = self._books_before(batch_id)
        self._next_batch = -1  # until this batch is through, what is in memory is half done
        clicks = clicks.persist()
        try:
            groups = reduced(clicks).toArrow()
            by_nsqd = groups.filter(pc.equal(groups["grouping"], _BY_NSQD))
            self._keep_rejected(clicks, batch_id, pc.sum(by_nsqd["rejected"]).as_py() or 0)
        finally:
            clicks.unpersist()
        newest = zip(by_nsqd["nsqd"].to_pylist(), by_nsqd["newest"].to_pylist(), strict=True)
        applied = books.apply(
            batch_id,
            entries_of(groups),
            {nsqd: second for nsqd, second in newest if second is not None},
            pc.max(by_nsqd["published"]).as_py() or 0,
        )
        self._write(batch_id, applied.rows)
        write_batch(self._folders.late, batch_id, "minutes", applied.late)
        whole = self._store.wants_snapshot(batch_id)
        entries = books.entries if whole else applied.entries
        self._store.save(batch_id, {"entries": entries}, books.books())
        self._next_batch = batch_id + 1

    def close(self, next_batch: int) -> None:
        """Write the last row of every open minute, as the batch that would come next."""
        self._write(next_batch, self._books_before(next_batch).close())

    def figures(self) -> dict[str, int]:
        """What has been counted so far."""
        return {"clicks": self._books.clicks, "late": self._books.late}

    def _books_before(self, batch_id: int) -> MinuteBooks:
        if self._next_batch != batch_id:
            tables, books = self._store.load(batch_id)
            self._books = MinuteBooks(tables.get("entries"), books)
            self._next_batch = batch_id
        return self._books

    def _write(self, batch_id: int, rows: pa.Table) -> None:
        write_batch(self._folders.metrics, batch_id, "minutes", rows)
        if len(rows):
            self._publish(METRICS_TOPIC, [_as_json(row) for row in rows.to_pylist()])

    def _keep_rejected(self, clicks: DataFrame, batch_id: int, count: int) -> None:
        if not count:
            discard_batch(self._folders.rejected, batch_id)
            return
        kept = click.rejected(clicks).select("id", "nsqd", "index", "timestamp", "reason", "body")
        kept.write.mode("overwrite").parquet(str(batch_folder(self._folders.rejected, batch_id)))
        (
            kept.select(_rejected_as_json().alias("body"))
            .write.format("nsq")
            .mode("append")
            .options(topic=REJECTED_TOPIC, **self._sink_options)
            .save()
        )


def read(folders: Folders) -> pa.Table:
    """All revisions of all minutes, columns of ROW_SCHEMA."""
    return read_batches(folders.metrics, ROW_SCHEMA)


def read_late(folders: Folders) -> pa.Table:
    """The clicks of minutes that were closed, columns of LATE_SCHEMA."""
    return read_batches(folders.late, LATE_SCHEMA)


def read_rejected(folders: Folders) -> pa.Table:
    """The messages that could not be read, columns of REJECTED_SCHEMA."""
    return read_batches(folders.rejected, REJECTED_SCHEMA)


def _rejected_as_json() -> Column:
    """Reason and original; as base64 where it is not UTF-8, cut where it would not fit."""
    body = F.expr(f"substring(body, 1, {ORIGINAL_BYTES_MAX})")
    text = body.cast("string")
    is_text = F.expr(f"is_valid_utf8(cast(substring(body, 1, {ORIGINAL_BYTES_MAX}) AS STRING))")
    cut = F.length("body") > ORIGINAL_BYTES_MAX
    return F.to_json(
        F.struct(
            "reason",
            F.when(is_text, text).alias("original"),
            F.when(~is_text, F.base64(body)).alias("original_base64"),
            F.when(cut, F.length("body")).alias("original_bytes"),
            *("id", "nsqd", F.col("index").cast("string").alias("index"), "timestamp"),
        )
    ).cast("binary")


def _as_json(row: dict[str, Any]) -> bytes:
    """A row for the topic: what a minute looks like now."""
    row = {
        **{name: value for name, value in row.items() if not name.startswith("status_")},
        "minute": row["minute"].strftime("%Y-%m-%dT%H:%M:%SZ"),
        "status": {name: row[f"status_{name}"] for name in STATUS_CLASSES},
    }
    return json.dumps(row).encode()
