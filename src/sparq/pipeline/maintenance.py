"""Maintenance of tables: merging small files, retention, and deleting files that do not count.

A query does this for its tables between two batches; executors merge, the driver commits.

1. A merge replaces small files by a large one in one commit, marked as one that changes no rows:
   readers that follow a table as a stream see nothing new. A table of partial rows is summed up by
   it (`Table.summed`). Writers that add files at the same time are not disturbed.
2. A merge is bounded (`MERGE_BYTES`), so it delays the next batch by seconds at most. A file is
   merged with others of its size, so it is rewritten a few times, however many batches there are,
   and a day that is written to has at most FAN files of each size.
3. If two merges run at the same time, the second to commit is refused, since each commit has
   a transaction of MERGES. `deltalake`'s own `optimize.compact` drops such a transaction and lets
   two merges replace the same files (seen with 1.6.6), so their rows are in the table twice. It is
   therefore not used here, and must not be used on a table that a query writes.
4. If it is killed at any point, a merge has either taken effect or left files that do not count.
5. Replaced files are deleted after KEEP_S, files that no commit has ever named after ORPHANS_S. So
   a batch, from its first file to its commit, may take no longer than that.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from sparq.pipeline.tables import (
    DAY,
    KEEP_S,
    WRITTEN_DDL,
    OpenTable,
    TableFile,
    Tables,
    add_action,
    files_of,
    rows_of,
    schema_of,
    transact,
    write_rows,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparq.pipeline.storage import TablePlace

MERGES = "sparq merges"
"""Name of the application of all merges in the Delta log."""

PREFIX = "merged-"
OPEN = "open-"
"""Prefix of the names of files with rows that the next start removes (`spam_analysis`)."""

FAN = 16
MIB = 1 << 20
MERGE_BYTES, SUMMED_MERGE_BYTES = 128 * MIB, 32 * MIB
"""Maximum size of the files of one merge, and of one that sums up rows: these are held in memory,
where the hashes of a minute's visitors take about ten times their size."""

SETTLED_S = 600
"""A day without a new file for this time is merged into one file, or a few large ones."""

CHECK_S, CLEAN_S, ORPHANS_S = 10, 60, 86_400


class Maintenance:
    """Maintains the tables of one query; `keep_days` before today are kept (0: all)."""

    def __init__(self, tables: Tables, keep_days: int = 0) -> None:
        self._tables = tables
        self._keep_days = keep_days
        self._checked_s = self._cleaned_s = self._swept_s = 0.0
        # Files that no longer count, oldest first, and when they were replaced: Delta's vacuum
        # forgets them at the log's next checkpoint. After a restart the sweep deletes them.
        self._replaced: deque[tuple[float, str, list[str]]] = deque()

    def between_batches(self, spark: SparkSession, now_s: float | None = None) -> None:
        """Merge files of one day of each table if due; delete what is old; mostly do nothing."""
        now_s = time.time() if now_s is None else now_s
        if now_s < self._checked_s + CHECK_S:
            return
        self._checked_s = now_s
        for name, table in self._tables.opened.items():
            table.delta.update_incremental()
            limit = MERGE_BYTES if table.definition.summed is None else SUMMED_MERGE_BYTES
            chosen = next(due(files_of(table.delta), limit, now_s), [])
            if chosen and merge(spark, table, chosen):
                self._replaced.append((now_s, name, [one.path for one in chosen]))
        if now_s >= self._cleaned_s + CLEAN_S:
            self._clean(now_s)

    def _clean(self, now_s: float) -> None:
        self._cleaned_s = now_s
        for name, table in self._tables.opened.items():
            if self._keep_days:
                day = datetime.fromtimestamp(now_s, UTC).date() - timedelta(days=self._keep_days)
                self._replaced.append((now_s, name, drop_days(table.delta, day.isoformat())))
        while self._replaced and self._replaced[0][0] <= now_s - KEEP_S:
            _, name, paths = self._replaced.popleft()
            files = self._tables.opened[name].place.files()
            for path in paths:
                with suppress(FileNotFoundError):
                    files.delete_file(path)
        if now_s >= self._swept_s + ORPHANS_S:
            self._swept_s = now_s
            hours = ORPHANS_S // 3600
            for _, _, delta in self._tables.opened.values():
                delta.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)
                delta.update_incremental()


def due(files: Iterable[TableFile], limit: int, now_s: float) -> Iterator[list[TableFile]]:
    """Files to merge into one, for each day that has some; two or more each time.

    All files of a merge have at most `limit` bytes, unless they are only two; files of a quarter of
    it are large enough. Files of OPEN are left alone: they may be those of a query that reads
    something else, and whose next start removes them.
    """
    small = [one for one in files if one.size < limit // 4 and not one.name.startswith(OPEN)]
    small.sort(key=lambda one: one.day)
    for _, day in groupby(small, lambda one: one.day):
        chosen = sorted(day, key=lambda one: one.size)
        if now_s - max(one.modified_ms for one in chosen) / 1000 < SETTLED_S:
            chosen = _crowded(chosen)
        fitting = sum(total <= limit for total in accumulate(one.size for one in chosen))
        if len(chosen) > 1:
            yield chosen[: max(2, fitting)]


def _crowded(ordered: Sequence[TableFile]) -> list[TableFile]:
    """The smallest files up to the last size of which there are FAN; sizes in powers of 8."""
    found = at = 0
    for _, some in groupby(ordered, lambda one: (one.size >> 14).bit_length() // 3):
        count = len(list(some))
        at += count
        if count >= FAN:
            found = at
    return list(ordered[:found])


def merge(spark: SparkSession, table: OpenTable, chosen: list[TableFile]) -> bool:
    """Merge some files of a day on an executor; false if another merge committed first."""
    place, summed = table.place, table.definition.summed
    schema, paths = schema_of(table.delta), [one.path for one in chosen]

    def merged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            if summed is None:
                written = rewrite(place, schema, paths)
            else:
                rows = summed(rows_of(place, schema, paths).to_table())
                day = pa.array([datetime.fromisoformat(chosen[0].day).date()] * len(rows))
                rows = rows.append_column(DAY, day).select(schema.names).cast(schema)
                written = write_rows(place, rows, schema, PREFIX)
            yield pa.RecordBatch.from_pylist(written)

    found = spark.range(0, 1, 1, 1).mapInArrow(merged, WRITTEN_DDL).collect()
    added = [add_action(row.asDict(), data_change=False) for row in found]
    return replace_files(table.delta, chosen, added, data_change=False)


def rewrite(
    place: TablePlace,
    schema: pa.Schema,
    paths: Sequence[str],
    kept: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda rows: rows,
) -> list[dict[str, Any]]:
    """Write the rows of some files of one day into a new file; `kept` removes rows.

    Returns a row of WRITTEN_DDL, or none if no row is left.
    """
    name = paths[0].rpartition("/")[2]
    prefix = f"{name.rsplit('-', 2)[0]}-" if name.startswith(OPEN) else PREFIX
    rows = map(kept, rows_of(place, schema, paths).to_batches())
    return write_rows(place, rows, schema, prefix)


def replace_files(
    table: DeltaTable, old: Sequence[TableFile], new: Sequence[AddAction], *, data_change: bool
) -> bool:
    """Commit a change of files; false if an old one is gone, or another change came between."""
    if not {one.path for one in old} <= {one.path for one in files_of(table)}:
        return False
    removed = [remove_action(one, data_change=data_change) for one in old]
    try:
        transact(table, [*new, *removed], Transaction(MERGES, table.version()))
    except CommitFailedError:
        return False
    return True


def remove_action(file: TableFile, *, data_change: bool = True) -> RemoveAction:
    """The log's entry for a file that no longer counts."""
    return RemoveAction(
        path=file.path,
        size=file.size,
        partition_values={DAY.name: file.day},
        deletion_timestamp=time.time_ns() // 1_000_000,
        data_change=data_change,
    )


def drop_days(table: DeltaTable, first: str) -> list[str]:
    """Remove all rows before a day, such as `2026-03-02`; returns the files that are gone."""
    old = [one for one in files_of(table) if one.day < first]
    if not old or not replace_files(table, old, [], data_change=True):
        return []
    return [one.path for one in old]
