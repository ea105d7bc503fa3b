"""Tables of real clicks, written by the functions of the real sinks without Spark."""

import pyarrow as pa
from deltalake import Transaction

from sparq.pipeline import archive, metrics, spam_analysis
from sparq.pipeline.reading.formats import GROUPS
from sparq.pipeline.reading.schema import Reading
from sparq.pipeline.storage import TablePlace
from sparq.pipeline.tables import opened, transact, write_files
from tests.pipeline.query_input import message_table
from tests.pipeline.sessions.visitors import Bucket

ALL = Reading(enrich=tuple(GROUPS), site_hosts=("example.com", "semicomplete.com"))


def written(folder, lines, reading=ALL):
    """Write the tables of some lines, as a run that has ended; returns the data folder."""
    data, batches, bucket = TablePlace(str(folder)), message_table(lines).to_batches(), Bucket()
    bucket.lines(list(lines))
    bucket.close()
    add(data, [archive.clicks_table(reading), archive.REJECTED], archive.split(batches, reading))
    add(data, [metrics.MINUTES, metrics.PAGES], metrics.split(batches, reading=reading))
    sessions, findings = spam_analysis.SESSIONS, spam_analysis.FINDINGS
    rows = {
        "sessions": pa.Table.from_pylist(bucket.sessions, sessions.schema),
        "findings": pa.Table.from_pylist(bucket.findings, findings.schema),
    }
    add(data, [sessions, findings], [rows])
    return data


def add(data, tables, parts, name="batch"):
    """Commit rows by the name of their table, each table once, as a batch does."""
    targets = {table.name: (table, data.of(table.name)) for table in tables}
    delta = {table.name: opened(place, table) for table, place in targets.values()}
    added = [row for batch in write_files(parts, targets, f"{name}-") for row in batch.to_pylist()]
    for table_name, table in delta.items():
        rows = [row for row in added if row["table"] == table_name]
        transact(table, Transaction(name, 0), rows)
