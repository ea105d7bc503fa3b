"""Tables: each row once after repeats and kills, several tables in one pass, readable by others."""

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

from sparq.options.mistakes import Mistake
from sparq.pipeline import maintenance, tables
from sparq.pipeline.storage import TablePlace
from sparq.pipeline.tables import Table, Tables, files_of, rows_of, write_files
from tests.pipeline.conftest import QUERY
from tests.pipeline.report.sample_tables import add
from tests.pipeline.stored import put

AT = datetime(2026, 3, 2, 23, 59, 59, 999_999, tzinfo=UTC)
TIME = pa.field("time", pa.timestamp("us", "UTC"))
ODD = Table("odd", pa.schema([("index", pa.int64()), TIME]), "time")
ALL = Table("all", pa.schema([("index", pa.int64()), TIME, ("body", pa.binary())]), "time")


def split(batches):
    """Every message is in `all`, and those with an odd index also in `odd`."""
    for batch in batches:
        rows = pa.table(batch).rename_columns({"timestamp": "time"})
        is_odd = pc.bit_wise_and(rows["index"], 1).cast(pa.bool_())
        yield {"odd": rows.filter(is_odd), "all": rows}


def tables_of(spark, folder):
    return Tables(spark, str(folder), [ODD, ALL])


def indexes(folder, name):
    """The sorted indexes in a table."""
    return sorted(DeltaTable(folder / name).to_pyarrow_table()["index"].to_pylist())


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*.parquet")}


def test_one_pass_writes_several_tables(spark, query, batches, tmp_path):
    """A batch is one commit of each table, and both read the same in Spark and in `deltalake`."""
    folder = tmp_path / "some data"
    written = tables_of(spark, folder)
    for number, batch in enumerate(batches):
        found = put(written, batch, number, split)

        assert {"odd": 100, "all": 200} == {
            name: sum(one.rows for one in some) for name, some in found.items()
        }
        table = DeltaTable(folder / "all")
        assert (number + 1, number) == (table.version(), table.transaction_version(QUERY))
    frame = tables.read(spark, str(folder), "all")

    assert list(range(600)) == indexes(folder, "all")
    assert list(range(1, 600, 2)) == indexes(folder, "odd")
    assert list(range(600)) == sorted(row["index"] for row in frame.collect())
    assert ["index", "time", "body", "date"] == frame.columns
    assert 600 == frame.where(F.to_date("time") == F.col("date")).count()
    paths = [one.path for one in found["odd"]]
    last = rows_of(written.opened["odd"].place, ODD.schema, paths).to_table()
    assert list(range(401, 600, 2)) == sorted(last["index"].to_pylist())


def test_a_repeated_batch_changes_nothing(spark, query, batches, tmp_path):
    """A repeated batch writes no file, and is answered like the first time; so is an empty one.

    With `always` it is executed, and the files that it writes do not count.
    """
    for number, batch in enumerate([*batches, batches[0].where("false")]):
        first = put(tables_of(spark, tmp_path), batch, number, split)
        before = files(tmp_path)

        assert first == put(tables_of(spark, tmp_path), batch, number, split)
        assert before == files(tmp_path)
    assert {"odd": [], "all": []} == first
    put(tables_of(spark, tmp_path), batches[0], 0, split, always=True)
    assert before < files(tmp_path)
    assert list(range(600)) == indexes(tmp_path, "all")


def test_a_batch_of_which_a_table_is_missing_is_completed(
    spark, query, batches, tmp_path, monkeypatch
):
    """A driver that dies between the commits of two tables leaves a batch that is completed."""
    transact = tables.transact

    def killed(table, *rest):
        if table.metadata().name == "all":
            raise KeyboardInterrupt
        transact(table, *rest)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(tables, "transact", killed)
        put(tables_of(spark, tmp_path), batches[0], 0, split)
    assert ([], 100) == (indexes(tmp_path, "all"), len(indexes(tmp_path, "odd")))
    put(tables_of(spark, tmp_path), batches[0], 0, split)

    assert list(range(200)) == indexes(tmp_path, "all")
    assert list(range(1, 200, 2)) == indexes(tmp_path, "odd")


def between_files_and_commit(monkeypatch, do):
    """Call `do` once when a batch's files are written, before its first commit."""
    transact = tables.transact

    def committed(*arguments):
        monkeypatch.setattr(tables, "transact", transact)
        do()
        transact(*arguments)

    monkeypatch.setattr(tables, "transact", committed)


def test_of_two_drivers_with_the_same_batch_one_commits(
    spark, query, batches, tmp_path, monkeypatch
):
    """Of two drivers that write one batch, the second to commit adds nothing, however late."""
    living, dead = tables_of(spark, tmp_path), tables_of(spark, tmp_path)

    def go_on():
        for number, batch in enumerate(batches):
            put(living, batch, number, split)

    between_files_and_commit(monkeypatch, go_on)
    put(dead, batches[0], 0, split)

    assert list(range(600)) == indexes(tmp_path, "all")
    assert list(range(1, 600, 2)) == indexes(tmp_path, "odd")
    assert 2 == DeltaTable(tmp_path / "all").transaction_version(QUERY)


def test_a_repeat_is_found_when_old_commits_are_gone(spark, query, batches, tmp_path, monkeypatch):
    """The log's checkpoints keep the number of a query's last batch.

    Another query, of a new checkpoint, has batches of the same numbers, which are no repeats.
    """
    monkeypatch.setitem(tables.PROPERTIES, "delta.checkpointInterval", "2")
    monkeypatch.setitem(tables.PROPERTIES, "delta.logRetentionDuration", "interval 0 seconds")
    written = tables_of(spark, tmp_path)
    put(written, batches[0], 0, split)
    query("22222222-bbbb")
    for number in range(5):
        put(written, batches[1], number, split)
    query(QUERY)
    maintenance.Maintenance(written).between_batches(spark)
    assert not (tmp_path / "all" / "_delta_log" / f"{1:020}.json").exists()
    put(tables_of(spark, tmp_path), batches[0], 0, split)

    assert 200 + 5 * 200 == len(indexes(tmp_path, "all"))


def test_tables_are_refused_outside_a_streaming_query(spark, batches, tmp_path):
    """Outside a streaming query nothing is written: repeats could not be found."""
    with pytest.raises(RuntimeError, match="only be written by foreachBatch of a streaming query"):
        put(tables_of(spark, tmp_path), batches[0], 0, split)


def test_a_dataset_filters_by_columns_without_bounds(tmp_path):
    """`deltalake` must not take bounds that a file does not have for null ones."""
    table = Table("all", pa.schema([TIME, ("page", pa.string())]), "time")
    rows = pa.table({"time": [datetime(2026, 3, 2, tzinfo=UTC)] * 2, "page": ["/", "/a"]})
    add(TablePlace(str(tmp_path)), [table], [{"all": rows}])
    found = DeltaTable(tmp_path / "all").to_pyarrow_dataset()

    assert 1 == found.count_rows(filter=pc.field("page") == "/a")


def test_a_column_can_be_added_later(spark, query, batches, tmp_path):
    """Rows that are older than a column have null in it, also after a merge of their files."""
    grown = Table("all", ALL.schema.append(pa.field("more", pa.string())), "time")

    def with_more(batches):
        for parts in split(batches):
            yield {"all": parts["all"].append_column("more", pa.array(["x"] * len(parts["all"])))}

    put(tables_of(spark, tmp_path), batches[0], 0, split)
    put(Tables(spark, str(tmp_path), [grown]), batches[1], 1, with_more)
    put(tables_of(spark, tmp_path), batches[2], 2, split)
    more = tables.read(spark, str(tmp_path), "all").groupBy("more").count().collect()

    assert {None: 400, "x": 200} == {row["more"]: row["count"] for row in more}
    table = Tables(spark, str(tmp_path), [grown]).opened["all"]
    assert maintenance.merge(spark, table, files_of(table.delta))
    assert 400 == table.delta.to_pyarrow_table()["more"].null_count


@pytest.mark.parametrize(
    ("index", "by", "sentence"),
    [
        (
            pa.string(),
            ["date"],
            "column index has type string, not long: give the column another name",
        ),
        (
            pa.int64(),
            [],
            "it is not partitioned by date: name another folder",
        ),
    ],
)
def test_a_table_with_other_columns_or_partitions_is_refused(spark, tmp_path, index, by, sentence):
    """A table with another column type, or without partitions, is refused in one sentence."""
    schema = pa.schema([("index", index), TIME, ("date", pa.date32())])
    DeltaTable.create(str(tmp_path / "odd"), schema, partition_by=by)

    with pytest.raises(Mistake, match=sentence):
        Tables(spark, str(tmp_path), [ODD])


def written_files(folder, parts, size=1 << 20):
    """What is written of rows: rows of WRITTEN_DDL, in a list for each flush."""
    targets = {one.name: (one, TablePlace(str(folder / one.name))) for one in (ODD, ALL)}
    for name in targets:
        (folder / name).mkdir()
    batches = write_files(parts, targets, "x-", size)
    return [batch.to_pylist() for batch in batches]


def test_a_file_is_of_one_day_in_utc_and_has_statistics(tmp_path):
    """A day has its first and its last microsecond; rows keep their order.

    The log has number of rows, and bounds of times and indexes, never of texts.
    """
    shifts = [{"microseconds": 1}, {}, {"days": -1}, {}, {"hours": -1}]
    times = pa.array([AT + timedelta(**shift) for shift in shifts], TIME.type)
    rows = pa.table({"index": [0, 1, 2, None, 4], "time": times, "body": [b"a"] * 5})
    (found,) = written_files(tmp_path, [{"all": rows}, {"odd": rows.slice(0, 0)}])
    indexes = {
        one["path"][:15]: pq.read_table(tmp_path / "all" / one["path"])["index"].to_pylist()
        for one in found
    }
    (file,) = [one for one in found if one["path"].startswith("date=2026-03-02")]

    assert indexes == {
        "date=2026-03-01": [2], "date=2026-03-02": [1, None, 4], "date=2026-03-03": [0],
    }  # fmt: skip
    assert {
        "numRecords": 3,
        "minValues": {"index": 1, "time": "2026-03-02T22:59:59.999999Z"},
        "maxValues": {"index": 4, "time": "2026-03-02T23:59:59.999999Z"},
        "nullCount": {"index": 1, "time": 0},
    } == json.loads(file["stats"])
    assert (tmp_path / "all" / file["path"]).stat().st_size == file["bytes"]


def test_files_are_cut_by_their_size(tmp_path):
    """After `size` bytes of rows of any table new files begin."""
    rows = pa.table({"index": [1], "time": pa.array([AT], TIME.type), "body": [b"x" * 1000]})
    parts = [{"all": rows}, {"odd": rows}, {"all": rows}, {"odd": rows.slice(0, 0)}]
    for size, expected in ((1 << 20, [["all", "odd"]]), (2_000, [["all", "odd"], ["all"]])):
        folder = tmp_path / str(size)
        folder.mkdir()
        written = written_files(folder, parts, size)

        assert expected == [[one["table"] for one in flush] for flush in written]
