"""The stream of messages that each query reads from its channel, with the columns it needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from sparq.pipeline.clicks import parse_arrow
from sparq.pipeline.packing import PACKED_DDL, pack_partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparq.pipeline.reading.schema import Reading

# With this schema, the source makes only these columns.
MESSAGE_DDL = "nsqd STRING, id STRING, index BIGINT, timestamp TIMESTAMP, body BINARY"


def messages(spark: SparkSession, channel: str, options: Mapping[str, str]) -> DataFrame:
    """A channel's messages as a stream, from the first one that the channel has not finished.

    Args:
        spark: the session.
        channel: the query's channel.
        options: further options of the source `nsq`: topic, addresses, limits.
    """
    return (
        spark.readStream.format("nsq")
        .schema(MESSAGE_DDL)
        .options(**{"startingOffsets": "earliest", **options, "channel": channel})
        .load()
    )


def with_batch_time(rows: DataFrame) -> DataFrame:
    """Add `batch_ms` BIGINT to the messages: the time of their batch, in ms since 1970.

    Spark keeps this time in its offset log, so a repeated batch has the same.
    """
    return rows.withColumn("batch_ms", F.unix_millis(F.current_timestamp()))


def packed_messages(
    messages: DataFrame,
    columns: Collection[str],
    prepared: Callable[[pa.Table], pa.Table],
    blobs_of: Callable[[pa.Table, int], list[bytes]],
    buckets: int,
    *,
    reading: Reading,
) -> DataFrame:
    """A stream of messages as packed rows: one pass over their text, on the executors.

    Args:
        messages: streaming; the columns of MESSAGE_DDL.
        columns: those of CLICK_COLUMNS that `prepared` needs.
        prepared: turns parsed messages into the rows that `blobs_of` takes.
        blobs_of: see `packing.pack_partition`.
        buckets: `packing.bucket_count` of the query's shuffle partitions; the same at each start.
        reading: how messages are read.
    """

    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables = (prepared(parse_arrow(batch, columns, reading)) for batch in batches)
        rows = (batch for table in tables for batch in table.to_batches())
        return pack_partition(rows, blobs_of, buckets)

    return with_batch_time(messages).mapInArrow(pack, PACKED_DDL)
