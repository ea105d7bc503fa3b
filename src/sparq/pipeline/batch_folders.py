"""What a batch writes, in a folder of its number: a batch that is run again replaces it.

    <place>/batch=12/part-00000-*.parquet    written by executors
    <place>/batch=12/_SUCCESS                comes last; a folder without it does not count

So whatever is killed wherever, the rows of a batch count once. A reader takes whole folders.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparq.pipeline.hadoop_files import HadoopFiles

MARK = "_SUCCESS"
COMPRESSION = "zstd"


def folder_of(place: str, batch_id: int) -> str:
    """The folder of one batch; Spark and Arrow read its number as a column `batch`."""
    return f"{place}/batch={batch_id}"


def write(rows: DataFrame, place: str, batch_id: int) -> None:
    """Put a batch's rows into its folder, in place of what an earlier attempt put there."""
    writer = rows.write.mode("overwrite").option("compression", COMPRESSION)
    writer.parquet(folder_of(place, batch_id))


def discard(files: HadoopFiles, place: str, batch_id: int) -> None:
    """Remove what an earlier attempt at a batch left that now has no rows."""
    files.delete_tree(folder_of(place, batch_id))


def frame(spark: SparkSession, files: HadoopFiles, place: str, ddl: str) -> DataFrame:
    """All rows of a place, with these columns; none before the first batch."""
    marks = files.glob(f"{place}/batch=*/{MARK}")
    if not marks:
        return spark.createDataFrame([], ddl)
    folders = [mark.removesuffix(f"/{MARK}") for mark in marks]
    return spark.read.schema(ddl).parquet(*folders)


def local_rows(directory: Path, schema: pa.Schema) -> pa.Table:
    """All rows of a place on a local disk, with these columns; none before the first batch."""
    folders = sorted(mark.parent for mark in directory.glob(f"batch=*/{MARK}"))
    files = [file for folder in folders for file in sorted(folder.glob("part-*.parquet"))]
    tables = [pq.read_table(file, columns=schema.names, partitioning=None) for file in files]
    return pa.concat_tables([schema.empty_table(), *(table.cast(schema) for table in tables)])
