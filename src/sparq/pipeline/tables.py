"""The tables: all output of the pipeline, each a Delta table in a folder of its own, by day.

    <data>/clicks/date=2026-03-02/<query>-<batch>-<random>.parquet    written by executors
    <data>/clicks/_delta_log                                          which files count

Executors make the rows of all tables of a query in one pass over a batch, write them into files,
and return a row for each file. A batch is one commit of each table, with a Delta transaction: the
application is the query's id, its version the batch's number. So a batch is recognised that Spark
repeats, or that another driver of the query has committed, because this one was presumed dead.
Files that no commit names do not count: those of killed, repeated and speculative tasks.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction
from pyspark import TaskContext

from sparq.options.mistakes import Mistake
from sparq.pipeline.storage import TablePlace, place_of

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from pyspark.sql import DataFrame, SparkSession

DAY = pa.field("date", pa.date32())
BY_DAY = ds.partitioning(pa.schema([DAY]), flavor="hive")
DAYS_MAX = 100_000
BUFFER_BYTES = 128 << 20
BATCH_ROWS = 65_536
ID_CHARACTERS = 8
KEEP_S = 600  # how long replaced files stay, for readers that are still reading them

PROPERTIES = {
    # A batch a second makes 86,400 commits a day; a reader lists the log.
    "delta.logRetentionDuration": f"interval {KEEP_S} seconds",
    "delta.deletedFileRetentionDuration": f"interval {KEEP_S} seconds",
    "delta.checkpointInterval": "50",
}

# A file: `path` is relative to the table's folder, `stats` JSON as in a Delta log.
WRITTEN_DDL = "table STRING, path STRING, bytes BIGINT, stats STRING"

# Properties of Spark's jobs.
QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"

Split = Callable[[Iterable[pa.RecordBatch]], Iterator[Mapping[str, pa.Table]]]
"""Turns the batches of one partition into rows by the name of their table."""


@dataclass(frozen=True, slots=True)
class Table:
    """The definition of a table; picklable."""

    name: str
    schema: pa.Schema  # without `date`
    time: str  # the column, never null, whose day in UTC is `date`
    summed: Callable[[pa.Table], pa.Table] | None = None  # sums up partial rows of merged files


class OpenTable(NamedTuple):
    """A table that stays open between batches: only the commits since the last one are read."""

    definition: Table
    place: TablePlace
    delta: DeltaTable


class TableFile(NamedTuple):
    """A file that counts; `path` is relative to the table's folder."""

    path: str
    size: int
    modified_ms: int
    rows: int

    @property
    def name(self) -> str:
        """The last part of its path; the first is `date=2026-03-02`."""
        return self.path.rpartition("/")[2]


class Tables:
    """The tables that one query writes, in the order of their commits.

    The last one should get rows from nearly every batch: a batch that it has is skipped.
    """

    def __init__(self, spark: SparkSession, data: str, tables: Sequence[Table]) -> None:
        place = place_of(spark, data)
        self.opened = {
            one.name: OpenTable(one, place.of(one.name), opened(place.of(one.name), one))
            for one in tables
        }

    def writer(
        self, split: Split, prefix: str = ""
    ) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        """The function that writes a partition into files, whose rows of each table `split` makes.

        `prefix` is that of the files' names; empty: that of the streaming query's batch.
        """
        targets = {name: (one.definition, one.place) for name, one in self.opened.items()}

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            assert context is not None
            query, batch_id = map(context.getLocalProperty, (QUERY_ID, _BATCH_ID))
            own = prefix or _prefix(query or "", batch_id or "")
            yield from write_files(split(batches), targets, own)

        return run

    def write(
        self, files: DataFrame, batch_id: int, *, always: bool = False
    ) -> dict[str, list[TableFile]]:
        """Commit the files of a micro-batch of a streaming query, rows of `writer`.

        Returns what the tables have of this batch, by name, also if it is repeated. With `always`
        the plan is also executed if they have the batch: Spark writes its state only then.
        """
        query = files.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        if not query:
            raise RuntimeError("a table can only be written by foreachBatch of a streaming query")
        prefix = _prefix(query, batch_id)
        *_, last = self.opened.values()
        added: dict[str, list[dict[str, Any]]] = {}
        if always or not has_batch(last.delta, query, batch_id):
            added = self.added(files)
        found = {}
        for name, (_, _, table) in self.opened.items():
            if name in added and not has_batch(table, query, batch_id):
                try:
                    transact(table, Transaction(query, batch_id), added[name])
                except CommitFailedError:
                    table.update_incremental()
                    if not has_batch(table, query, batch_id):
                        transact(table, Transaction(query, batch_id), added[name])
            # Read from the table: an earlier attempt or another driver may have committed.
            found[name] = [one for one in files_of(table) if one.name.startswith(prefix)]
        return found

    def added(self, files: DataFrame) -> dict[str, list[dict[str, Any]]]:
        """Let executors write the files that `writer` yields; returns these rows by table.

        Raises FileNotFoundError if it took so long that another program has deleted them.
        """
        began = time.monotonic()
        added: dict[str, list[dict[str, Any]]] = {}
        for row in files.collect():
            added.setdefault(row["table"], []).append(row.asDict())
        if time.monotonic() - began > KEEP_S / 2:
            for name, written in added.items():
                for one in written:
                    self.opened[name].place.files().open_input_file(one["path"]).close()
        return added


def read(
    spark: SparkSession, data: str, name: str, options: Mapping[str, str] | None = None
) -> DataFrame:
    """A table below the folder `data` as a DataFrame, in any Spark, also without Delta's jars.

    Fixes the files to read when it is called: read again to see later batches, and within KEEP_S.
    `options` are storage options of `deltalake`, in addition to Spark's configuration of S3.
    """
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - executors need not

    place = place_of(spark, data, options).of(name)
    table = place.table()
    schema, files = from_arrow_schema(schema_of(table)), files_of(table)
    if not files:
        return spark.createDataFrame([], schema)
    # Plain Parquet: without Delta's jars, Spark cannot read the log.
    reader = spark.read.schema(schema).option("basePath", place.address)
    return reader.parquet(*(f"{place.address}/{one.path}" for one in files))


def opened(place: TablePlace, wanted: Table) -> DeltaTable:
    """Open a table, with all columns of its definition; creates it if needed.

    Older rows have null in columns that are added. Raises Mistake if the table does not fit.
    """
    schema = wanted.schema.append(DAY)
    # Without this, `to_pyarrow_dataset` takes missing bounds for null ones, and a filter by another
    # column finds no rows.
    bounded = [one.name for one in schema if one.name == "index" or pa.types.is_timestamp(one.type)]
    table = DeltaTable.create(
        place.address,
        schema=schema,
        mode="ignore",
        partition_by=[DAY.name],
        name=wanted.name,
        configuration={**PROPERTIES, "delta.dataSkippingStatsColumns": ",".join(bounded)},
        storage_options=place.options or None,
    )
    known = {field.name: field.type for field in table.schema().fields}
    fields = Schema.from_arrow(schema).fields
    wrong = [
        f"its column {field.name} has type {known[field.name].to_json()}, not"
        f" {field.type.to_json()}: give the column another name".replace('"', "")
        for field in fields
        if known.get(field.name, field.type) != field.type
    ]
    if table.metadata().partition_columns != [DAY.name]:
        wrong.append(f"it is not partitioned by {DAY.name}: name another folder")
    if wrong:
        raise Mistake(f"{place.address} is a table that does not fit: {wrong[0]}")
    missing = [field for field in fields if field.name not in known]
    if missing:
        table.alter.add_columns(missing)
    return table


def schema_of(table: DeltaTable) -> pa.Schema:
    """All columns of a table, `date` included."""
    return pa.schema(table.schema().to_arrow())


def files_of(table: DeltaTable) -> list[TableFile]:
    """The files that count in the opened version of a table."""
    columns = ["path", "size_bytes", "modification_time", "num_records"]
    actions = pa.table(table.get_add_actions(flatten=True)).select(columns)
    return [TableFile(*row.values()) for row in actions.to_pylist()]


def overlapping(table: DeltaTable, column: str, paths: Collection[str]) -> list[str]:
    """The files that may have a time of the range of some files' times, these files included."""
    actions = pa.table(table.get_add_actions(flatten=True))
    least, most = actions[f"min.{column}"], actions[f"max.{column}"]
    own = pc.is_in(actions["path"], pa.array(paths))
    before_end = pc.less_equal(least, pc.max(most.filter(own)))
    after_begin = pc.greater_equal(most, pc.min(least.filter(own)))
    return list(actions["path"].filter(pc.and_(before_end, after_begin)).to_pylist())


def has_batch(table: DeltaTable, query: str, batch_id: int) -> bool:
    """Whether the table has this batch of a query, or a later one."""
    newest = table.transaction_version(query)
    return newest is not None and newest >= batch_id


def transact(
    table: DeltaTable,
    transaction: Transaction,
    added: Iterable[Mapping[str, Any]] = (),
    removed: Iterable[TableFile] = (),
    *,
    data_change: bool = True,
) -> None:
    """One commit of files, added (rows of WRITTEN_DDL) and removed; updates the table.

    Raises CommitFailedError if a commit since the opened version has a transaction of the same
    application or has changed the columns. Other commits do not matter.
    """
    now_ms = time.time_ns() // 1_000_000
    actions: list[AddAction | RemoveAction] = []
    for one in added:
        path, day = one["path"], {DAY.name: day_of(one["path"])}
        actions.append(AddAction(path, one["bytes"], day, now_ms, data_change, one["stats"]))
    for path, size, *_ in removed:
        actions.append(RemoveAction(path, data_change, now_ms, size, {DAY.name: day_of(path)}))
    table.create_write_transaction(
        actions,
        mode="append",
        schema=table.schema(),
        partition_by=[DAY.name],
        commit_properties=CommitProperties(app_transactions=[transaction]),
        # `Maintenance` does that: each time it lists the whole log.
        post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
    )
    table.update_incremental()


def day_of(path: str) -> str:
    """The day of a file's rows, such as `2026-03-02`."""
    return path.partition("/")[0].removeprefix(f"{DAY.name}=")


def _prefix(query: str, batch_id: int | str) -> str:
    """What the names of the files of a query's batch begin with."""
    return f"{query[:ID_CHARACTERS]}-{batch_id}-"


def write_files(
    parts: Iterable[Mapping[str, pa.Table]],
    targets: Mapping[str, tuple[Table, TablePlace]],
    prefix: str,
    buffer_bytes: int = BUFFER_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Write rows into files, one per table and day, in turns of `buffer_bytes` of rows."""
    held: dict[str, list[pa.Table]] = {}
    held_bytes = 0

    def flushed() -> pa.RecordBatch:
        written = []
        for name, some in held.items():
            table, place = targets[name]
            rows = with_day(table, pa.concat_tables(some))
            written += write_rows(place, rows, rows.schema, prefix)
        return pa.RecordBatch.from_pylist(written)

    for part in parts:
        for name, rows in part.items():
            if len(rows):
                schema = targets[name][0].schema
                held.setdefault(name, []).append(rows.select(schema.names).cast(schema))
                held_bytes += rows.nbytes
        if held_bytes >= buffer_bytes:
            yield flushed()
            held, held_bytes = {}, 0
    if held:
        yield flushed()


def with_day(table: Table, rows: pa.Table) -> pa.Table:
    """The rows of a table with `date`."""
    return rows.append_column(DAY, rows[table.time].cast(DAY.type))


def write_rows(
    place: TablePlace, rows: pa.Table | Iterable[pa.RecordBatch], schema: pa.Schema, prefix: str
) -> list[dict[str, Any]]:
    """Write rows, which have `date`, into one file for each day; returns rows of WRITTEN_DDL."""
    written: list[dict[str, Any]] = []
    table = place.address.rpartition("/")[2]

    def note(file: ds.WrittenFile) -> None:
        stats = stats_of(file.metadata)
        written.append({"table": table, "path": file.path, "bytes": file.size, "stats": stats})

    parquet = ds.ParquetFileFormat()
    ds.write_dataset(
        rows,
        "",
        schema=schema,
        filesystem=place.files(),
        format=parquet,
        # Readers use the table's types, so the file need not repeat Arrow's.
        file_options=parquet.make_write_options(compression="zstd", store_schema=False),
        basename_template=f"{prefix}{uuid.uuid4().hex[:16]}-{{i}}.parquet",
        partitioning=BY_DAY,
        max_partitions=DAYS_MAX,
        min_rows_per_group=BATCH_ROWS,
        existing_data_behavior="overwrite_or_ignore",
        create_dir=False,
        use_threads=False,
        file_visitor=note,
    )
    return written


def stats_of(file: pq.FileMetaData) -> str:
    """Statistics of a file for the Delta log: number of rows, and bounds of times and `index`.

    Readers of a range of these columns skip files. Bounds of texts would keep parts of them.
    """
    groups = [file.row_group(number) for number in range(file.num_row_groups)]
    found: dict[str, Any] = {"numRecords": file.num_rows}
    for at, name in enumerate(file.schema.names):
        if name != "index" and file.schema.column(at).logical_type.type != "TIMESTAMP":
            continue
        columns = [group.column(at).statistics for group in groups]
        found.setdefault("nullCount", {})[name] = sum(one.null_count for one in columns)
        if bounded := [one for one in columns if one.has_min_max]:
            found.setdefault("minValues", {})[name] = min(one.min for one in bounded)
            found.setdefault("maxValues", {})[name] = max(one.max for one in bounded)
    return json.dumps(found, default=lambda at: f"{at:%Y-%m-%dT%H:%M:%S.%fZ}")


def rows_of(
    place: TablePlace,
    schema: pa.Schema,
    paths: Sequence[str],
    where: pc.Expression | None = None,
    batch_rows: int = BATCH_ROWS,
) -> ds.Scanner:
    """The rows of some files; a column that a file lacks is null there."""
    files = ds.dataset(
        list(paths), schema=schema, format="parquet", filesystem=place.files(), partitioning=BY_DAY
    )
    return files.scanner(
        filter=where, batch_size=batch_rows, batch_readahead=1, fragment_readahead=1
    )
