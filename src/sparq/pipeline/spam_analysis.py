"""The query `spam_analysis`: sessions of visitors, and which of them robots or frauds have made.

Sessions that are not over are in Spark's state; the end of a run writes them, too (`close`), in
files of their own, whose names begin with OPEN and what was read, the topic or files. The next
start with the same removes these, because the sessions go on. So the table has each click once, at
any time. `close` needs a state that is not behind the tables: a batch that has committed its rows,
but not its state, must be finished first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import Transaction
from pyspark.sql import functions as F

from sparq.pipeline.maintenance import OPEN
from sparq.pipeline.sessions import judge, state
from sparq.pipeline.sink import Output, Sink
from sparq.pipeline.storage import place_of, readable_as_state
from sparq.pipeline.tables import WRITTEN_DDL, Table, Tables, files_of, transact

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

    from sparq.pipeline.sessions.rules import Rules

QUERY = "spam_analysis"
SESSIONS = Table("sessions", judge.SESSIONS, "first_time")
FINDINGS = Table("findings", judge.FINDINGS, "first_time")
CLOSING = "sparq end of run"  # name of the application of all commits of open sessions


def split(batches: Iterable[pa.RecordBatch]) -> Iterator[Mapping[str, pa.Table]]:
    """Rows of `state.OUTPUT_DDL` as rows of the two tables."""
    for batch in batches:
        for table in (SESSIONS, FINDINGS):
            for blob in batch.column(table.name):
                if blob.as_py():
                    yield {table.name: pa.ipc.open_stream(blob.as_buffer()).read_all()}


def close(sink: Sink, rules: Rules, source: str, spark: SparkSession, checkpoint: str) -> None:
    """Write the open sessions, and findings about them, instead of those of an earlier end."""
    with readable_as_state(place_of(spark, checkpoint)) as readable:
        rows = state.closed(spark, readable, rules)
        writer = sink.tables.writer(split, f"{OPEN}{source}-")
        added = sink.tables.added(rows.mapInArrow(writer, WRITTEN_DDL))
    _replace_open(sink.tables, source, added)
    if FINDINGS.name in added:
        sink.publish(spark, [one["path"] for one in added[FINDINGS.name]])


def reopen(sink: Sink, source: str) -> None:
    """Remove what the last end of a run with this source wrote about sessions that go on now."""
    _replace_open(sink.tables, source, {})


def _replace_open(tables: Tables, source: str, added: Mapping[str, list[dict[str, Any]]]) -> None:
    """Replace the rows about open sessions by other files."""
    for name, (_, _, table) in tables.opened.items():
        table.update_incremental()
        own = [one for one in files_of(table) if one.name.startswith(f"{OPEN}{source}-")]
        if own or name in added:
            transact(table, Transaction(CLOSING, table.version()), added.get(name, ()), own)


def counts_to_observe() -> list[Column]:
    """Sums of output rows by the names of `monitor.COUNTS`: the plan runs once a batch."""
    same = [F.sum(name).alias(name) for name in ("late", "evicted_visits", "evicted_clicks")]
    return [F.sum("found").alias("findings"), *same]


def as_json(row: dict[str, Any], _: int) -> bytes:
    """Encode a row of `findings` for the topic."""
    for name in ("first_time", "last_time"):
        row[name] = row[name] and row[name].strftime("%Y-%m-%dT%H:%M:%SZ")
    # JavaScript has no whole numbers of 64 bits.
    row["visitor"] = str(row["visitor"])
    row["evidence"] = json.loads(row["evidence"] or "{}")
    return json.dumps(row).encode()


# Always: Spark writes the state of a batch only if its plan is executed.
OUTPUT = Output([FINDINGS, SESSIONS], split, FINDINGS.name, "spam", as_json, always=True)
