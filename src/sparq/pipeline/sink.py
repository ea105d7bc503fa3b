"""The function for foreachBatch of each query: its files into tables, then messages to a topic.

One executor makes messages from the files that a batch has written; a batch that is run again is
published again. Of partial rows, the totals so far of the touched times are published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sparq.pipeline.maintenance import Maintenance
from sparq.pipeline.tables import Split, Table, Tables, overlapping, rows_of
from sparq.spark.options import SinkOptions
from sparq.spark.sink import NsqWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PUBLISHED_ROWS = 1_000
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
        options = SinkOptions.of({"topic": self.names[result], **self.options})
        writer = NsqWriter(options, {"body": 0})

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            writer.write(batches)
            yield from ()

        bodies.mapInArrow(run, BODY_DDL).collect()


@dataclass(frozen=True, slots=True)
class Output:
    """What a query makes of a batch; see `Tables` for `split` and `always`."""

    tables: Sequence[Table]
    split: Split
    published: str  # the table of which messages are published
    result: str  # what they are (`ResultTopics`)
    as_json: Callable[[dict[str, Any], int], bytes]  # of a row, with the version of the table
    always: bool = False


class Sink:
    """Writes batches, and publishes them if there are topics; `keep_days` of rows stay (0: all).

    `counted` takes the number of rows of each batch that are for the topic.
    """

    def __init__(
        self,
        spark: SparkSession,
        data: str,
        output: Output,
        topics: ResultTopics | None = None,
        *,
        keep_days: int = 0,
        counted: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.tables = Tables(spark, data, output.tables)
        self._maintenance = Maintenance(self.tables, keep_days)
        self._output, self._topics, self._counted = output, topics, counted

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Process one micro-batch, of rows that `Tables.writer` yields."""
        output, spark = self._output, rows.sparkSession
        written = self.tables.write(rows, batch_id, always=output.always)
        new = written.get(output.published, [])
        self._counted(sum(one.rows for one in new))
        if new:
            self.publish(spark, [one.path for one in new])
        self._maintenance.between_batches(spark)

    def publish(self, spark: SparkSession, new: list[str]) -> None:
        """Publish the rows of files that were written into the table that is published."""
        if self._topics is None:
            return
        name, encode = self._output.published, self._output.as_json
        definition, place, delta = self.tables.opened[name]
        version, summed = delta.version(), definition.summed is not None
        files = overlapping(delta, definition.time, new) if summed else new

        def new_rows() -> Iterator[pa.Table | pa.RecordBatch]:
            if definition.summed is None:
                found = rows_of(place, definition.schema, new, batch_rows=PUBLISHED_ROWS)
                yield from found.to_batches()
                return
            only = pa.schema([definition.schema.field(definition.time)])
            times = rows_of(place, only, new).to_table()[definition.time].unique()
            where = pc.field(definition.time).isin(times)
            yield definition.summed(rows_of(place, definition.schema, files, where).to_table())

        def bodies(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for rows in (rows for _ in batches for rows in new_rows()):
                encoded = [encode(row, version) for row in rows.to_pylist()]
                yield pa.record_batch([pa.array(encoded, pa.binary())], names=["body"])

        made = spark.range(0, 1, 1, 1).mapInArrow(bodies, BODY_DDL)
        self._topics.publish(self._output.result, made)
