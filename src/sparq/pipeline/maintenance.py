"""Maintenance of tables: merging small files, retention, and deleting files that do not count.

A query does this for its tables between two batches; executors merge, the driver commits. A merge
is bounded, and delays the next batch by seconds at most. A file is merged with others of its size:
it is rewritten a few times only, and a day that is written to has at most FAN files of each size.

Of two merges at the same time, the second to commit is refused, since each has a transaction of
MERGES. `deltalake`'s own `optimize.compact` has none and lets two merges replace the same files
(seen with 1.6.6), so their rows are in the table twice: never use it on a pipeline's table.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError

from sparq.pipeline.tables import (
    ID_CHARACTERS,
    KEEP_S,
    QUERY_ID,
    WRITTEN_DDL,
    OpenTable,
    TableFile,
    Tables,
    day_of,
    files_of,
    rows_of,
    schema_of,
    transact,
    with_day,
    write_rows,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparq.pipeline.storage import TablePlace

MERGES = "sparq merges"  # name of the application of all merges in the Delta log

PREFIX = "merged-"
OPEN = "open-"  # with rows that the next start removes (`spam_analysis`)
FAN = 16
MERGE_BYTES, SUMMED_MERGE_BYTES = 128 << 20, 32 << 20
"""Maximum size of the files of one merge, and of one that sums up rows: these are held in memory,
where the hashes of a minute's visitors take about ten times their size."""

SETTLED_S = 600  # a day without a new file for this time is merged into a few large ones
CHECK_S = 10
LEFT_S = 86_400  # how long other queries' files stay without a commit: a batch may be running


class Maintenance:
    """Maintains the tables of one query; `keep_days` before today are kept (0: all)."""

    def __init__(self, tables: Tables, keep_days: int = 0) -> None:
        self._tables, self._keep_days, self._checked_s = tables, keep_days, 0.0
        # Files that do not count, by table and path, and when they were first seen.
        self._unnamed: dict[tuple[str, str], float] = {}

    def between_batches(self, spark: SparkSession, now_s: float | None = None) -> None:
        """Every CHECK_S: merge files of one day of each table if due, and delete what is old."""
        now_s = time.time() if now_s is None else now_s
        if now_s < self._checked_s + CHECK_S:
            return
        self._checked_s, seen = now_s, {}
        query = spark.sparkContext.getLocalProperty(QUERY_ID) or ""
        own = (query[:ID_CHARACTERS], PREFIX, OPEN)
        first = datetime.fromtimestamp(now_s, UTC).date() - timedelta(days=self._keep_days)
        for name, table in self._tables.opened.items():
            definition, place, delta = table
            delta.update_incremental()
            limit = MERGE_BYTES if definition.summed is None else SUMMED_MERGE_BYTES
            if chosen := due(files_of(delta), limit, now_s):
                merge(spark, table, chosen)
            old = [one for one in files_of(delta) if day_of(one.path) < first.isoformat()]
            if self._keep_days and old:
                replace_files(delta, old, [], data_change=True)
            delta.cleanup_metadata()  # of the log
            for path in place.data_files().keys() - {one.path for one in files_of(delta)}:
                seen[name, path] = self._unnamed.get((name, path), now_s)
                stays_s = KEEP_S if path.rpartition("/")[2].startswith(own) else LEFT_S
                if seen[name, path] <= now_s - stays_s:
                    with suppress(FileNotFoundError):
                        place.files().delete_file(path)
        self._unnamed = seen


def due(files: Iterable[TableFile], limit: int, now_s: float) -> list[TableFile]:
    """Files of one day to merge into one: none, or two or more, of at most `limit` bytes if more.

    Files of OPEN are left alone: the next start of another query may remove them.
    """
    small = [one for one in files if one.size < limit // 4 and not one.name.startswith(OPEN)]
    small.sort(key=lambda one: (day_of(one.path), one.size))
    for _, day in groupby(small, lambda one: day_of(one.path)):
        chosen = list(day)
        if now_s - max(one.modified_ms for one in chosen) / 1000 < SETTLED_S:
            # Those up to the last size of which there are FAN; sizes in powers of 8.
            sizes = [(one.size >> 14).bit_length() // 3 for one in chosen]
            most = max((size for size, count in Counter(sizes).items() if count >= FAN), default=-1)
            chosen = chosen[: sum(size <= most for size in sizes)]
        if len(chosen) > 1:
            fitting = sum(total <= limit for total in accumulate(one.size for one in chosen))
            return chosen[: max(2, fitting)]
    return []


def merge(spark: SparkSession, table: OpenTable, chosen: list[TableFile]) -> bool:
    """Merge some files of a day on an executor; false if another merge committed first."""
    definition, place = table.definition, table.place
    schema, paths = schema_of(table.delta), [one.path for one in chosen]

    def change(rows: ds.Scanner) -> pa.Table | Iterable[pa.RecordBatch]:
        if definition.summed is None:
            return rows.to_batches()
        found = with_day(definition, definition.summed(rows.to_table()))
        return found.select(schema.names).cast(schema)

    def merged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pylist(rewrite(place, schema, paths, change))

    found = spark.range(0, 1, 1, 1).mapInArrow(merged, WRITTEN_DDL).collect()
    return replace_files(table.delta, chosen, [row.asDict() for row in found], data_change=False)


def rewrite(
    place: TablePlace,
    schema: pa.Schema,
    paths: Sequence[str],
    change: Callable[[ds.Scanner], pa.Table | Iterable[pa.RecordBatch]] = ds.Scanner.to_batches,
) -> list[dict[str, Any]]:
    """Write the rows of some files of one day, as `change` leaves them, into one or no file."""
    name = paths[0].rpartition("/")[2]
    prefix = f"{name.rsplit('-', 2)[0]}-" if name.startswith(OPEN) else PREFIX
    return write_rows(place, change(rows_of(place, schema, paths)), schema, prefix)


def replace_files(
    table: DeltaTable,
    old: Sequence[TableFile],
    written: Iterable[Mapping[str, Any]],
    *,
    data_change: bool,
) -> bool:
    """Commit files, rows of WRITTEN_DDL, in place of others; false if a change came between."""
    if not {one.path for one in old} <= {one.path for one in files_of(table)}:
        return False
    transaction = Transaction(MERGES, table.version())
    try:
        transact(table, transaction, written, old, data_change=data_change)
    except CommitFailedError:
        return False
    return True
