"""Reads the pipeline's tables from a local disk, for tests."""

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from sparq.pipeline.metrics import MINUTES
from sparq.pipeline.tables import WRITTEN_DDL


def stored(data, name):
    """A table of a data folder; of `minutes` a row for each minute."""
    rows = DeltaTable(f"{data}/{name}").to_pyarrow_table()
    return summed_up(rows) if name == "minutes" else rows


def summed_up(rows):
    """Rows of `minutes` as one row per minute, ascending; `visitors` is their number."""
    found = MINUTES.summed(rows)
    visitors = pc.list_value_length(found["visitor_hashes"]).cast(pa.int64())
    return found.drop(["visitor_hashes"]).add_column(2, "visitors", visitors)


def files_by(tables, split):
    """The plan of a query: rows -> the files that executors write of them."""
    return lambda rows: rows.mapInArrow(tables.writer(split), WRITTEN_DDL)


def put(tables, rows, batch_id, split, **how):
    """Write rows as a batch of the query that this thread looks like (fixture `query`)."""
    rows.sparkSession.sparkContext.setLocalProperty("streaming.sql.batchId", str(batch_id))
    return tables.write(files_by(tables, split)(rows), batch_id, **how)


def process(sink, rows, batch_id, split):
    """Give rows as a batch to the sink of the query that this thread looks like."""
    rows.sparkSession.sparkContext.setLocalProperty("streaming.sql.batchId", str(batch_id))
    sink(files_by(sink.tables, split)(rows), batch_id)
