"""The query `archive`: every click that can be read, as Parquet by date and hour (UTC event time).

    data/archive/date=2026-03-02/hour=10/*.parquet    columns of ARCHIVE_COLUMNS
    data/archive/_spark_metadata                      which of the files count (`archive_log`)

1. Exactly once: a batch's files count once they are in the log, by one commit. Their names begin
   with the query's id and the batch's number, so a batch that Spark repeats is found there and
   skipped.
2. Read the folder through Spark, which follows the log by itself: files of a killed write, and
   files that have been merged into larger ones, do not count.
3. Small files are merged between two batches (`compaction`).
4. Messages that cannot be read are not clicks; the query `metrics` keeps them in `data/rejected`.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from sparq.pipeline import clicks as click
from sparq.pipeline import compaction
from sparq.pipeline.archive_log import FOLDER as METADATA
from sparq.pipeline.archive_log import ArchiveLog, decoded, parts_of
from sparq.pipeline.hadoop_files import FileStatus, HadoopFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from sparq.pipeline.folders import Folders

QUERY = "archive"

# Message id and place, the click, and the unchanged body.
ARCHIVE_COLUMNS = (
    *("id", "nsqd", "index", "timestamp"),
    *(name for name in click.CLICK_COLUMNS if name != "reason"),
    "body",
)
PARTITIONS = ("date", "hour")
_TYPES = {"index": pa.int64(), "timestamp": pa.timestamp("us", "UTC"), "body": pa.binary()}
_TYPES |= {field.name: field.type for field in click.CLICK_SCHEMA}
FILE_SCHEMA = pa.schema([(name, _TYPES.get(name, pa.string())) for name in ARCHIVE_COLUMNS])
ARCHIVE_SCHEMA = pa.schema([*FILE_SCHEMA, *zip(PARTITIONS, (pa.date32(), pa.int32()), strict=True)])
# Columns for readers of a local archive.
_READ = ("id", "address", "user_agent", "page", "status", "bytes", "body")
READ_SCHEMA = pa.schema([FILE_SCHEMA.field(name) for name in _READ])

_QUERY_ID = "sql.streaming.queryId"
QUERY_ID_CHARACTERS = 8


def archived(messages: DataFrame) -> DataFrame:
    """The readable clicks in the form of the archive: ARCHIVE_COLUMNS, date, hour."""
    from pyspark.sql import functions as F  # noqa: PLC0415 - reading needs no Spark

    clicks = click.readable(click.parse(messages)).select(*ARCHIVE_COLUMNS)
    # Not with F.to_date and F.hour: these depend on the session's time zone.
    day = F.date_from_unix_date(F.floor(F.unix_seconds("time") / 86_400).cast("int"))
    hour = F.floor(F.pmod(F.unix_seconds("time"), F.lit(86_400)) / 3_600).cast("string")
    return clicks.withColumns({"date": day, "hour": F.lpad(hour, 2, "0")})


class ArchiveSink:
    """A function for foreachBatch: writes a batch of clicks into the archive.

    Args:
        root: the archive's folder, a path or a URI of any Hadoop file system.
        sizes: when files are merged; None: never.
    """

    def __init__(self, root: str, sizes: compaction.Sizes | None = compaction.SIZES) -> None:
        self._root = root.rstrip("/")
        self._sizes = sizes

    def __call__(self, clicks: DataFrame, batch_id: int) -> None:
        """Process one micro-batch, also if it is repeated.

        Raises:
            FileExistsError: another query writes to the same archive.
        """
        spark = clicks.sparkSession
        files = HadoopFiles(spark)
        log = ArchiveLog(files, self._root)
        query = query_id(spark, "the archive")
        prefix = f"{query[:QUERY_ID_CHARACTERS]}-{batch_id}-"
        before = log.read()
        if not any(one.name.startswith(prefix) for one in before.files):
            written, left = self._write(clicks, files, prefix)
            # A batch without a readable click needs no commit: if it is repeated, it writes nothing
            # again.
            if written:
                log.commit(before, before.changed(added=written))
                # Only now: files that another driver of this query has written, but not yet
                # committed, can no longer come to count.
                _delete(files, left, log)
        if self._sizes is not None:
            now_ms = int(time.time() * 1000)
            compaction.Compaction(spark, self._root, self._sizes).between_batches(prefix, now_ms)

    def _write(
        self, clicks: DataFrame, files: HadoopFiles, prefix: str
    ) -> tuple[list[FileStatus], list[FileStatus]]:
        """Write a batch's files, which do not count yet.

        Returns:
            These files, and files of the same batch from other attempts: a killed attempt, or a
            second driver of this query that still runs, where one of the two was presumed dead.
        """
        from pyspark.sql import Observation  # noqa: PLC0415 - reading needs no Spark
        from pyspark.sql import functions as F  # noqa: PLC0415 - the same

        attempt = f"{prefix}{uuid.uuid4().hex[:8]}"
        # The job itself reports the hours that it wrote: only their folders are listed, however
        # many the archive has.
        hours = Observation()
        places = F.collect_set(F.struct(*PARTITIONS)).alias("places")
        writer = clicks.observe(hours, places).write.mode("append")
        writer = writer.option("mapreduce.output.basename", attempt)
        writer.partitionBy(*PARTITIONS).parquet(self._root)
        found = [
            one
            for date, hour in hours.get["places"]
            for one in files.list(f"{self._root}/date={date}/hour={hour}")
            if one.name.startswith(prefix)
        ]
        written = [one for one in found if one.name.startswith(attempt)]
        return written, [one for one in found if not one.name.startswith(attempt)]


def _delete(files: HadoopFiles, left: list[FileStatus], log: ArchiveLog) -> None:
    """Delete those of the files that do not count."""
    live = {one.uri for one in log.read().files} if left else set()
    for one in left:
        if one.uri not in live:
            files.delete(files.path_of(one.uri))


def query_id(spark: SparkSession, what: str) -> str:
    """The id of the streaming query, which its checkpoint keeps.

    Raises:
        RuntimeError: the caller is not a streaming query.
    """
    found: str | None = spark.sparkContext.getLocalProperty(_QUERY_ID)
    if not found:
        raise RuntimeError(f"{what} can only be written by foreachBatch of a streaming query")
    return found


def frame(spark: SparkSession, root: str) -> DataFrame:
    """The archived clicks of a folder: ARCHIVE_COLUMNS, date DATE and hour INT.

    No rows before the first batch.
    """
    schema = spark_schema()
    if ArchiveLog(HadoopFiles(spark), root).read().files:
        return spark.read.schema(schema).parquet(root)
    return spark.createDataFrame([], schema)


def spark_schema() -> StructType:
    """ARCHIVE_SCHEMA with Spark's types."""
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - reading needs no Spark

    return from_arrow_schema(ARCHIVE_SCHEMA)


def committed_files(directory: Path) -> list[Path]:
    """The files that count, of an archive on a local disk."""
    log = directory / METADATA
    names = [path.name for path in log.glob("[0-9]*")] if log.is_dir() else []
    return [
        Path(unquote(urlsplit(file.uri).path))
        for name in parts_of(names)
        for file in decoded((log / name).read_bytes())
    ]


def read(folders: Folders) -> pa.Table:
    """The clicks of an archive on a local disk, columns of READ_SCHEMA."""
    tables = [READ_SCHEMA.empty_table()]
    for path in committed_files(folders.archive):
        found = pq.read_table(path, columns=READ_SCHEMA.names, partitioning=None)
        tables.append(found.cast(READ_SCHEMA))
    return pa.concat_tables(tables)
