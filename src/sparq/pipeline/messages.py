"""The stream of messages that each query reads: a channel's, with what the queries need of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A source that is given a schema makes only these columns.
MESSAGE_DDL = "nsqd STRING, id STRING, index BIGINT, timestamp TIMESTAMP, body BINARY"


def messages(spark: SparkSession, channel: str, options: Mapping[str, str]) -> DataFrame:
    """A channel's messages as a stream, from the first that the channel has not finished.

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
    """The messages with `batch_ms` BIGINT: the time of their batch, ms since 1970.

    Spark keeps that time in its offset log: it is the same when the batch is run again.
    """
    return rows.withColumn("batch_ms", F.unix_millis(F.current_timestamp()))
