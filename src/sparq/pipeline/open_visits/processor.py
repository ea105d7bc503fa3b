"""The query `spam_analysis` in Spark: packed rows in, the state of each bucket in Spark's store.

    messages --pack--> a row per bucket --groupBy("bucket")--> SpamProcessor --> rows of output

The state variables are the parts in `tiers.VisitsState`: two lists and two values with one binary
column `data`. There are no timers: visits that are over are found in the batch that moves the low
mark, one batch before a timer would fire.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from sparq.pipeline import packing
from sparq.pipeline.clicks import USUAL
from sparq.pipeline.messages import packed_messages
from sparq.pipeline.open_visits.bucket import apply, close
from sparq.pipeline.open_visits.findings import OUTPUT_DDL
from sparq.pipeline.open_visits.pack import PARSED_COLUMNS, blobs_of, prepared
from sparq.pipeline.open_visits.tiers import DEFAULT_LIMITS, VisitsLimits, VisitsState, held_state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparq.pipeline.reading.schema import Reading

PART_DDL = "data BINARY"
LISTS, VALUES = ("hot", "names"), ("base", "findings")


class ListPart:
    """A Spark ListState as one part of the state."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def get(self) -> list[bytes]:
        """Return all values."""
        return [bytes(row[0]) for row in self._state.get()]

    def append(self, value: bytes) -> None:
        """Add a value."""
        self._state.appendValue((value,))

    def put(self, value: bytes) -> None:
        """Replace all values by this one."""
        self._state.put([(value,)])

    def clear(self) -> None:
        """Remove all values."""
        self._state.clear()


class ValuePart(ListPart):
    """A Spark ValueState as one part of the state; `append` is not used for it."""

    def get(self) -> list[bytes]:
        """Return its value in a list, which is empty if it has none."""
        row = self._state.get()
        return [] if row is None else [bytes(row[0])]

    def put(self, value: bytes) -> None:
        """Replace the value."""
        self._state.update((value,))


class SpamProcessor(StatefulProcessor):  # type: ignore[misc] # - pyspark has no types here
    """Applies the packed rows of each bucket, for `transformWithStateInPandas`."""

    def __init__(self, limits: VisitsLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits

    def init(self, handle: Any) -> None:
        """Get the state variables."""
        lists = (ListPart(handle.getListState(name, PART_DDL)) for name in LISTS)
        values = (ValuePart(handle.getValueState(name, PART_DDL)) for name in VALUES)
        self._state = VisitsState(*lists, *values)

    def handleInputRows(
        self, key: tuple[Any, ...], rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """Process one batch of one bucket: rows of PACKED_SCHEMA in, of OUTPUT_SCHEMA out."""
        yield as_pandas(apply(self._state, int(key[0]), packing.receive(rows), self._limits))

    def close(self) -> None:
        """Do nothing: nothing is held after a batch."""


def as_pandas(rows: pa.Table) -> pd.DataFrame:
    """Output rows in the form that Spark takes: integers, also in columns with nulls."""
    return rows.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)


def packed(messages: DataFrame, buckets: int, reading: Reading = USUAL) -> DataFrame:
    """A stream of messages as packed rows."""
    return packed_messages(messages, PARSED_COLUMNS, prepared, blobs_of, buckets, reading=reading)


def found(packed_rows: DataFrame, limits: VisitsLimits = DEFAULT_LIMITS) -> DataFrame:
    """The output rows of a stream of packed rows.

    Args:
        packed_rows: streaming; rows of `packing.PACKED_DDL`.
        limits: the limits of a bucket.
    """
    return packed_rows.groupBy("bucket").transformWithStateInPandas(
        SpamProcessor(limits), OUTPUT_DDL, "Append", "None"
    )


def closed(spark: SparkSession, checkpoint: str) -> DataFrame:
    """The output rows at the end of a run: judges all open visits, and reports all findings.

    Args:
        spark: any session.
        checkpoint: checkpoint location of the query, which must have stopped.
    """
    parts = [
        spark.read.format("statestore")
        .option("stateVarName", name)
        .load(checkpoint)
        .select("key.bucket", F.lit(name).alias("part"), F.col(f"{column}.data").alias("data"))
        for names, column in ((LISTS, "list_element"), (VALUES, "value"))
        for name in names
    ]
    rows = parts[0].unionAll(parts[1]).unionAll(parts[2]).unionAll(parts[3])
    return rows.groupBy("bucket").applyInPandas(_close_one, OUTPUT_DDL)


def _close_one(rows: pd.DataFrame) -> pd.DataFrame:
    values = {name: rows["data"][rows["part"] == name].map(bytes) for name in LISTS + VALUES}
    return as_pandas(close(held_state(**values)))
