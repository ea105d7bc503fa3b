"""The query `metrics` in Spark: messages in, output rows out, its state in Spark's state store.

    packed(messages, buckets)       read and pack: a row for each bucket
    minute_rows(packed_rows)        the stateful stage, with its rows unpacked
    closing_rows(spark, checkpoint) the last rows of all open minutes, from a stopped query's state

The stateful stage has packed rows as input and output: `transformWithStateInPandas` processes its
rows one by one, and pandas has no integer columns with nulls (an index of 54 bits came back as a
float). So the output of each bucket is one Arrow blob, and `unpack` makes rows of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from sparq.pipeline.messages import packed_messages
from sparq.pipeline.minutes_state import output
from sparq.pipeline.minutes_state.bucket import LIMITS, MinutesLimits, Writes, apply, close
from sparq.pipeline.minutes_state.packer import PARSED_COLUMNS, blobs_of, prepared
from sparq.pipeline.packing import from_blob, receive, to_blob

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.stateful_processor import (
        MapState,
        StatefulProcessorHandle,
        TimerValues,
        ValueState,
    )

RECENT, COLD = "recent", "cold"
RECENT_DDL = "meta STRING, data BINARY"
COLD_KEY_DDL, COLD_DDL = "minute BIGINT", "data BINARY"
STAGE_DDL = "rows BINARY"


class SparkState:
    """One bucket's state in Spark; the bucket is the key that Spark has set."""

    def __init__(self, recent: ValueState, cold: MapState) -> None:
        self._recent = recent
        self._cold = cold

    def recent(self) -> tuple[str, bytes] | None:
        """Meta and blob; None for a new bucket."""
        held = self._recent.get()
        return None if held is None else (held[0], bytes(held[1]))

    def cold(self, minute: int) -> bytes:
        """The blob of a minute in `cold`."""
        return bytes(self._cold.getValue((minute,))[0])

    def write(self, writes: Writes) -> None:
        """Write the changes of a batch."""
        for minute, blob in writes.cold.items():
            self._cold.updateValue((minute,), (blob,))
        for minute in writes.gone:
            self._cold.removeKey((minute,))
        self._recent.update(writes.recent)


class MinutesProcessor(StatefulProcessor):  # type: ignore[misc] # mypy does not follow pyspark
    """Adds a batch's packed rows to the minutes; returns a blob of output rows per bucket."""

    def __init__(self, limits: MinutesLimits = LIMITS) -> None:
        self._limits = limits

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Get the state variables; Spark calls this once per task."""
        self._state = SparkState(
            handle.getValueState(RECENT, RECENT_DDL),
            handle.getMapState(COLD, COLD_KEY_DDL, COLD_DDL),
        )

    def handleInputRows(
        self, key: tuple[int], rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        """Process all rows of one bucket of a batch."""
        writes, table = apply(int(key[0]), self._state, receive(rows), self._limits)
        self._state.write(writes)
        if len(table):
            yield pd.DataFrame({"rows": [to_blob([table])]})

    def close(self) -> None:
        """Do nothing: only Spark's own handles are open."""


def packed(messages: DataFrame, buckets: int) -> DataFrame:
    """A stream of messages as packed rows."""
    return packed_messages(messages, PARSED_COLUMNS, prepared, blobs_of, buckets)


def minute_rows(packed_rows: DataFrame, limits: MinutesLimits = LIMITS) -> DataFrame:
    """The output rows (`output.DDL`) of a stream of packed rows.

    Args:
        packed_rows: streaming; rows of `packing.PACKED_DDL`.
        limits: the limits of a bucket.
    """
    stage = packed_rows.groupBy("bucket").transformWithStateInPandas(
        MinutesProcessor(limits), STAGE_DDL, outputMode="Append", timeMode="None"
    )
    return stage.mapInArrow(unpack, output.DDL)


def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Unpack the output rows of the stage's blobs, for `mapInArrow(unpack, output.DDL)`."""
    for batch in batches:
        for blob in batch.column("rows"):
            yield from from_blob(blob.as_py(), [output.SCHEMA])[0].to_batches()


def closing_rows(spark: SparkSession, checkpoint: str) -> DataFrame:
    """The last rows (`output.DDL`) of all minutes that are open in a stopped query's state.

    Args:
        spark: any session.
        checkpoint: URI of the query's checkpoint.
    """
    state = spark.read.format("statestore")
    recent = state.option("stateVarName", RECENT).load(checkpoint)
    cold = state.option("stateVarName", COLD).load(checkpoint)
    blobs = recent.select("key.bucket", "value.data").unionAll(
        cold.select("key.bucket", F.col("user_map_value.data"))
    )
    return blobs.mapInArrow(_closed, output.DDL)


def _closed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for bucket, blob in zip(*(batch.column(at).to_pylist() for at in (0, 1)), strict=True):
            yield from close(bucket, [blob]).to_batches()
