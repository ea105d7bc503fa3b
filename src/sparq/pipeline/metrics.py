"""The query `metrics`: figures per minute of event time.

A click is never lost because it is late: it corrects its minute with a newer revision of the row,
or is counted in `late`.

    data/metrics/batch=12     rows of MINUTE_SCHEMA: the newest revision of a minute counts
    data/late/batch=12        minute, clicks: of minutes that had closed
    topic clicks.metrics      the minutes as JSON, at least once

1. Spark's state holds the open minutes (`minutes_state`); the query keeps nothing elsewhere.
2. A batch writes to folders with its number, so a repeated batch replaces its output.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F

from sparq.pipeline import results
from sparq.pipeline.minutes_state import output, processor
from sparq.pipeline.minutes_state.minutes import STATUS_CLASSES
from sparq.pipeline.minutes_state.output import (
    CLOSED_EARLY,
    LATE,
    MINUTE,
    MINUTE_DDL,
    MINUTE_SCHEMA,
)
from sparq.pipeline.results import Sink, Writer, written_as_bodies

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from sparq.pipeline.folders import Folders

QUERY = "metrics"

LATE_SCHEMA = pa.schema([("minute", pa.timestamp("us", "UTC")), ("clicks", pa.int64())])


class MetricsSink(Sink):
    """Writes a batch's output rows (`output.DDL`) to disk and topics."""

    query = QUERY

    def writers(self) -> dict[str, tuple[str, Writer]]:
        """Writers of minutes and late clicks."""
        return {
            MINUTE: (self._places.metrics, self._write_minutes),
            LATE: (self._places.late, self._write_late),
        }

    def closing(self, spark: SparkSession, checkpoint: str) -> DataFrame:
        """The last row of every open minute."""
        return processor.closing_rows(spark, checkpoint)

    def _write_minutes(self, rows: DataFrame, place: str, batch_id: int) -> None:
        # One task, one file: there is one row per minute and bucket, however many clicks there are.
        minutes = rows.coalesce(1).mapInArrow(_whole_minutes, MINUTE_DDL)
        results.write(minutes, place, batch_id)
        if self._topics is not None:
            folder = results.folder_of(place, batch_id)
            bodies = written_as_bodies(rows.sparkSession, folder, MINUTE_DDL, as_json)
            self._topics.publish(self._topics.minutes, bodies)

    def _write_late(self, rows: DataFrame, place: str, batch_id: int) -> None:
        late = rows.groupBy("minute").agg(F.sum("clicks"))
        results.write(late.toDF("minute", "clicks").coalesce(1), place, batch_id)


def counts_to_observe() -> dict[str, Column]:
    """Expressions that count output rows, for `listener.observed`."""
    kind = F.col("kind")
    return {
        "late": F.when(kind == LATE, F.col("clicks")),
        "closed_early": F.when(kind == CLOSED_EARLY, 1),
    }


def _whole_minutes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The minutes of a batch, combined from the rows of all its buckets."""
    held = list(batches)
    if held:
        yield from output.read(pa.Table.from_batches(held).cast(output.SCHEMA)).to_batches()


def read(folders: Folders) -> pa.Table:
    """All revisions of all minutes on a local disk, columns of MINUTE_SCHEMA."""
    return results.local_rows(folders.metrics, MINUTE_SCHEMA)


def read_late(folders: Folders) -> pa.Table:
    """Late clicks by minute, on a local disk, columns of LATE_SCHEMA."""
    return results.local_rows(folders.late, LATE_SCHEMA)


def as_json(row: dict[str, Any]) -> bytes:
    """Encode a row of MINUTE_SCHEMA for the topic."""
    row = {
        **{name: value for name, value in row.items() if not name.startswith("status_")},
        "minute": row["minute"].strftime("%Y-%m-%dT%H:%M:%SZ"),
        "status": {name: row[f"status_{name}"] for name in STATUS_CLASSES},
    }
    return json.dumps(row).encode()
