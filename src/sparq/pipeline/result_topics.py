"""The topics of results: what a query has written, published as JSON, at least once.

Executors publish it. It is read back from the files that the batch has just written, so that
nothing is worked out twice, and a batch that is run again publishes what its files say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BODIES = pa.schema([("body", pa.binary())])
BODY_DDL = "body BINARY"


@dataclass(frozen=True, slots=True)
class ResultTopics:
    """Where results are published.

    Attributes:
        options: of the sink `nsq`: the addresses.
        minutes, rejected, findings: names of topics.
    """

    options: dict[str, str] = field(default_factory=dict)
    minutes: str = "clicks.metrics"
    rejected: str = "clicks.rejected"
    findings: str = "clicks.spam"

    def publish(self, topic: str, bodies: DataFrame) -> None:
        """Publish rows of `body` BINARY, and return when all are acknowledged."""
        writer = bodies.write.format("nsq").mode("append")
        writer.options(topic=topic, **self.options).save()


def as_bodies(rows: DataFrame, to_body: Callable[[dict[str, Any]], bytes]) -> DataFrame:
    """Each row as a message; for rows that are few, since Python makes them one by one."""

    def made(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            bodies = pa.array(map(to_body, batch.to_pylist()), pa.binary())
            yield pa.record_batch([bodies], schema=BODIES)

    return rows.mapInArrow(made, BODY_DDL)
