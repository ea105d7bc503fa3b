"""The query `spam_analysis`: sessions of visitors, and which of them robots or frauds have made.

    data/sessions        a row for each session (`sessions.output.SESSIONS`)
    data/findings        a row for each revision of a finding (`sessions.output.FINDINGS`)
    topic clicks.spam    the rows of findings as JSON, at least once

1. Each click is in one session. Sessions that are not over are in Spark's state; the end of a run
   writes them, too, so that all clicks are in the table (`SpamSink.close`).
2. What `close` writes is in files of its own, whose names begin with OPEN. The next start removes
   them from the tables (`_reopened`), because those sessions go on and will be written again. So
   the table has each click once, at any time, and no view is needed.
3. `close` needs a state that is not behind the tables: after a batch that has committed its rows,
   but not its state, it would write sessions again that this batch has written. `app` lets the
   query finish such a batch first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import Transaction
from pyspark.sql import functions as F

from sparq.pipeline.checkpoints import readable_as_state
from sparq.pipeline.clicks import USUAL
from sparq.pipeline.maintenance import OPEN, Maintenance, remove_action
from sparq.pipeline.publish import BODY_DDL, with_batch_time
from sparq.pipeline.sessions import output, state
from sparq.pipeline.sessions.pack import PACKED_DDL, packer
from sparq.pipeline.storage import TablePlace
from sparq.pipeline.tables import (
    ADDED_DDL,
    Table,
    Tables,
    add_action,
    arrow,
    files_of,
    transact,
    write_files,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from sparq.pipeline.publish import ResultTopics
    from sparq.pipeline.reading.schema import Reading
    from sparq.pipeline.run.folders import Folders
    from sparq.pipeline.sessions.rules import Rules

QUERY = "spam_analysis"
SESSIONS = Table("sessions", output.SESSIONS, "first_time")
FINDINGS = Table("findings", output.FINDINGS, "first_time")
CLOSING = "sparq end of run"
"""Name of the application of all commits of open sessions in the Delta log."""

COUNTS = ("found", "late", "evicted_visits", "evicted_clicks")


def packed(messages: DataFrame, rules: Rules, buckets: int, reading: Reading = USUAL) -> DataFrame:
    """A stream of messages as packed rows: one pass over their text, on the executors."""
    return with_batch_time(messages).mapInArrow(packer(rules, buckets, reading), PACKED_DDL)


def split(batches: Iterable[pa.RecordBatch]) -> Iterator[Mapping[str, pa.Table]]:
    """Output rows of the stateful stage (`output.OUTPUT_DDL`) as rows of the two tables."""
    for batch in batches:
        for table in (SESSIONS, FINDINGS):
            for blob in batch.column(table.name):
                if blob.as_py():
                    rows = pa.ipc.open_stream(blob.as_buffer()).read_all()
                    yield {table.name: rows.cast(table.schema)}


class SpamSink:
    """A function for foreachBatch: writes a batch's sessions and findings.

    Args:
        spark: the session.
        data: the data folder.
        topics: the topics for results; None: findings are not published.
        rules: the rules.
        keep_days: days of rows to keep; 0: all.
    """

    def __init__(
        self,
        spark: SparkSession,
        data: str,
        topics: ResultTopics | None,
        rules: Rules,
        keep_days: int = 0,
    ) -> None:
        self._tables = Tables(spark, data, [FINDINGS, SESSIONS])
        self._maintenance = Maintenance(self._tables, keep_days)
        self._rules = rules
        self._topics = topics
        self._reopened()

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Process one micro-batch, also if it is repeated."""
        spark = rows.sparkSession
        # Always: Spark writes the state of a batch only if its plan is executed.
        written = self._tables.write(rows, batch_id, split, always=True)
        if FINDINGS.name in written:
            self._publish(spark, written[FINDINGS.name].files)
        self._maintenance.between_batches(spark)

    def close(self, spark: SparkSession, checkpoint: str) -> None:
        """Write the open sessions, and findings about them, instead of those of an earlier end.

        Args:
            spark: the session.
            checkpoint: that of the query, which has stopped after a whole batch.
        """
        definitions, places = self._tables.definitions, self._tables.places

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from write_files(split(batches), definitions, places, OPEN)

        with readable_as_state(checkpoint) as readable:
            rows = state.closed(spark, readable, self._rules)
            added = rows.mapInArrow(run, ADDED_DDL).collect()
        for name in self._tables.opened:
            self._replace_open(name, [add_action(row) for row in added if row.table == name])
        found = [row.path for row in added if row.table == FINDINGS.name]
        if found:
            self._publish(spark, found)

    def _reopened(self) -> None:
        """Remove what the last end of a run wrote about sessions that go on now."""
        for name in self._tables.opened:
            self._replace_open(name, [])

    def _replace_open(self, name: str, added: list[Any]) -> None:
        table = self._tables.opened[name]
        table.update_incremental()
        old = [one for one in files_of(table) if one.name.startswith(OPEN)]
        removed = [remove_action(one, data_change=True) for one in old]
        if added or removed:
            transact(table, [*removed, *added], Transaction(CLOSING, table.version()))

    def _publish(self, spark: SparkSession, files: list[str]) -> None:
        if self._topics is not None:
            rows = self._tables.frame(spark, FINDINGS.name, files)
            self._topics.publish(self._topics.findings, rows.mapInArrow(as_bodies, BODY_DDL))


def counts_to_observe() -> dict[str, Column]:
    """Expressions that count output rows, for `listener.observed`."""
    names = {"findings": "found", **{name: name for name in COUNTS if name != "found"}}
    return {name: F.col(column) for name, column in names.items()}


def as_bodies(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of `findings` as JSON. Only for few rows, since Python makes them one by one."""
    for batch in batches:
        bodies = pa.array(map(as_json, batch.to_pylist()), pa.binary())
        yield pa.record_batch([bodies], names=["body"])


def as_json(row: dict[str, Any]) -> bytes:
    """Encode a row of `findings` for the topic."""
    row = {name: value for name, value in row.items() if name != "date"}
    for name in ("first_time", "last_time"):
        row[name] = row[name] and row[name].strftime("%Y-%m-%dT%H:%M:%SZ")
    # JavaScript has no whole numbers of 64 bits.
    row["visitor"] = str(row["visitor"])
    row["evidence"] = json.loads(row["evidence"] or "{}")
    return json.dumps(row).encode()


def read_sessions(folders: Folders) -> pa.Table:
    """The sessions on a local disk, with the columns that audit and report need."""
    columns = ("session", "clicks", "late", "ended")
    return arrow(TablePlace(str(folders.sessions.absolute())), SESSIONS, columns)


def read_findings(folders: Folders) -> pa.Table:
    """All revisions of all findings on a local disk."""
    return arrow(TablePlace(str(folders.findings.absolute())), FINDINGS, FINDINGS.schema.names)
