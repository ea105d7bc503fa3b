"""The query `spam_analysis`: which visitors are robots or fraudulent, with the evidence.

Spark's state (`open_visits`) holds the open visits and the findings, and applies the rules of
`visits`; the query keeps nothing elsewhere.

    data/spam_analysis/batch=12    rows of FINDING_SCHEMA: the newest revision counts
    data/evicted/batch=12          dropped for lack of room: visits, clicks, findings
    topic clicks.spam              the findings as JSON, at least once

A batch writes to folders with its number, so a repeated batch replaces its output.
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
    """Writes a batch's output rows (`open_visits.findings`) to disk and topic."""

    query = QUERY

    def writers(self) -> dict[str, tuple[str, Writer]]:
        """Writers of findings, and of the counts of dropped items."""
        return {
            FINDING: (self._places.spam_analysis, self._write_findings),
            EVICTED: (self._places.evicted, self._write_evicted),
        }

    def closing(self, spark: SparkSession, checkpoint: str) -> DataFrame:
        """Findings from the open visits, and findings that have not been reported yet."""
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
    """Expressions that count output rows, for `listener.observed`."""
    counts = {name: F.col(name) for name in EVICTED_SCHEMA.names}
    return {"findings": F.when(F.col("kind") == FINDING, 1), **counts}


def read(folders: Folders) -> pa.Table:
    """All revisions of all findings on a local disk, columns of FINDING_SCHEMA."""
    return results.local_rows(folders.spam_analysis, FINDING_SCHEMA)


def read_evicted(folders: Folders) -> dict[str, int]:
    """Number of dropped visits, clicks and findings, on a local disk."""
    rows = results.local_rows(folders.evicted, EVICTED_SCHEMA)
    return {name: sum(rows[name].to_pylist()) for name in rows.column_names}


def as_json(row: dict[str, Any]) -> bytes:
    """Encode a row of FINDING_SCHEMA for the topic."""
    times = {name: row[name].strftime("%Y-%m-%dT%H:%M:%SZ") for name in ("first_time", "last_time")}
    return json.dumps({**row, **times, "evidence": json.loads(row["evidence"])}).encode()
