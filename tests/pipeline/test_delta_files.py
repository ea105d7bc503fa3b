"""The data files that an executor writes: one per hour, with statistics for the log."""

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparq.demo.generator import generate
from sparq.pipeline import clicks as click
from sparq.pipeline.archive import ARCHIVE_SCHEMA, FILE_SCHEMA
from sparq.pipeline.delta_files import (
    ADDED_DDL,
    ADDED_SCHEMA,
    Stats,
    by_hour,
    merge_files,
    partition_of,
    write_hours,
)
from sparq.pipeline.delta_place import TablePlace

AT = datetime(2026, 3, 2, 9, 59, 59, 999_999, tzinfo=UTC)


def clicks_of(lines, first=0):
    """Archived clicks as executors get them, in a time zone that is not UTC."""
    count = len(lines)
    messages = pa.table(
        {
            "id": [f"{first + at:016x}" for at in range(count)],
            "nsqd": ["a"] * count,
            "index": pa.array(range(first, first + count), pa.int64()),
            "timestamp": pa.array([AT] * count, pa.timestamp("us", "Asia/Kolkata")),
            "body": pa.array(lines, pa.binary()),
        }
    )
    parsed = click.parse_arrow(messages)
    time = parsed["time"].cast(pa.timestamp("us", "Asia/Kolkata"))
    parsed = parsed.set_column(parsed.schema.get_field_index("time"), "time", time)
    return parsed.filter(pa.compute.is_null(parsed["reason"])).select(FILE_SCHEMA.names)


@pytest.fixture
def clicks():
    """Clicks of several hours."""
    return clicks_of(generate(400, seed=9).lines)


def written(batches, tmp_path, **more):
    """The rows that `write_hours` returns."""
    rows = list(write_hours(batches, TablePlace(str(tmp_path)), "0a1b2c3d-7-", **more))
    return pa.Table.from_batches(rows, ADDED_SCHEMA).to_pylist()


def test_each_utc_hour_gets_one_file(clicks, tmp_path):
    """Each UTC hour gets one file with the table's types, whatever the session's time zone."""
    added = written(clicks.to_batches(max_chunksize=50), tmp_path)

    assert len({(row["date"], row["hour"]) for row in added}) == len(added) > 3
    tables = []
    for row in added:
        path = tmp_path / row["path"]
        folder = f"date={row['date']}/hour={row['hour']}"
        assert row["path"].startswith(f"{folder}/0a1b2c3d-7-")
        assert path.stat().st_size == row["bytes"]
        assert abs(path.stat().st_mtime * 1000 - row["modified_ms"]) < 60_000
        found = pq.read_table(path, partitioning=None)
        assert found.schema.equals(FILE_SCHEMA)
        hours = {f"date={one:%Y-%m-%d}/hour={one.hour}" for one in found["time"].to_pylist()}
        assert {folder} == hours
        tables.append(found)
    together = pa.concat_tables(tables).sort_by("index")
    assert together.equals(clicks.cast(FILE_SCHEMA).sort_by("index"))


def test_a_small_buffer_gives_several_files_per_hour(clicks, tmp_path):
    """With a small buffer an hour gets several files, without losing rows."""
    added = written(clicks.to_batches(max_chunksize=50), tmp_path, buffer_bytes=1)

    assert len(added) > len({(row["date"], row["hour"]) for row in added})
    assert sum(json.loads(row["stats"])["numRecords"] for row in added) == len(clicks)


def test_files_are_merged_in_pieces_of_a_buffer(clicks, tmp_path):
    """Files are merged in pieces of at most a buffer; a column that a file lacks becomes null."""
    added = written(clicks.to_batches(max_chunksize=50), tmp_path, buffer_bytes=1)
    folder = added[0]["path"].rpartition("/")[0]
    paths = [row["path"] for row in added if row["path"].startswith(f"{folder}/")]
    one = pq.read_table(tmp_path / paths[0], partitioning=None)
    pq.write_table(one.drop_columns(["body"]), tmp_path / paths[0])
    [row] = merge_files(TablePlace(str(tmp_path)), paths, FILE_SCHEMA, "merged-", 1).to_pylist()
    found = pq.read_table(tmp_path / row["path"], partitioning=None)
    parts = [pq.read_table(tmp_path / path, partitioning=None) for path in paths[1:]]

    assert len(paths) > 1
    assert found.schema.equals(FILE_SCHEMA)
    assert found.slice(len(one)).equals(pa.concat_tables(parts))
    assert [None] * len(one) == found["body"][: len(one)].to_pylist()
    assert len(found) == json.loads(row["stats"])["numRecords"]
    assert (tmp_path / row["path"]).stat().st_size == row["bytes"]
    assert {"date": row["date"], "hour": row["hour"]} == partition_of(folder)


def test_without_clicks_no_file_is_written(clicks, tmp_path):
    """Without clicks there is no file and no row."""
    assert [] == written([], tmp_path)
    assert [] == written(clicks.slice(0, 0).to_batches(), tmp_path)
    assert [] == list(tmp_path.rglob("*.parquet"))


def test_an_hour_has_its_first_and_last_microsecond():
    """An hour has its first and its last microsecond; clicks keep their order."""
    times = [AT + timedelta(microseconds=1), AT, AT + timedelta(hours=1), AT]
    clicks = clicks_of(generate(4, seed=2).lines[:4])
    count = len(clicks)
    column = pa.array(times[:count], pa.timestamp("us", "UTC"))
    clicks = clicks.set_column(FILE_SCHEMA.get_field_index("time"), "time", column)
    found = [(hour, part["index"].to_pylist()) for hour, part in by_hour(clicks)]

    nine, ten = AT.replace(minute=0, second=0, microsecond=0), AT + timedelta(microseconds=1)
    assert 4 == count
    assert [(nine, [1, 3]), (ten, [0, 2])] == found


def test_a_file_has_statistics_of_its_columns():
    """A file's statistics: number of rows, minima, maxima and nulls of index and times."""
    clicks = clicks_of(generate(4, seed=2).lines[:4]).cast(FILE_SCHEMA)
    times = pa.array([AT, AT, None, AT + timedelta(days=1)], pa.timestamp("us", "UTC"))
    clicks = clicks.set_column(FILE_SCHEMA.get_field_index("time"), "time", times)

    stats = Stats()
    stats.add(clicks.slice(2))
    stats.add(clicks.slice(0, 2))

    assert {
        "numRecords": 4,
        "minValues": {
            "index": 0,
            "timestamp": "2026-03-02T09:59:59.999999Z",
            "time": "2026-03-02T09:59:59.999999Z",
        },
        "maxValues": {
            "index": 3,
            "timestamp": "2026-03-02T09:59:59.999999Z",
            "time": "2026-03-03T09:59:59.999999Z",
        },
        "nullCount": {"index": 0, "timestamp": 0, "time": 1},
    } == json.loads(stats.text())


def test_ddl_and_arrow_schema_agree():
    """The DDL and the Arrow schema of the result agree; the table adds date and hour."""
    assert [part.split()[0] for part in ADDED_DDL.split(", ")] == ADDED_SCHEMA.names
    assert [*FILE_SCHEMA.names, "date", "hour"] == ARCHIVE_SCHEMA.names
