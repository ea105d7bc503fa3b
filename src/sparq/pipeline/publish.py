"""The topics to which queries publish their results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparq.spark.options import SinkOptions
from sparq.spark.sink import NsqWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

BODY_DDL = "body BINARY"


@dataclass(frozen=True, slots=True)
class ResultTopics:
    """The topic of each kind of result (`Settings.result_topics`); `options` of the sink `nsq`."""

    options: dict[str, str]
    names: dict[str, str]

    def publish(self, result: str, bodies: DataFrame) -> None:
        """Publish rows of `body` BINARY, results of a kind; returns when all are acknowledged.

        The same as the sink `nsq`, for which Spark would start two Python processes more.
        """
        writer = NsqWriter(
            SinkOptions.of({"topic": self.names[result], **self.options}), {"body": 0}
        )

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            writer.write(batches)
            yield from ()

        bodies.mapInArrow(run, BODY_DDL).collect()
