"""Reads the pipeline's tables from a local disk, for tests."""

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from sparq.pipeline.metrics import MINUTES


def stored(data, name):
    """A table of a data folder; of `minutes` a row for each minute."""
    rows = DeltaTable(f"{data}/{name}").to_pyarrow_table()
    return summed_up(rows) if name == "minutes" else rows


def summed_up(rows):
    """Rows of `minutes` as one row per minute, ascending; `visitors` is their number."""
    found = MINUTES.summed(rows)
    visitors = pc.list_value_length(found["visitor_hashes"]).cast(pa.int64())
    return found.drop(["visitor_hashes"]).add_column(2, "visitors", visitors)
