"""What a query reads: messages of its channel, or lines of files, as rows that a function makes.

The function runs in the task that reads the messages, before Spark sees them (`NsqDataSource.
mapped`). Spark's count of input rows is then that of the rows made, so each task ends with a row
that says how many messages it has read, and when the newest one was published. These rows become
figures of the batch, for `monitor`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from sparq.pipeline.files import file_messages
from sparq.pipeline.monitor.metrics import MESSAGES, NEWEST_PUBLISHED
from sparq.spark.data_source import Function, NsqDataSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("nsqd", "id", "index", "timestamp", "body")
"""The columns of messages that functions get."""

_READ = [pa.field("messages", pa.int64()), pa.field("published", pa.timestamp("us", "UTC"))]


def channel(
    spark: SparkSession, options: Mapping[str, str], function: Function, schema: str
) -> DataFrame:
    """The stream of a channel, from the first message that it has not finished.

    Args:
        spark: the session.
        options: of the source `nsq`.
        function: gets COLUMNS, and yields the rows.
        schema: of the rows, as DDL.
    """
    counted, columns = _counting(function, schema)
    # A format for each query. Queries that share one share a Java map of environment variables.
    # Spark changes this map while it plans a query. Sometimes a task of another query was being
    # serialized at that moment, and then no executor could read the task.
    name = f"nsq_{options['queryName']}"
    spark.dataSource.register(NsqDataSource.mapped(name, COLUMNS, counted, columns))
    options = {"startingOffsets": "earliest", **options}
    return _observed(spark.readStream.format(name).schema(columns).options(**options).load())


def files(spark: SparkSession, place: str, function: Function, schema: str) -> DataFrame:
    """The stream of the lines of files; the rest as in `channel`."""
    counted, columns = _counting(function, schema)
    return _observed(file_messages(spark, place).mapInArrow(counted, columns))


def with_batch_time(rows: DataFrame) -> DataFrame:
    """Add `batch_ms` BIGINT: the time of the rows' batch, in ms since 1970.

    Spark keeps this time in its offset log, so a repeated batch has the same.
    """
    return rows.withColumn("batch_ms", F.unix_millis(F.current_timestamp()))


def _counting(function: Function, schema: str) -> tuple[Function, StructType]:
    """The function, with rows of what each task has read after its own; and their columns."""
    own = to_arrow_schema(StructType.fromDDL(schema), timezone="UTC")
    columns = pa.schema([*own, *_READ])

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        messages, newest = 0, None

        def seen() -> Iterator[pa.RecordBatch]:
            nonlocal messages, newest
            for batch in batches:
                messages += len(batch)
                latest = pc.max(batch["timestamp"])
                newest = latest if newest is None else max(newest, latest, key=lambda at: at.value)
                yield batch

        for rows in function(seen()):
            nothing = [pa.nulls(len(rows), one.type) for one in _READ]
            yield pa.record_batch([*rows.columns, *nothing], schema=columns)
        read = {"messages": messages, "published": newest and newest.as_py()}
        yield pa.RecordBatch.from_pylist([read], schema=columns)

    return counted, from_arrow_schema(columns)


def _observed(rows: DataFrame) -> DataFrame:
    """The function's own rows; the others become figures of the batch."""
    figures = [
        F.sum("messages").alias(MESSAGES),
        (F.max(F.unix_micros("published")) / 1e6).alias(NEWEST_PUBLISHED),
    ]
    observed = rows.observe("sparq_read", *figures)
    return observed.where("messages IS NULL").drop(*(one.name for one in _READ))
