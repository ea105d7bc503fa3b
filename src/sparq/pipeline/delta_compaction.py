"""Merges small files of a Delta table into large ones, an hour at a time, and deletes old files.

`compaction.due` chooses the hours, as for the Parquet archive. Executors merge the files of an
hour, and the driver commits the change.

1. The commit replaces the small files by the large ones at once and changes no rows, and is marked
   so in the log: readers that follow the table as a stream see nothing new. Writers that add files
   at the same time are not disturbed.
2. If two merges run at the same time, the second to commit is refused, since each commit has
   a transaction of MERGES. `deltalake`'s own `optimize.compact` drops such a transaction and lets
   two merges replace the same files (seen with 1.6.6), so their rows are in the table twice. It is
   therefore not used here, and must not be used on a table that a query writes.
3. If it is killed at any point, a merge has either taken effect or left files that do not count.
4. Files that do not count, replaced or left by a killed process, are deleted after `keep_s`. So
   neither a batch, from its first file to its commit, nor a reader may take longer than that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa

from sparq.pipeline.archive import PARTITIONS
from sparq.pipeline.compaction import Compacted, Sizes, due
from sparq.pipeline.delta_files import ADDED_DDL, merge_files, partition_of
from sparq.pipeline.delta_place import (
    AddAction,
    CommitFailedError,
    CommitProperties,
    DeltaTable,
    RemoveAction,
    TablePlace,
    Transaction,
)
from sparq.pipeline.hadoop_files import FileStatus

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

SIZES = Sizes(keep_s=86_400)
MERGES = "sparq merges"
"""Name of the application of all merges in the Delta log."""

CHECKS_PER_SETTLING = 20  # checks for due merges within `settle_s`
CLEAN_UPS_PER_KEEPING = 24  # clean-ups within `keep_s`

PREFIX = "merged-"


class DeltaCompaction:
    """Merges the files of one table.

    Args:
        place: the table.
        sizes: when files are merged.
    """

    def __init__(self, place: TablePlace, sizes: Sizes = SIZES) -> None:
        self._place = place
        self._sizes = sizes
        self._checked_ms: int | None = None
        self._cleaned_ms: int | None = None

    def between_batches(self, spark: SparkSession, table: DeltaTable, now_ms: int) -> int:
        """Merge files of one hour if due, and delete files that have not counted for `keep_s`.

        Most calls do nothing: hours are checked `CHECKS_PER_SETTLING` times within `settle_s`.

        Args:
            spark: the session whose executors merge.
            table: the table; it is updated to its newest version.
            now_ms: milliseconds since 1970.
        Returns:
            The number of replaced files.
        """
        pause_ms = self._sizes.settle_s * 1000 // CHECKS_PER_SETTLING
        if self._checked_ms is not None and now_ms < self._checked_ms + pause_ms:
            return 0
        self._checked_ms = now_ms
        removed = self._merge_next(spark, table, now_ms)
        pause_ms = self._sizes.keep_s * 1000 // CLEAN_UPS_PER_KEEPING
        if removed and (self._cleaned_ms is None or now_ms >= self._cleaned_ms + pause_ms):
            self._cleaned_ms = now_ms
            self._clean_up(table)
        return removed

    def all_due(self, spark: SparkSession, now_ms: int) -> Compacted:
        """Merge all files that are due, hour by hour; a query may write to the table meanwhile."""
        table = self._place.table()
        before = len(files_of(table))
        while self._merge_next(spark, table, now_ms):
            pass
        deleted = self._clean_up(table)
        return Compacted(before, len(files_of(table)), deleted)

    def _merge_next(self, spark: SparkSession, table: DeltaTable, now_ms: int) -> int:
        """Merge files of the first hour that is due; returns the number of replaced files."""
        table.update_incremental()
        chosen = next(iter(due(files_of(table), self._sizes, now_ms)), [])
        return merge(spark, self._place, table, chosen, self._sizes) if chosen else 0

    def _clean_up(self, table: DeltaTable) -> int:
        """Delete files that have not counted for `keep_s`; returns their number."""
        # An older version of the table does not contain the newest files.
        table.update_incremental()
        # `full`: also files that no commit has ever named, which killed processes left.
        deleted = table.vacuum(
            retention_hours=math.ceil(self._sizes.keep_s / 3600),
            dry_run=False,
            # Enforced, `deltalake` would refuse a `keep_s` that is shorter than the time in the
            # table's own properties.
            enforce_retention_duration=False,
            full=True,
        )
        return len(deleted)


def files_of(table: DeltaTable) -> list[FileStatus]:
    """The files that count; their addresses are relative to the table's folder."""
    actions = pa.table(table.get_add_actions(flatten=True))
    written = actions["modification_time"].cast(pa.timestamp("ms")).cast(pa.int64())
    columns = (actions["path"], actions["size_bytes"], written)
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return [FileStatus(unquote(path), size, modified) for path, size, modified in rows]


def merge(
    spark: SparkSession,
    place: TablePlace,
    table: DeltaTable,
    chosen: list[FileStatus],
    sizes: Sizes,
) -> int:
    """Merge some files of an hour on the executors, and commit the result.

    Args:
        spark: the session of the executors.
        place: the table.
        table: the table in the version in which the files were found.
        chosen: the files.
        sizes: the target size of merged files.
    Returns:
        The number of replaced files; 0 if another merge committed first.
    """
    groups = [[one.uri for one in group] for group in grouped(chosen, sizes.target_bytes)]
    known = pa.schema(table.schema().to_arrow())
    schema = pa.schema([field for field in known if field.name not in PARTITIONS])

    def merged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for at in batch["id"].to_pylist():
                yield merge_files(place, groups[at], schema, PREFIX)

    tasks = spark.range(0, len(groups), 1, len(groups))
    rows = tasks.mapInArrow(merged, ADDED_DDL).collect()
    added = [add_action(row, data_change=False) for row in rows]
    removed = [_remove_action(one) for group in groups for one in chosen if one.uri in group]
    transaction = Transaction(MERGES, table.version())
    try:
        table.create_write_transaction(
            [*added, *removed],
            mode="append",
            schema=table.schema(),
            partition_by=list(PARTITIONS),
            commit_properties=CommitProperties(app_transactions=[transaction]),
        )
    except CommitFailedError:
        # A merge by a driver presumed dead, or by `all_due`, has committed in between.
        return 0
    return len(removed)


def grouped(chosen: list[FileStatus], target_bytes: int) -> list[list[FileStatus]]:
    """Group files to be merged into one each: about `target_bytes`, or all if they are less.

    Files that would be alone are left out. `compaction.due` returns a small file first, so the
    first group has at least two.
    """
    in_all = sum(one.size for one in chosen)
    share = in_all / max(1, in_all // target_bytes)
    groups: list[list[FileStatus]] = [[]]
    held = 0
    for one in chosen:
        groups[-1].append(one)
        held += one.size
        if held >= share * len(groups):
            groups.append([])
    return [group for group in groups if len(group) > 1]


def add_action(row: Row, data_change: bool = True) -> AddAction:
    """The log's entry for a file, given the row of ADDED_SCHEMA from its writer."""
    partition = {name: row[name] for name in PARTITIONS}
    return AddAction(row.path, row.bytes, partition, row.modified_ms, data_change, row.stats)


def _remove_action(file: FileStatus) -> RemoveAction:
    return RemoveAction(
        path=file.uri,
        size=file.size,
        partition_values=partition_of(file.directory),
        deletion_timestamp=time.time_ns() // 1_000_000,
        data_change=False,
    )
