"""The query `metrics`: per minute of event time what happened, and what could not be read.

A click is never lost as late: it corrects its minute, by a newer revision of the row, or is
counted in `late`. The query also keeps the rejected messages: clicks of the newest revisions + late
clicks + rejected messages = messages that the logs hold.

    data/metrics/batch=12     rows of MINUTE_SCHEMA: the newest revision of a minute counts
    data/late/batch=12        minute, clicks: of minutes that had closed
    data/rejected/batch=12    id, nsqd, index, timestamp, reason, body
    topics clicks.metrics, clicks.rejected    the same as JSON, at least once

1. The open minutes are Spark's state (`minutes_state`); nothing of the query's is kept elsewhere.
2. What a batch writes lies in folders of its number, so a repeated batch replaces it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F

from sparq.pipeline import batch_folders
from sparq.pipeline.checkpoints import readable_as_state
from sparq.pipeline.hadoop_files import HadoopFiles
from sparq.pipeline.minutes_state import output, processor
from sparq.pipeline.minutes_state.minutes import STATUS_CLASSES
from sparq.pipeline.minutes_state.output import (
    CLOSED_EARLY,
    LATE,
    MINUTE,
    MINUTE_DDL,
    MINUTE_SCHEMA,
    REJECTED,
)
from sparq.pipeline.result_topics import ResultTopics, as_bodies

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from sparq.pipeline.folders import Folders
    from sparq.pipeline.places import Places

QUERY = "metrics"
# Of a rejected message on its topic: JSON may make six bytes of one, and nsqd takes 1 MiB.
ORIGINAL_BYTES_MAX = 160_000

LATE_SCHEMA = pa.schema([("minute", pa.timestamp("us", "UTC")), ("clicks", pa.int64())])
REJECTED_SCHEMA = pa.schema([("id", pa.string()), ("reason", pa.string()), ("body", pa.binary())])


class MetricsSink:
    """What foreachBatch calls: a batch's output rows (`output.DDL`) onto disk and topics.

    Args:
        places: where the files go.
        topics: where results are published; None: nowhere.
    """

    def __init__(self, places: Places, topics: ResultTopics | None = None) -> None:
        self._places = places
        self._topics = topics

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Take in one micro-batch, or the same one once more."""
        rows = rows.persist()
        try:
            counts = _counts(rows)
            self._write_minutes(rows, batch_id, counts[MINUTE])
            self._write_late(rows, batch_id, counts[LATE])
            self._write_rejected(rows, batch_id, counts[REJECTED])
        finally:
            rows.unpersist()

    def close(self, spark: SparkSession, next_batch: int) -> None:
        """Write the last row of every open minute, as the batch that would come next.

        Args:
            spark: the session; the query has stopped.
            next_batch: its number.
        """
        with readable_as_state(self._places.checkpoint_of(QUERY)) as checkpoint:
            self(processor.closing_rows(spark, checkpoint), next_batch)

    def _write_minutes(self, rows: DataFrame, batch_id: int, count: int) -> None:
        place = self._places.metrics
        if not count:
            batch_folders.discard(HadoopFiles(rows.sparkSession), place, batch_id)
            return
        # One task, one file: a row a minute and bucket is little, however many the clicks.
        minutes = rows.where(F.col("kind") == MINUTE).coalesce(1)
        batch_folders.write(minutes.mapInArrow(_whole_minutes, MINUTE_DDL), place, batch_id)
        if self._topics is not None:
            written = _written(rows.sparkSession, place, batch_id, MINUTE_DDL)
            self._topics.publish(self._topics.minutes, as_bodies(written, as_json))

    def _write_late(self, rows: DataFrame, batch_id: int, count: int) -> None:
        if not count:
            files = HadoopFiles(rows.sparkSession)
            batch_folders.discard(files, self._places.late, batch_id)
            return
        late = rows.where(F.col("kind") == LATE).groupBy("minute").agg(F.sum("clicks"))
        batch_folders.write(late.toDF("minute", "clicks").coalesce(1), self._places.late, batch_id)

    def _write_rejected(self, rows: DataFrame, batch_id: int, count: int) -> None:
        place = self._places.rejected
        if not count:
            batch_folders.discard(HadoopFiles(rows.sparkSession), place, batch_id)
            return
        kept = rows.where(F.col("kind") == REJECTED).select(output.REJECTED_SCHEMA.names)
        batch_folders.write(kept, place, batch_id)
        if self._topics is not None:
            self._topics.publish(
                self._topics.rejected, kept.select(_rejected_as_json().alias("body"))
            )


def counts_to_observe() -> dict[str, Column]:
    """What to count of the output rows for `listener.observed`."""
    kind = F.col("kind")
    return {
        "late": F.when(kind == LATE, F.col("clicks")),
        "closed_early": F.when(kind == CLOSED_EARLY, 1),
        "rejected": F.when(kind == REJECTED, 1),
    }


def _counts(rows: DataFrame) -> dict[str, int]:
    """How many rows of each kind there are."""
    kinds = (MINUTE, LATE, REJECTED)
    found = rows.agg(*(F.count_if(F.col("kind") == kind).alias(kind) for kind in kinds)).first()
    assert found is not None
    return {kind: int(found[kind]) for kind in kinds}


def _whole_minutes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The minutes of a batch, of the rows of all its buckets."""
    held = list(batches)
    if held:
        yield from output.read(pa.Table.from_batches(held).cast(output.SCHEMA)).to_batches()


def _written(spark: SparkSession, place: str, batch_id: int, ddl: str) -> DataFrame:
    return spark.read.schema(ddl).parquet(batch_folders.folder_of(place, batch_id))


def read(folders: Folders) -> pa.Table:
    """All revisions of all minutes on a local disk, columns of MINUTE_SCHEMA."""
    return batch_folders.local_rows(folders.metrics, MINUTE_SCHEMA)


def read_late(folders: Folders) -> pa.Table:
    """The clicks of minutes that had closed, on a local disk, columns of LATE_SCHEMA."""
    return batch_folders.local_rows(folders.late, LATE_SCHEMA)


def read_rejected(folders: Folders) -> pa.Table:
    """The messages on a local disk that could not be read, columns of REJECTED_SCHEMA."""
    return batch_folders.local_rows(folders.rejected, REJECTED_SCHEMA)


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


def as_json(row: dict[str, Any]) -> bytes:
    """A row of MINUTE_SCHEMA for the topic: what a minute looks like now."""
    row = {
        **{name: value for name, value in row.items() if not name.startswith("status_")},
        "minute": row["minute"].strftime("%Y-%m-%dT%H:%M:%SZ"),
        "status": {name: row[f"status_{name}"] for name in STATUS_CLASSES},
    }
    return json.dumps(row).encode()
