"""The tables: all output of the pipeline, each a Delta table in a folder of its own, by day.

    <data>/clicks/date=2026-03-02/<query>-<batch>-<random>.parquet    written by executors
    <data>/clicks/_delta_log                                          which files count

A query that writes tables defines each as a `Table`, makes one `Tables` of them, and calls `write`
in its function for foreachBatch. What runs on the executors is one function, `split`: it gets the
rows of a partition as Arrow batches, and yields the rows of each table. So the rows of several
tables come out of one pass over a batch:

    at = ("time", pa.timestamp("us", "UTC"))
    SESSIONS = Table("sessions", pa.schema([at, ("visitor", pa.string()), ...]), "time")
    FINDINGS = Table("findings", pa.schema([at, ("reason", pa.string()), ...]), "time")

    def split(batches: Iterable[pa.RecordBatch]) -> Iterator[Mapping[str, pa.Table]]:
        for batch in batches:
            yield {"sessions": sessions_of(batch), "findings": findings_of(batch)}

    tables = Tables(spark, data, [FINDINGS, SESSIONS])
    written = tables.write(rows, batch_id, split)   # {"sessions": Written(version=12, ...), ...}
    maintenance.between_batches(spark)              # after publishing: `Maintenance(tables)`

1. Exactly once: a batch is one commit of each table, with a Delta transaction: the application is
   the query's id, its version the batch's number. A batch that Spark repeats is recognised by it.
2. Executors write files and return a row for each. A file does not count before a commit names it.
   Names are random, so files of a killed, repeated or speculative task are never mistaken for
   another task's files. The driver gets one row per file, never rows of tables.
3. If two drivers run one query, because one was presumed dead, the second to commit a batch is
   refused, since a transaction of the same application came in between. It then finds the batch in
   the table, and its own files do not count.
4. A column that a later version or another setting adds is added to the table; older rows have null
   there. A column with another type is refused.
5. `date` DATE is the day of a row's time in UTC, whatever the session's time zone is.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow.fs import FileType

from sparq.pipeline.storage import TablePlace, place_of

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from pyspark.sql import DataFrame, SparkSession

DAY = "date"
COMPRESSION = "zstd"
BUFFER_BYTES = 128 << 20
COMMIT_ATTEMPTS = 5
QUERY_ID_CHARACTERS = 8
KEEP_S = 600
"""How long files stay that merges have replaced, for readers that are still reading them."""

PROPERTIES = {
    # A batch a second makes 86,400 commits a day. A reader lists the log, and reads the commits
    # since the last checkpoint.
    "delta.logRetentionDuration": f"interval {KEEP_S} seconds",
    "delta.deletedFileRetentionDuration": f"interval {KEEP_S} seconds",
    "delta.checkpointInterval": "50",
}

ADDED_SCHEMA = pa.schema(
    [
        ("table", pa.string()),
        ("path", pa.string()),  # relative to the table's folder
        ("bytes", pa.int64()),
        ("modified_ms", pa.int64()),  # ms since 1970
        ("rows", pa.int64()),
        ("stats", pa.string()),  # JSON, as in a Delta log
    ]
)
ADDED_DDL = "table STRING, path STRING, bytes BIGINT, modified_ms BIGINT, rows BIGINT, stats STRING"

_QUERY_ID = "sql.streaming.queryId"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_MICROS = 86_400_000_000

Split = Callable[[Iterable[pa.RecordBatch]], Iterator[Mapping[str, pa.Table]]]
"""Turns the batches of one partition into rows by the name of their table; runs on executors."""


@dataclass(frozen=True, slots=True)
class Table:
    """The definition of a table; picklable.

    Attributes:
        name: its folder below the data folder.
        schema: its columns without `date`.
        time: the column of type timestamp[us, UTC], never null, whose day is `date`.
        summed: for a table of partial rows: sums up rows that belong together, when their files are
            merged; None: all rows are kept.
    """

    name: str
    schema: pa.Schema
    time: str
    summed: Callable[[pa.Table], pa.Table] | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """What a batch has written into one table.

    Attributes:
        version: the table's version, which has the batch.
        files: the batch's files, relative to the table's folder.
        rows: number of rows in them.
    """

    version: int
    files: list[str] = field(default_factory=list)
    rows: int = 0


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file that counts; `path` is relative to the table's folder."""

    path: str
    size: int
    modified_ms: int
    rows: int

    @property
    def day(self) -> str:
        """The day of its rows, such as `2026-03-02`."""
        return self.path.partition("/")[0].removeprefix(f"{DAY}=")

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]


class Tables:
    """The tables that one query writes.

    Args:
        spark: a session that can access the data folder.
        data: the data folder, a path or a URI of any Hadoop file system.
        tables: the tables in the order of their commits. The last one should get rows from nearly
            every batch: if it has a batch, the others do, too, and the batch is skipped.
        options: storage options of `deltalake`, in addition to Spark's configuration of S3.
    Raises:
        ValueError: a folder holds a table with other columns or partitions.
    """

    def __init__(
        self,
        spark: SparkSession,
        data: str,
        tables: Sequence[Table],
        options: Mapping[str, str] | None = None,
    ) -> None:
        place = place_of(spark, data, options)
        self.definitions = {table.name: table for table in tables}
        self.places = {table.name: place.of(table.name) for table in tables}
        # The tables stay open between batches: only the commits since the last one are read.
        self.opened = {table.name: opened(self.places[table.name], table) for table in tables}

    def write(
        self, rows: DataFrame, batch_id: int, split: Split, *, always: bool = False
    ) -> dict[str, Written]:
        """Write one micro-batch into the tables, also if it is repeated.

        Args:
            rows: the batch, as foreachBatch passes it; its plan is executed once.
            batch_id: its number.
            split: see the module.
            always: execute the plan also if the tables have the batch: a query with state needs
                that, since Spark writes the state of a batch only then.
        Returns:
            What the tables have of this batch, by name, in either case; a table without rows of the
            batch is left out.
        Raises:
            RuntimeError: the caller is not a streaming query.
            FileNotFoundError: the batch took long, and its files were deleted as left-overs.
            deltalake.exceptions.CommitFailedError: other writers keep changing a table.
        """
        query = query_id(rows.sparkSession)
        prefix = f"{query[:QUERY_ID_CHARACTERS]}-{batch_id}-"
        for table in self.opened.values():
            table.update_incremental()
        has_all = has_batch(list(self.opened.values())[-1], query, batch_id)
        added: dict[str, list[AddAction]] = {}
        if always or not has_all:
            definitions, places = self.definitions, self.places

            def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
                yield from write_files(split(batches), definitions, places, prefix)

            began = time.monotonic()
            for row in rows.mapInArrow(run, ADDED_DDL).collect():
                added.setdefault(row["table"], []).append(add_action(row.asDict()))
            if time.monotonic() - began > KEEP_S / 2:
                _check_files(self.places, added)
        found = {}
        for name, table in self.opened.items():
            if added.get(name) and not has_batch(table, query, batch_id):
                commit(table, added[name], Transaction(query, batch_id))
            # Read from the table: an earlier attempt or another driver may have committed.
            files = [one for one in files_of(table) if one.name.startswith(prefix)]
            if files:
                rows_count = sum(one.rows for one in files)
                found[name] = Written(table.version(), [one.path for one in files], rows_count)
        return found

    def frame(self, spark: SparkSession, name: str, files: Sequence[str]) -> DataFrame:
        """The rows of some files of a table."""
        return _frame(spark, self.places[name], self.opened[name], files)


def read(
    spark: SparkSession, data: str, name: str, options: Mapping[str, str] | None = None
) -> DataFrame:
    """A table as a DataFrame, in any Spark, also without Delta's jars.

    Fixes the files to read when it is called: read again to see later batches, and within KEEP_S.

    Args:
        spark: a session with its own JVM.
        data: the data folder, a path or a URI of any Hadoop file system.
        name: the table's name.
        options: storage options of `deltalake`, in addition to Spark's configuration of S3.
    Raises:
        deltalake.exceptions.TableNotFoundError: there is no such table.
    """
    place = place_of(spark, data, options).of(name)
    table = place.table()
    return _frame(spark, place, table, [one.path for one in files_of(table)])


def _frame(
    spark: SparkSession, place: TablePlace, table: DeltaTable, files: Sequence[str]
) -> DataFrame:
    # Plain Parquet: without Delta's jars, Spark cannot read the log.
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - executors need not

    schema = from_arrow_schema(schema_of(table))
    if not files:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema).option("basePath", place.address)
    return reader.parquet(*(f"{place.address}/{path}" for path in files))


def arrow(place: TablePlace, table: Table, columns: Sequence[str]) -> pa.Table:
    """Some columns of a table, read without Spark; no rows if there is no table yet."""
    if not place.exists():
        return table.schema.empty_table().select(columns)
    found = place.table().to_pyarrow_table(columns=list(columns))
    schema = pa.schema([table.schema.field(name) for name in columns])
    return found.select(list(columns)).cast(schema)


def query_id(spark: SparkSession) -> str:
    """The id of the streaming query, which its checkpoint keeps.

    Raises:
        RuntimeError: the caller is not a streaming query.
    """
    found: str | None = spark.sparkContext.getLocalProperty(_QUERY_ID)
    if not found:
        raise RuntimeError("a table can only be written by foreachBatch of a streaming query")
    return found


# The driver's part: tables and commits


def opened(place: TablePlace, wanted: Table) -> DeltaTable:
    """Open a table, with all columns of its definition; creates it if needed.

    Raises:
        ValueError: a column has another type, or the table is partitioned differently.
    """
    schema = wanted.schema.append(pa.field(DAY, pa.date32()))
    table = DeltaTable.create(
        place.address,
        schema=schema,
        mode="ignore",
        partition_by=[DAY],
        name=wanted.name,
        configuration=PROPERTIES,
        storage_options=place.options or None,
    )
    if table.metadata().partition_columns != [DAY]:
        raise ValueError(
            f"the Delta table {place.address} is not partitioned by {DAY}: name another folder"
        )
    found = {field.name: field for field in table.schema().fields}
    fields = Schema.from_arrow(schema).fields
    for field_ in fields:
        known = found.get(field_.name)
        if known is not None and known.type != field_.type:
            raise ValueError(
                f"column {field_.name} of the Delta table {place.address} has type"
                f" {known.type} instead of {field_.type}: name another folder"
            )
    missing = [field_ for field_ in fields if field_.name not in found]
    if missing:
        table.alter.add_columns(missing)
    return table


def schema_of(table: DeltaTable) -> pa.Schema:
    """All columns of a table, `date` included."""
    return pa.schema(table.schema().to_arrow())


def files_of(table: DeltaTable) -> list[TableFile]:
    """The files that count in the opened version of a table."""
    actions = pa.table(table.get_add_actions(flatten=True))
    written = actions["modification_time"].cast(pa.timestamp("ms")).cast(pa.int64())
    columns = (actions["path"], actions["size_bytes"], written, actions["num_records"])
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return [TableFile(unquote(path), *rest) for path, *rest in rows]


def overlapping(table: DeltaTable, column: str, paths: Collection[str]) -> list[str]:
    """The files that may have a time of the range of some files' times, these files included."""
    actions = pa.table(table.get_add_actions(flatten=True))
    names = [unquote(path) for path in actions["path"].to_pylist()]
    least, most = actions[f"min.{column}"], actions[f"max.{column}"]
    own = pa.array([name in paths for name in names])
    first, last = pc.min(least.filter(own)), pc.max(most.filter(own))
    found = pc.and_(pc.less_equal(least, last), pc.greater_equal(most, first))
    return [name for name, is_in in zip(names, found.to_pylist(), strict=True) if is_in]


def has_batch(table: DeltaTable, query: str, batch_id: int) -> bool:
    """Whether the table has this batch of a query, or a later one."""
    newest: int | None = table.transaction_version(query)
    return newest is not None and newest >= batch_id


def commit(table: DeltaTable, added: list[AddAction], transaction: Transaction) -> None:
    """Make files count, unless the table has the transaction by now; updates the table.

    Raises:
        deltalake.exceptions.CommitFailedError: other writers keep changing the table.
    """
    for attempts_left in reversed(range(COMMIT_ATTEMPTS)):
        try:
            transact(table, added, transaction)
        except CommitFailedError:
            table.update_incremental()
            if has_batch(table, transaction.app_id, transaction.version):
                return
            if not attempts_left:
                raise
        else:
            return


def transact(
    table: DeltaTable, actions: Sequence[AddAction | RemoveAction], transaction: Transaction
) -> None:
    """One commit; the table is then in its newest version.

    Raises:
        deltalake.exceptions.CommitFailedError: a commit since the opened version has a transaction
            of the same application or has changed the columns. Other commits do not matter.
    """
    table.create_write_transaction(
        list(actions),
        mode="append",
        schema=table.schema(),
        partition_by=[DAY],
        commit_properties=CommitProperties(app_transactions=[transaction]),
    )
    table.update_incremental()


def _check_files(places: Mapping[str, TablePlace], added: Mapping[str, list[AddAction]]) -> None:
    """Raise FileNotFoundError if a file is gone: a commit must not name it."""
    for name, files in added.items():
        for found in places[name].files().get_file_info([one.path for one in files]):
            if found.type != FileType.File:
                raise FileNotFoundError(f"{places[name].address}/{found.path}: run the batch again")


def add_action(row: Mapping[str, Any], *, data_change: bool = True) -> AddAction:
    """The log's entry for a file, given the row of ADDED_SCHEMA from its writer."""
    path = row["path"]
    days = {DAY: path.partition("/")[0].removeprefix(f"{DAY}=")}
    return AddAction(path, row["bytes"], days, row["modified_ms"], data_change, row["stats"])


# The executors' part: files


def write_files(
    parts: Iterable[Mapping[str, pa.Table]],
    tables: Mapping[str, Table],
    places: Mapping[str, TablePlace],
    prefix: str,
    buffer_bytes: int = BUFFER_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Write rows into files, one file per table and day; rows of ADDED_SCHEMA, one per file.

    Args:
        parts: rows by the name of their table.
        tables: the definitions by name.
        places: the tables' folders by name.
        prefix: prefix of the files' names.
        buffer_bytes: after this many bytes of rows of all tables, new files begin.
    """
    held: dict[str, list[pa.Table]] = {}
    held_bytes = 0

    def flushed() -> pa.RecordBatch:
        added = [
            write_file(files, f"{DAY}={day}/{prefix}", tables[name], tables[name].schema, [rows])
            for name, some in held.items()
            for files in [places[name].files()]
            for day, rows in by_day(pa.concat_tables(some), tables[name].time)
        ]
        return pa.RecordBatch.from_pylist(added, ADDED_SCHEMA)

    for part in parts:
        for name, rows in part.items():
            if len(rows):
                schema = tables[name].schema
                held.setdefault(name, []).append(rows.select(schema.names).cast(schema))
                held_bytes += rows.nbytes
        if held_bytes >= buffer_bytes:
            yield flushed()
            held, held_bytes = {}, 0
    if held:
        yield flushed()


def by_day(rows: pa.Table, column: str) -> Iterator[tuple[date, pa.Table]]:
    """Each day (UTC) and its rows, in their order."""
    micros = rows[column].combine_chunks().cast(pa.int64())
    days = micros.to_numpy(zero_copy_only=False) // _DAY_MICROS
    if (days[1:] < days[:-1]).any():
        order = np.argsort(days, kind="stable")
        rows, days = rows.take(pa.array(order)), days[order]
    found, starts = np.unique(days, return_index=True)
    for day, start, end in zip(found, starts, [*starts[1:], len(days)], strict=True):
        yield (_EPOCH + timedelta(days=int(day))).date(), rows.slice(start, end - start)


def write_file(
    files: FileSystem, prefix: str, table: Table, schema: pa.Schema, parts: Iterable[pa.Table]
) -> dict[str, Any]:
    """Write one file.

    Args:
        files: the file system of the table's folder.
        prefix: prefix of its path in this folder.
        table: the table's definition.
        schema: the columns of the file.
        parts: its rows.
    Returns:
        Its row of ADDED_SCHEMA.
    """
    path = f"{prefix}{uuid.uuid4().hex[:16]}.parquet"
    stats = Stats(schema)
    with files.open_output_stream(path) as stream:
        # Readers use the table's types, so the file need not repeat Arrow's. The file is passed to
        # Arrow's Parquet writer because that writes bytes; `stream.write` would pass Arrow buffers,
        # which `deltalake` does not accept.
        with pq.ParquetWriter(stream, schema, compression=COMPRESSION, store_schema=False) as file:
            for rows in parts:
                file.write_table(rows)
                stats.add(rows)
        size = stream.tell()
    return {
        "table": table.name,
        "path": path,
        "bytes": size,
        "modified_ms": time.time_ns() // 1_000_000,
        "rows": stats.rows,
        "stats": stats.text(),
    }


class Stats:
    """Statistics of a file for the Delta log: number of rows, and bounds of times and `index`.

    Readers of a range of these columns skip files. Bounds of texts would keep parts of them.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._bounded = [
            one.name for one in schema if one.name == "index" or pa.types.is_timestamp(one.type)
        ]
        self.rows = 0
        self._nulls = dict.fromkeys(self._bounded, 0)
        self._ends: dict[str, tuple[int, int]] = {}

    def add(self, rows: pa.Table) -> None:
        """Add some of the file's rows."""
        self.rows += len(rows)
        for name in self._bounded:
            column = rows[name]
            self._nulls[name] += column.null_count
            if column.null_count < len(column):
                ends = pc.min_max(column.cast(pa.int64())).as_py()
                least, most = self._ends.get(name, (ends["min"], ends["max"]))
                self._ends[name] = min(least, ends["min"]), max(most, ends["max"])

    def text(self) -> str:
        """The statistics as JSON, in the form of the log."""
        shown = {
            name: [
                _as_text(end) if pa.types.is_timestamp(self._schema.field(name).type) else end
                for end in ends
            ]
            for name, ends in self._ends.items()
        }
        known = {
            "numRecords": self.rows,
            "minValues": {name: ends[0] for name, ends in shown.items()},
            "maxValues": {name: ends[1] for name, ends in shown.items()},
            "nullCount": self._nulls,
        }
        return json.dumps(known, separators=(",", ":"))


def _as_text(micros: int) -> str:
    return f"{_EPOCH + timedelta(microseconds=micros):%Y-%m-%dT%H:%M:%S.%fZ}"
