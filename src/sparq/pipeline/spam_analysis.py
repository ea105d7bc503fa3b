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

from sparq.pipeline import batch_folders
from sparq.pipeline.checkpoints import readable_as_state
from sparq.pipeline.hadoop_files import HadoopFiles
from sparq.pipeline.open_visits import processor
from sparq.pipeline.open_visits.output import (
    EVICTED,
    EVICTED_SCHEMA,
    FINDING,
    FINDING_DDL,
    FINDING_SCHEMA,
)
from sparq.pipeline.result_topics import ResultTopics, as_bodies

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from sparq.pipeline.folders import Folders
    from sparq.pipeline.places import Places

QUERY = "spam_analysis"


class SpamSink:
    """What foreachBatch calls: a batch's output rows (`open_visits.output`) onto disk and topic.

    Args:
        places: where the files go.
        topics: where findings are published; None: nowhere.
    """

    def __init__(self, places: Places, topics: ResultTopics | None = None) -> None:
        self._places = places
        self._topics = topics

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Take in one micro-batch, or the same one once more."""
        rows = rows.persist()
        try:
            counts = [F.count_if(F.col("kind") == kind) for kind in (FINDING, EVICTED)]
            found = rows.agg(*counts).first()
            assert found is not None
            self._write_findings(rows, batch_id, found[0])
            self._write_evicted(rows, batch_id, found[1])
        finally:
            rows.unpersist()

    def close(self, spark: SparkSession, next_batch: int) -> None:
        """Judge the open visits, and write what is not yet written, as the next batch.

        Args:
            spark: the session; the query has stopped.
            next_batch: its number.
        """
        with readable_as_state(self._places.checkpoint_of(QUERY)) as checkpoint:
            self(processor.closed(spark, checkpoint), next_batch)

    def _write_findings(self, rows: DataFrame, batch_id: int, count: int) -> None:
        place = self._places.spam_analysis
        if not count:
            batch_folders.discard(HadoopFiles(rows.sparkSession), place, batch_id)
            return
        findings = rows.where(F.col("kind") == FINDING).select(FINDING_SCHEMA.names)
        batch_folders.write(findings.coalesce(1), place, batch_id)
        if self._topics is not None:
            folder = batch_folders.folder_of(place, batch_id)
            written = rows.sparkSession.read.schema(FINDING_DDL).parquet(folder)
            self._topics.publish(self._topics.findings, as_bodies(written, as_json))

    def _write_evicted(self, rows: DataFrame, batch_id: int, count: int) -> None:
        place = self._places.evicted
        if not count:
            batch_folders.discard(HadoopFiles(rows.sparkSession), place, batch_id)
            return
        names = EVICTED_SCHEMA.names
        evicted = rows.where(F.col("kind") == EVICTED).agg(*(F.sum(name) for name in names))
        batch_folders.write(evicted.toDF(*names).coalesce(1), place, batch_id)


def counts_to_observe() -> dict[str, Column]:
    """What to count of the output rows for `listener.observed`."""
    counts = {name: F.col(name) for name in EVICTED_SCHEMA.names}
    return {"findings": F.when(F.col("kind") == FINDING, 1), **counts}


def read(folders: Folders) -> pa.Table:
    """All revisions of all findings on a local disk, columns of FINDING_SCHEMA."""
    return batch_folders.local_rows(folders.spam_analysis, FINDING_SCHEMA)


def read_evicted(folders: Folders) -> dict[str, int]:
    """How many visits, clicks and findings were dropped, on a local disk."""
    rows = batch_folders.local_rows(folders.evicted, EVICTED_SCHEMA)
    return {name: sum(rows[name].to_pylist()) for name in rows.column_names}


def as_json(row: dict[str, Any]) -> bytes:
    """A row of FINDING_SCHEMA for the topic."""
    times = {name: row[name].strftime("%Y-%m-%dT%H:%M:%SZ") for name in ("first_time", "last_time")}
    return json.dumps({**row, **times, "evidence": json.loads(row["evidence"])}).encode()
