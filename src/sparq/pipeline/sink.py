"""The function for foreachBatch of each query: a batch into tables, then messages to a topic.

Messages are made by one executor from the files that the batch has written, at least once: a batch
that is run again is published again. Of a table of partial rows, the totals so far are published of
the times that the batch has touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sparq.pipeline.maintenance import Maintenance
from sparq.pipeline.publish import BODY_DDL, ResultTopics
from sparq.pipeline.tables import Split, Table, Tables, Written, overlapping, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparq.pipeline.storage import TablePlace

PUBLISHED_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class Publication:
    """What is published of a table.

    Attributes:
        topics: the topics for results; None: nothing is published.
        table: the table's name, which is that of its topic in `topics`.
        encode: a row, and the version of the table that has it, as a message.
    """

    topics: ResultTopics | None
    table: str
    encode: Callable[[dict[str, Any], int], bytes]


class Sink:
    """Writes batches, also if they are repeated.

    Args:
        tables: the query's tables.
        split: turns a batch into their rows.
        publication: what is published.
        keep_days: days of rows to keep; 0: all.
        counted: takes what each batch has written, by table.
        always: see `Tables.write`.
    """

    def __init__(
        self,
        tables: Tables,
        split: Split,
        publication: Publication,
        *,
        keep_days: int = 0,
        counted: Callable[[dict[str, Written]], None] = lambda _: None,
        always: bool = False,
    ) -> None:
        self.tables, self.split = tables, split
        self._publication = publication
        self._maintenance = Maintenance(tables, keep_days)
        self._counted, self._always = counted, always

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Process one micro-batch."""
        written = self.tables.write(rows, batch_id, self.split, always=self._always)
        self._counted(written)
        self.publish(rows.sparkSession, written)
        self._maintenance.between_batches(rows.sparkSession)

    def publish(self, spark: SparkSession, written: dict[str, Written]) -> None:
        """Publish what was written."""
        what = self._publication
        if what.topics is None or what.table not in written:
            return
        definition, place, delta = self.tables.opened[what.table]
        version, new, _ = written[what.table]
        files = new if definition.summed is None else overlapping(delta, definition.time, new)
        encode = what.encode

        def bodies(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for _ in batches:
                for rows in new_rows(place, definition, new, files):
                    encoded = [encode(row, version) for row in rows.to_pylist()]
                    yield pa.record_batch([pa.array(encoded, pa.binary())], names=["body"])

        made = spark.range(0, 1, 1, 1).mapInArrow(bodies, BODY_DDL)
        what.topics.publish(getattr(what.topics, what.table), made)


def new_rows(
    place: TablePlace, table: Table, new: list[str], files: list[str]
) -> Iterator[pa.Table | pa.RecordBatch]:
    """The rows of new files; of partial rows, the totals of their times in all `files`."""
    if table.summed is None:
        yield from rows_of(place, table.schema, new, batch_rows=PUBLISHED_ROWS).to_batches()
        return
    only = pa.schema([table.schema.field(table.time)])
    times = rows_of(place, only, new).to_table()[table.time].unique()
    where = pc.field(table.time).isin(times)
    yield table.summed(rows_of(place, table.schema, files, where).to_table())
