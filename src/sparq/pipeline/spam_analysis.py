"""The query `spam_analysis`: who of the visitors is a robot or a fraud, and by what evidence.

The open visits and the findings are Spark's state (`open_visits`), which applies the rules of
`visits`; nothing of the query's is kept elsewhere.

    data/spam_analysis/batch=12    rows of FINDING_SCHEMA: the newest revision counts
    data/evicted/batch=12          what was dropped for lack of room: visits, clicks, findings
    topic clicks.spam              the findings as JSON, at least once

What a batch writes lies in folders of its number, so a repeated batch replaces it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F

from sparq.pipeline import results
from sparq.pipeline.open_visits import processor
from sparq.pipeline.open_visits.findings import (
    EVICTED,
    EVICTED_SCHEMA,
    FINDING,
    FINDING_DDL,
    FINDING_SCHEMA,
)
from sparq.pipeline.results import Sink, Writer, written_as_bodies

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from sparq.pipeline.folders import Folders

QUERY = "spam_analysis"


class SpamSink(Sink):
    """A batch's output rows (`open_visits.findings`) onto disk and topic."""

    query = QUERY

    def writers(self) -> dict[str, tuple[str, Writer]]:
        """Of findings, and of what was dropped."""
        return {
            FINDING: (self._places.spam_analysis, self._write_findings),
            EVICTED: (self._places.evicted, self._write_evicted),
        }

    def closing(self, spark: SparkSession, checkpoint: str) -> DataFrame:
        """What the open visits say, and what is not yet told."""
        return processor.closed(spark, checkpoint)

    def _write_findings(self, rows: DataFrame, place: str, batch_id: int) -> None:
        results.write(rows.select(FINDING_SCHEMA.names).coalesce(1), place, batch_id)
        if self._topics is not None:
            folder = results.folder_of(place, batch_id)
            bodies = written_as_bodies(rows.sparkSession, folder, FINDING_DDL, as_json)
            self._topics.publish(self._topics.findings, bodies)

    def _write_evicted(self, rows: DataFrame, place: str, batch_id: int) -> None:
        names = EVICTED_SCHEMA.names
        evicted = rows.agg(*(F.sum(name) for name in names))
        results.write(evicted.toDF(*names).coalesce(1), place, batch_id)


def counts_to_observe() -> dict[str, Column]:
    """What to count of the output rows for `listener.observed`."""
    counts = {name: F.col(name) for name in EVICTED_SCHEMA.names}
    return {"findings": F.when(F.col("kind") == FINDING, 1), **counts}


def read(folders: Folders) -> pa.Table:
    """All revisions of all findings on a local disk, columns of FINDING_SCHEMA."""
    return results.local_rows(folders.spam_analysis, FINDING_SCHEMA)


def read_evicted(folders: Folders) -> dict[str, int]:
    """How many visits, clicks and findings were dropped, on a local disk."""
    rows = results.local_rows(folders.evicted, EVICTED_SCHEMA)
    return {name: sum(rows[name].to_pylist()) for name in rows.column_names}


def as_json(row: dict[str, Any]) -> bytes:
    """A row of FINDING_SCHEMA for the topic."""
    times = {name: row[name].strftime("%Y-%m-%dT%H:%M:%SZ") for name in ("first_time", "last_time")}
    return json.dumps({**row, **times, "evidence": json.loads(row["evidence"])}).encode()
