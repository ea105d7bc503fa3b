"""The query `archive` into a Delta table: every click that can be read, by date and hour.

    data/archive/date=2026-03-02/hour=10/*.parquet    data files, written by executors
    data/archive/_delta_log                           which of them count, commit by commit

This is the counterpart of `archive.ArchiveSink` for readers that support Delta: the same rows and
columns, and `date` DATE and `hour` INT (event time, UTC). No jars are needed.

1. Exactly once: a batch is one commit, which also has a Delta transaction: the application is the
   query's id, its version the batch's number. A batch that Spark repeats is recognised by it and
   skipped before any of its clicks is read.
2. If two drivers run one query, because one was presumed dead, the second to commit a batch is
   refused, since a transaction of the same application came in between. It then finds the batch in
   the table, and its own files do not count.
3. The driver gets one row per file, never clicks.
4. A column that a later version of sparq adds is added to the table; older rows have null there. A
   column with another type is refused.
5. Small files are merged between two batches (`delta_compaction`).
6. The log is kept for LOG_KEPT: a query with a batch a second makes 3,600 commits an hour, and
   listing many commits is slow. To read older versions, set the table's own properties.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from sparq.pipeline.archive import (
    ARCHIVE_SCHEMA,
    FILE_SCHEMA,
    PARTITIONS,
    QUERY_ID_CHARACTERS,
    READ_SCHEMA,
    query_id,
    spark_schema,
)
from sparq.pipeline.archive_log import FOLDER as PARQUET_LOG
from sparq.pipeline.compaction import Sizes
from sparq.pipeline.delta_compaction import SIZES, DeltaCompaction, add_action, files_of
from sparq.pipeline.delta_files import ADDED_DDL, write_hours
from sparq.pipeline.delta_place import (
    AddAction,
    CommitFailedError,
    CommitProperties,
    DeltaTable,
    Schema,
    TablePlace,
    Transaction,
    place_of,
)
from sparq.pipeline.hadoop_files import HadoopFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOG_KEPT = "interval 2 hours"
PROPERTIES = {
    "delta.logRetentionDuration": LOG_KEPT,
    "delta.deletedFileRetentionDuration": f"interval {SIZES.keep_s} seconds",
}
COMMIT_ATTEMPTS = 3


class DeltaSink:
    """A function for foreachBatch: writes a batch of clicks into a Delta table.

    Args:
        root: the table's folder, a path or a URI of any Hadoop file system.
        sizes: when files are merged; None: never.
        storage_options: options of `deltalake`, in addition to Spark's configuration of S3.
    """

    def __init__(
        self,
        root: str,
        sizes: Sizes | None = SIZES,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._root = root.rstrip("/")
        self._sizes = sizes
        self._options = dict(storage_options or {})
        self._opened: tuple[TablePlace, DeltaTable] | None = None
        self._compaction: DeltaCompaction | None = None

    def __call__(self, clicks: DataFrame, batch_id: int) -> None:
        """Process one micro-batch, also if it is repeated.

        Raises:
            RuntimeError: the caller is not a streaming query.
            ValueError: the folder does not hold such a table, but something else.
            deltalake.exceptions.CommitFailedError: other writers keep changing the table.
        """
        spark = clicks.sparkSession
        query = query_id(spark, "a Delta archive")
        place, table = self._table(spark)
        if not has_batch(table, query, batch_id):
            added = self._write(clicks, place, f"{query[:QUERY_ID_CHARACTERS]}-{batch_id}-")
            if added:
                _commit(table, added, query, batch_id)
        if self._compaction is not None:
            now_ms = int(time.time() * 1000)
            self._compaction.between_batches(spark, table, now_ms)

    def _table(self, spark: SparkSession) -> tuple[TablePlace, DeltaTable]:
        """The table in its newest version; the first call creates it if needed."""
        if self._opened is None:
            place = place_of(spark, self._root, self._options)
            if not place.exists():
                refuse_parquet(spark, self._root)
            self._opened = place, opened(place)
            if self._sizes is not None:
                self._compaction = DeltaCompaction(place, self._sizes)
        else:
            # The table stays open between batches: only the commits since the last batch are read.
            self._opened[1].update_incremental()
        return self._opened

    def _write(self, clicks: DataFrame, place: TablePlace, prefix: str) -> list[AddAction]:
        """Have the executors write a batch's files, which do not count yet."""

        def written(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from write_hours(batches, place, prefix)

        rows = clicks.select(*FILE_SCHEMA.names).mapInArrow(written, ADDED_DDL).collect()
        return [add_action(row) for row in rows]


def opened(place: TablePlace) -> DeltaTable:
    """Open the table of a folder, with all columns of ARCHIVE_SCHEMA; creates it if needed.

    Raises:
        ValueError: a column has another type, or the table is partitioned differently.
    """
    table = DeltaTable.create(
        place.address,
        schema=ARCHIVE_SCHEMA,
        mode="ignore",
        partition_by=list(PARTITIONS),
        name="clicks",
        configuration=PROPERTIES,
        storage_options=place.options or None,
    )
    if tuple(table.metadata().partition_columns) != PARTITIONS:
        raise ValueError(
            f"the Delta table {place.address} is not partitioned by {' and '.join(PARTITIONS)}:"
            " name another folder"
        )
    found = {field.name: field for field in table.schema().fields}
    wanted = Schema.from_arrow(ARCHIVE_SCHEMA).fields
    for field in wanted:
        known = found.get(field.name)
        if known is not None and known.type != field.type:
            raise ValueError(
                f"column {field.name} of the Delta table {place.address} has type"
                f" {known.type.type} instead of {field.type.type}: name another folder"
            )
    missing = [field for field in wanted if field.name not in found]
    if missing:
        table.alter.add_columns(missing)
    return table


def has_batch(table: DeltaTable, query: str, batch_id: int) -> bool:
    """Whether the table has this batch of a query, or a later one."""
    newest: int | None = table.transaction_version(query)
    return newest is not None and newest >= batch_id


def _commit(table: DeltaTable, added: list[AddAction], query: str, batch_id: int) -> None:
    """Make a batch's files count, unless the table has the batch by now."""
    properties = CommitProperties(app_transactions=[Transaction(query, batch_id)])
    for attempts_left in reversed(range(COMMIT_ATTEMPTS)):
        try:
            # Refused if a commit since our version of the table has a transaction of this query or
            # has changed the columns; other commits, such as merges, do not matter.
            table.create_write_transaction(
                added,
                mode="append",
                schema=table.schema(),
                partition_by=list(PARTITIONS),
                commit_properties=properties,
            )
        except CommitFailedError:
            table.update_incremental()
            if has_batch(table, query, batch_id):
                return
            if not attempts_left:
                raise
        else:
            return


def refuse_parquet(spark: SparkSession, root: str) -> None:
    """Refuse a folder that holds a Parquet archive.

    Raises:
        ValueError: the folder holds one.
    """
    if HadoopFiles(spark).list(f"{root}/{PARQUET_LOG}"):
        raise ValueError(
            f"{root} holds a Parquet archive: use --archive-format=parquet, or name another folder"
        )


def frame(
    spark: SparkSession, root: str, storage_options: Mapping[str, str] | None = None
) -> DataFrame:
    """The archived clicks of a table: ARCHIVE_COLUMNS, date DATE and hour INT.

    Fixes the files to read when it is called. No rows before the first batch.
    """
    root = root.rstrip("/")
    place = place_of(spark, root, storage_options)
    files = files_of(place.table()) if place.exists() else []
    schema = spark_schema()
    if not files:
        return spark.createDataFrame([], schema)
    # The data files are read as plain Parquet: without Delta's jars, Spark cannot read the log.
    reader = spark.read.schema(schema).option("basePath", root)
    return reader.parquet(*(f"{root}/{file.uri}" for file in files))


def read(place: TablePlace) -> pa.Table:
    """The archived clicks of a table as one Arrow table, columns of READ_SCHEMA."""
    if not place.exists():
        return READ_SCHEMA.empty_table()
    found = place.table().to_pyarrow_table(columns=READ_SCHEMA.names)
    return found.select(READ_SCHEMA.names).cast(READ_SCHEMA)
