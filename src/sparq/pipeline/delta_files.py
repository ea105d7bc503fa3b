"""The data files of a Delta table of clicks; executors write them, a file for each hour.

    date=2026-03-02/hour=10/<query>-<batch>-<random>.parquet    the columns without date and hour

`write_hours` and `merge_files` run in `mapInArrow`. For each file they return one row with the
facts that the table's log needs; nothing else leaves the executor.

1. A file does not count before the driver's commit names it. Names are random, so files of a
   killed, repeated or speculative task are never mistaken for another task's files.
2. Days and hours are those of the event time in UTC, whatever the session's time zone is.
3. At most BUFFER_BYTES of clicks are buffered, and one file is open, however many hours there are.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from sparq.pipeline.archive import FILE_SCHEMA
from sparq.pipeline.delta_place import TablePlace

BUFFER_BYTES = 128 << 20
COMPRESSION = "zstd"

# Columns with minimum and maximum in the log: readers of a time or an index range skip files.
BOUNDED = ("index", "timestamp", "time")

ADDED_SCHEMA = pa.schema(
    [
        ("path", pa.string()),  # relative to the table's folder
        ("bytes", pa.int64()),
        ("date", pa.string()),
        ("hour", pa.string()),
        ("modified_ms", pa.int64()),  # ms since 1970
        ("stats", pa.string()),  # JSON, as in a Delta log
    ]
)
ADDED_DDL = "path STRING, bytes BIGINT, date STRING, hour STRING, modified_ms BIGINT, stats STRING"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR_MICROS = 3_600_000_000


def write_hours(
    batches: Iterable[pa.RecordBatch],
    place: TablePlace,
    prefix: str,
    buffer_bytes: int = BUFFER_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Write clicks into files, one file per hour.

    Args:
        batches: rows with the columns of FILE_SCHEMA, readable clicks: `time` is never null.
        place: the table.
        prefix: prefix of the files' names.
        buffer_bytes: after this many bytes of clicks of any hours, new files begin.
    Returns:
        Rows of ADDED_SCHEMA, one per file.
    """
    files = place.files()
    for clicks in _gathered(batches, buffer_bytes):
        added = [_write(files, hour, part, prefix) for hour, part in by_hour(clicks)]
        yield pa.RecordBatch.from_pylist(added, ADDED_SCHEMA)


def _gathered(batches: Iterable[pa.RecordBatch], bytes_max: int) -> Iterator[pa.Table]:
    """The batches of a partition as few tables, each closed once it reaches `bytes_max` bytes."""
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        held.append(batch)
        held_bytes += batch.nbytes
        if held_bytes >= bytes_max:
            yield pa.Table.from_batches(held)
            held, held_bytes = [], 0
    if held:
        yield pa.Table.from_batches(held)


def by_hour(clicks: pa.Table) -> Iterator[tuple[datetime, pa.Table]]:
    """The start of each hour and its clicks, in their order."""
    clicks = clicks.select(FILE_SCHEMA.names).cast(FILE_SCHEMA)
    micros = clicks["time"].combine_chunks().cast(pa.int64())
    hours = micros.to_numpy(zero_copy_only=False) // _HOUR_MICROS
    if (hours[1:] < hours[:-1]).any():
        order = np.argsort(hours, kind="stable")
        clicks, hours = clicks.take(pa.array(order)), hours[order]
    found, starts = np.unique(hours, return_index=True)
    for hour, start, end in zip(found, starts, [*starts[1:], len(hours)], strict=True):
        yield _EPOCH + timedelta(hours=int(hour)), clicks.slice(start, end - start)


def _write(files: FileSystem, hour: datetime, clicks: pa.Table, prefix: str) -> dict[str, Any]:
    folder = f"date={hour:%Y-%m-%d}/hour={hour.hour}"
    return _written(files, folder, prefix, FILE_SCHEMA, [clicks])


def merge_files(
    place: TablePlace,
    paths: Iterable[str],
    schema: pa.Schema,
    prefix: str,
    buffer_bytes: int = BUFFER_BYTES,
) -> pa.RecordBatch:
    """Merge the clicks of some files of one hour into a new file.

    Args:
        place: the table.
        paths: the files, relative to the table's folder.
        schema: the table's columns without date and hour; columns that a file lacks become null.
        prefix: prefix of the new file's name.
        buffer_bytes: approximate size of the clicks that are buffered, in bytes.
    Returns:
        A row of ADDED_SCHEMA.
    """
    files, paths = place.files(), list(paths)
    clicks = _gathered(_read(files, paths, schema), buffer_bytes)
    folder = paths[0].rpartition("/")[0]
    return pa.RecordBatch.from_pylist(
        [_written(files, folder, prefix, schema, clicks)], ADDED_SCHEMA
    )


def _read(files: FileSystem, paths: Iterable[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for path in paths:
        with files.open_input_file(path) as stream:
            for batch in pq.ParquetFile(stream).iter_batches():
                found = set(batch.schema.names)
                columns = [
                    batch[field.name].cast(field.type)
                    if field.name in found
                    else pa.nulls(len(batch), field.type)
                    for field in schema
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _written(
    files: FileSystem, folder: str, prefix: str, schema: pa.Schema, clicks: Iterable[pa.Table]
) -> dict[str, Any]:
    """Write one file; returns its row of ADDED_SCHEMA."""
    path = f"{folder}/{prefix}{uuid.uuid4().hex[:16]}.parquet"
    stats = Stats()
    with files.open_output_stream(path) as stream:
        # Readers use the table's types, so the file need not repeat Arrow's. The file is passed to
        # Arrow's Parquet writer because that writes bytes; `stream.write` would pass Arrow buffers,
        # which `deltalake` does not accept.
        with pq.ParquetWriter(stream, schema, compression=COMPRESSION, store_schema=False) as file:
            for table in clicks:
                file.write_table(table)
                stats.add(table)
        size = stream.tell()
    return {
        "path": path,
        "bytes": size,
        **partition_of(folder),
        "modified_ms": time.time_ns() // 1_000_000,
        "stats": stats.text(),
    }


def partition_of(folder: str) -> dict[str, str]:
    """`date` and `hour` of a folder such as `date=2026-03-02/hour=10`."""
    return dict(part.split("=", 1) for part in folder.split("/"))


class Stats:
    """Statistics of a file for the Delta log: number of rows, and bounds of BOUNDED columns."""

    def __init__(self) -> None:
        self._rows = 0
        self._nulls = dict.fromkeys(BOUNDED, 0)
        self._ends: dict[str, tuple[int, int]] = {}

    def add(self, clicks: pa.Table) -> None:
        """Add some of the file's rows."""
        self._rows += len(clicks)
        for name in BOUNDED:
            column = clicks[name]
            self._nulls[name] += column.null_count
            if column.null_count < len(column):
                ends = pc.min_max(column.cast(pa.int64())).as_py()
                least, most = self._ends.get(name, (ends["min"], ends["max"]))
                self._ends[name] = min(least, ends["min"]), max(most, ends["max"])

    def text(self) -> str:
        """The statistics as JSON, in the form of the log."""
        shown = {
            name: [
                _as_text(end) if pa.types.is_timestamp(FILE_SCHEMA.field(name).type) else end
                for end in ends
            ]
            for name, ends in self._ends.items()
        }
        known = {
            "numRecords": self._rows,
            "minValues": {name: ends[0] for name, ends in shown.items()},
            "maxValues": {name: ends[1] for name, ends in shown.items()},
            "nullCount": self._nulls,
        }
        return json.dumps(known, separators=(",", ":"))


def _as_text(micros: int) -> str:
    return f"{_EPOCH + timedelta(microseconds=micros):%Y-%m-%dT%H:%M:%S.%fZ}"
