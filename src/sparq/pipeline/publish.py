"""What queries read from nsqd and publish to it: a channel as a stream, topics for results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sparq.spark.options import SinkOptions
from sparq.spark.sink import NsqWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

MESSAGE_DDL = "nsqd STRING, id STRING, index BIGINT, timestamp TIMESTAMP, body BINARY"
"""With this schema, the source makes only these columns."""

BODY_DDL = "body BINARY"


def messages(spark: SparkSession, channel: str, options: Mapping[str, str]) -> DataFrame:
    """A channel's messages as a stream, from the first one that the channel has not finished.

    `options` are further options of the source `nsq`: topic, addresses, limits.
    """
    return (
        spark.readStream.format("nsq")
        .schema(MESSAGE_DDL)
        .options(**{"startingOffsets": "earliest", **options, "channel": channel})
        .load()
    )


@dataclass(frozen=True, slots=True)
class ResultTopics:
    """The names of the topics for results; `options` of the sink `nsq` have the addresses."""

    options: dict[str, str] = field(default_factory=dict)
    minutes: str = "clicks.metrics"
    rejected: str = "clicks.rejected"
    findings: str = "clicks.spam"

    def publish(self, topic: str, bodies: DataFrame) -> None:
        """Publish rows of `body` BINARY; returns when all are acknowledged.

        The same as the sink `nsq`, for which Spark would start two Python processes more.
        """
        writer = NsqWriter(SinkOptions.of({"topic": topic, **self.options}), {"body": 0})

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            writer.write(batches)
            yield from ()

        bodies.mapInArrow(run, BODY_DDL).collect()
