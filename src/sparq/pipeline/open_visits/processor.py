"""The query `spam_analysis` in Spark: packed rows in, the state of each bucket in Spark's store.

    messages --pack--> a row a bucket --groupBy("bucket")--> SpamProcessor --> rows of output

The state variables are those of `parts`: two lists and two values of one binary column `data`. No
timers: visits that are over are found in the batch that moves the low mark, a batch earlier than
a timer would fire.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from sparq.pipeline import packing
from sparq.pipeline.messages import packed_messages
from sparq.pipeline.open_visits.bucket import apply, close
from sparq.pipeline.open_visits.findings import OUTPUT_DDL
from sparq.pipeline.open_visits.pack import PARSED_COLUMNS, blobs_of, prepared
from sparq.pipeline.open_visits.tiers import DEFAULT_LIMITS, Limits, State, held_state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PART_DDL = "data BINARY"
LISTS, VALUES = ("hot", "names"), ("base", "findings")


class ListPart:
    """A Spark ListState as a part of a state."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def get(self) -> list[bytes]:
        """All values."""
        return [bytes(row[0]) for row in self._state.get()]

    def append(self, value: bytes) -> None:
        """Add a value."""
        self._state.appendValue((value,))

    def put(self, value: bytes) -> None:
        """Have this one value."""
        self._state.put([(value,)])

    def clear(self) -> None:
        """Have no value."""
        self._state.clear()


class ValuePart(ListPart):
    """A Spark ValueState as a part of a state, to which nothing is appended."""

    def get(self) -> list[bytes]:
        """Its value, if it has one."""
        row = self._state.get()
        return [] if row is None else [bytes(row[0])]

    def put(self, value: bytes) -> None:
        """Have this value."""
        self._state.update((value,))


class SpamProcessor(StatefulProcessor):  # type: ignore[misc] # - pyspark has no types here
    """What `transformWithStateInPandas` calls with the packed rows of each bucket."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits

    def init(self, handle: Any) -> None:
        """Name the state variables."""
        lists = (ListPart(handle.getListState(name, PART_DDL)) for name in LISTS)
        values = (ValuePart(handle.getValueState(name, PART_DDL)) for name in VALUES)
        self._state = State(*lists, *values)

    def handleInputRows(
        self, key: tuple[Any, ...], rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """One batch of one bucket: rows of PACKED_SCHEMA in, of OUTPUT_SCHEMA out."""
        yield as_pandas(apply(self._state, int(key[0]), packing.receive(rows), self._limits))

    def close(self) -> None:
        """Nothing is held beyond a batch."""


def as_pandas(rows: pa.Table) -> pd.DataFrame:
    """Rows of output as Spark takes them: missing numbers stay missing, and whole."""
    return rows.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)


def packed(messages: DataFrame, buckets: int) -> DataFrame:
    """A stream of messages as packed rows."""
    return packed_messages(messages, PARSED_COLUMNS, prepared, blobs_of, buckets)


def found(packed_rows: DataFrame, limits: Limits = DEFAULT_LIMITS) -> DataFrame:
    """The rows of output of a stream of packed rows.

    Args:
        packed_rows: streaming; rows of `packing.PACKED_DDL`.
        limits: what a bucket may hold.
    """
    return packed_rows.groupBy("bucket").transformWithStateInPandas(
        SpamProcessor(limits), OUTPUT_DDL, "Append", "None"
    )


def closed(spark: SparkSession, checkpoint: str) -> DataFrame:
    """The rows of output of the end of a run: all open visits are judged, all is told.

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
