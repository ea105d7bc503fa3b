"""Select the archive's format: Parquet files, or a Delta table.

1. `deltalake` (the extra `sparq-mq[delta]`) is loaded only if an archive is a Delta table or is
   going to be one.
2. Readers find the format of a folder by its content. Writers are given the format, and refuse a
   folder that has the other one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sparq.pipeline import archive
from sparq.pipeline.settings import SettingsError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from sparq.pipeline.compaction import Sizes
    from sparq.pipeline.folders import Folders

DELTA = "delta"
DELTA_LOG = "_delta_log"


def check_packages(archive_format: str) -> None:
    """Check early whether this format can be written here.

    Raises:
        SettingsError: its package is missing, or is too old.
    """
    if archive_format == DELTA:
        try:
            import_module("sparq.pipeline.delta_place")
        except ImportError as error:
            raise SettingsError(f"--archive-format=delta: {error}") from error


def sink(
    spark: SparkSession, archive_format: str, root: str, sizes: Sizes | None
) -> Callable[[DataFrame, int], None]:
    """A function for foreachBatch: writes a batch of clicks into the archive.

    Args:
        spark: a session that can access the archive.
        archive_format: "parquet" or "delta".
        root: the archive's folder, a path or a URI of any Hadoop file system.
        sizes: when files are merged; None: never.
    Raises:
        SettingsError: a package is missing, or the folder holds an archive of the other format.
    """
    check_packages(archive_format)
    if archive_format != DELTA:
        if is_delta(spark, root):
            raise SettingsError(
                f"{root} holds a Delta table: use --archive-format=delta, or another --data"
            )
        return archive.ArchiveSink(root, sizes)
    delta = _delta()
    try:
        delta.refuse_parquet(spark, root)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    kept_s = delta.SIZES.keep_s
    found: Callable[[DataFrame, int], None] = delta.DeltaSink(
        root, sizes and replace(sizes, keep_s=kept_s)
    )
    return found


def is_delta(spark: SparkSession, root: str) -> bool:
    """Whether a folder holds a Delta table."""
    from sparq.pipeline.hadoop_files import HadoopFiles  # noqa: PLC0415 - reading needs no Spark

    return bool(HadoopFiles(spark).list(f"{root}/{DELTA_LOG}"))


def frame(spark: SparkSession, root: str) -> DataFrame:
    """The archived clicks of a folder: ARCHIVE_COLUMNS, date DATE and hour INT.

    No rows before the first batch.
    """
    if is_delta(spark, root):
        found: DataFrame = _delta().frame(spark, root)
        return found
    return archive.frame(spark, root)


def read(folders: Folders) -> pa.Table:
    """The clicks of an archive on a local disk, columns of READ_SCHEMA."""
    if (folders.archive / DELTA_LOG).is_dir():
        place = import_module("sparq.pipeline.delta_place")
        return _delta().read(place.TablePlace(str(folders.archive.absolute())))
    return archive.read(folders)


def _delta() -> Any:
    return import_module("sparq.pipeline.archive_delta")
