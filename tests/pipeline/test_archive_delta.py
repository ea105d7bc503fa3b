"""The archive as a Delta table: every readable click once, after repeats and kills."""

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import functions as F

from sparq.demo.generator import generate
from sparq.pipeline import archive, archive_delta
from sparq.pipeline.archive import ARCHIVE_SCHEMA
from sparq.pipeline.archive_delta import DeltaSink
from sparq.pipeline.compaction import Sizes
from sparq.pipeline.delta_compaction import DeltaCompaction
from sparq.pipeline.delta_place import TablePlace
from tests.pipeline.archived import QUERY, expected, ids
from tests.pipeline.delta_table import archived, live_files, parquet_files

NO_MERGES = None
MERGE_AT_ONCE = Sizes(settle_s=0, keep_s=86_400)
LATER_MS = 4 * 10**12  # long after everything that these tests write


def test_every_readable_click_is_stored_once_by_date_and_hour(spark, query, batches, tmp_path):
    """`deltalake` and Spark read the same clicks, also from a folder whose name is escaped."""
    root = tmp_path / "an archive"
    sink = DeltaSink(str(root), NO_MERGES)
    assert ids(archive_delta.frame(spark, str(root))) == []
    assert len(archive_delta.read(TablePlace(str(root)))) == 0
    for number, batch in enumerate(batches):
        sink(batch, number)

    frame = archive_delta.frame(spark, str(root))
    assert archived(root) == ids(frame) == expected(batches)
    assert frame.columns == [*archive.ARCHIVE_COLUMNS, "date", "hour"]
    wrong = frame.where((F.to_date("time") != F.col("date")) | (F.hour("time") != F.col("hour")))
    assert wrong.count() == 0
    table = archive_delta.read(TablePlace(str(root)))
    assert table.schema == archive.READ_SCHEMA
    assert sorted(table["id"].to_pylist()) == expected(batches)


def test_the_delta_archive_equals_the_parquet_archive(spark, query, batches, tmp_path):
    """The Delta archive has the same rows, columns and types as the Parquet archive."""
    parquet = archive.ArchiveSink(str(tmp_path / "parquet"), NO_MERGES)
    delta = DeltaSink(str(tmp_path / "delta"), NO_MERGES)
    for number, batch in enumerate(batches):
        parquet(batch, number)
        delta(batch, number)
    one = archive.frame(spark, str(tmp_path / "parquet"))
    two = archive_delta.frame(spark, str(tmp_path / "delta"))

    assert [(name, kind) for name, kind in one.dtypes] == two.dtypes
    assert one.orderBy("id").collect() == two.orderBy("id").collect()


def test_the_delta_table_has_schema_partitions_and_statistics(query, batches, tmp_path):
    """The table has its own schema, partitions, and statistics by which readers skip files."""
    sink = DeltaSink(str(tmp_path), NO_MERGES)
    for number, batch in enumerate(batches):
        sink(batch, number)
    table = DeltaTable(tmp_path)
    schema = pa.schema(table.schema().to_arrow())

    assert schema.names == ARCHIVE_SCHEMA.names
    assert table.metadata().partition_columns == ["date", "hour"]
    assert pa.table(table.get_add_actions(flatten=True))["num_records"].null_count == 0
    at = datetime(2026, 3, 2, 12, tzinfo=UTC)
    noon = table.to_pyarrow_table(filters=[("date", "=", at.date()), ("hour", "=", 12)])
    since = table.to_pyarrow_table(filters=[("time", ">=", at)])
    assert {12} == {time.hour for time in noon["time"].to_pylist()}
    assert len(noon) <= len(since) < len(archived(tmp_path))
    assert min(since["time"].to_pylist()) >= at


def test_a_batch_is_one_commit_with_its_number(query, batches, tmp_path):
    """Each batch is one commit; its transaction has the query's id and the batch's number."""
    sink = DeltaSink(str(tmp_path), NO_MERGES)
    for number, batch in enumerate(batches):
        sink(batch, number)

        table = DeltaTable(tmp_path)
        assert (number + 1, number) == (table.version(), table.transaction_version(QUERY))


def test_a_repeated_batch_changes_nothing(query, batches, tmp_path):
    """A repeated batch changes nothing, also with a new driver, or if the batch is empty."""
    empty = batches[0].where("false")
    sink = DeltaSink(str(tmp_path), NO_MERGES)
    for number, batch in enumerate([*batches, empty]):
        sink(batch, number)
        version, files = DeltaTable(tmp_path).version(), parquet_files(tmp_path)
        sink(batch, number)
        DeltaSink(str(tmp_path), NO_MERGES)(batch, number)
        assert (version, files) == (DeltaTable(tmp_path).version(), parquet_files(tmp_path))

    assert archived(tmp_path) == expected(batches)


def test_a_repeated_batch_is_detected_after_old_commits_are_deleted(query, batches, tmp_path):
    """A repeat is detected after old commits are deleted: checkpoints keep batch numbers."""
    root = str(tmp_path)
    kept = {"delta.checkpointInterval": "2", "delta.logRetentionDuration": "interval 0 seconds"}
    DeltaTable.create(root, ARCHIVE_SCHEMA, partition_by=["date", "hour"], configuration=kept)
    sink = DeltaSink(root, NO_MERGES)
    for number, batch in enumerate(batches):
        sink(batch, number)
    query("22222222-bbbb")
    for number in range(4):
        sink(batches[0], number)
    query(QUERY)
    commits = {path.name for path in (tmp_path / "_delta_log").glob("*.json")}
    assert f"{3:020}.json" not in commits
    DeltaSink(root, NO_MERGES)(batches[2], 2)

    assert archived(tmp_path) == sorted(expected(batches) + expected(batches[:1]) * 4)


def test_equal_batch_numbers_of_another_query_are_no_repeats(query, batches, tmp_path):
    """A new checkpoint starts at batch 0; its batches are not taken for the old query's."""
    sink = DeltaSink(str(tmp_path), NO_MERGES)
    sink(batches[0], 0)
    query("11111111-bbbb")
    sink(batches[1], 0)

    assert archived(tmp_path) == expected(batches[:2])


def test_files_of_a_killed_write_do_not_count(query, batches, tmp_path, monkeypatch):
    """Files of a killed write do not count and do not hinder the repeated batch."""
    sink = DeltaSink(str(tmp_path), NO_MERGES)
    sink(batches[0], 0)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(archive_delta, "_commit", killed)
        with pytest.raises(KeyboardInterrupt):
            sink(batches[1], 1)
    left = parquet_files(tmp_path) - live_files(tmp_path)
    assert left
    assert archived(tmp_path) == ids(batches[0])

    sink(batches[1], 1)
    assert archived(tmp_path) == expected(batches[:2])
    assert left == parquet_files(tmp_path) - live_files(tmp_path)


def between_files_and_commit(monkeypatch, sink, do):
    """Call `do` when a sink has written a batch's files, before it commits them."""
    write = sink._write

    def written(*arguments):
        added = write(*arguments)
        do()
        return added

    monkeypatch.setattr(sink, "_write", written)


def test_of_two_drivers_with_the_same_batch_one_commits(query, batches, tmp_path, monkeypatch):
    """Of two drivers that write the same batch, the second to commit adds nothing."""
    living, dead = (DeltaSink(str(tmp_path), NO_MERGES) for _ in range(2))
    dead(batches[0], 0)
    living(batches[0], 0)
    between_files_and_commit(monkeypatch, dead, lambda: living(batches[1], 1))
    dead(batches[1], 1)

    assert archived(tmp_path) == expected(batches[:2])
    assert 1 == DeltaTable(tmp_path).transaction_version(QUERY)


def test_a_late_commit_of_an_old_batch_adds_nothing(query, batches, tmp_path, monkeypatch):
    """A late commit of an old batch adds nothing; the newest batch number stays."""
    living, dead = (DeltaSink(str(tmp_path), NO_MERGES) for _ in range(2))

    def go_on():
        for number, batch in enumerate(batches):
            living(batch, number)

    between_files_and_commit(monkeypatch, dead, go_on)
    dead(batches[0], 0)

    assert archived(tmp_path) == expected(batches)
    assert 2 == DeltaTable(tmp_path).transaction_version(QUERY)


def test_a_concurrent_merge_and_query_do_not_disturb_a_batch(
    spark, query, batches, tmp_path, monkeypatch
):
    """A merge and another query's batch between a batch's files and its commit do no harm."""
    first, second = (DeltaSink(str(tmp_path), NO_MERGES) for _ in range(2))
    first(batches[0], 0)
    first(batches[0], 1)

    def others():
        query("22222222-bbbb")
        second(batches[2], 7)
        query(QUERY)
        merge = DeltaCompaction(TablePlace(str(tmp_path)), MERGE_AT_ONCE)
        assert merge.all_due(spark, LATER_MS).files_after < 2 * len(live_files(tmp_path))

    between_files_and_commit(monkeypatch, first, others)
    first(batches[1], 2)

    assert archived(tmp_path) == sorted(expected(batches) + expected(batches[:1]))


def test_rows_older_than_a_column_have_null_in_it(spark, query, batches, tmp_path):
    """Rows written before a column was added have null in it, also after a merge."""
    without = pa.schema([field for field in ARCHIVE_SCHEMA if field.name not in ("vhost", "body")])
    table = DeltaTable.create(str(tmp_path), without, partition_by=["date", "hour"])
    clicks = batches[0].drop("vhost", "body").toPandas()
    clicks["hour"] = clicks["hour"].astype("int32")
    rows = pa.Table.from_pandas(clicks, without, preserve_index=False)
    write_deltalake(table, rows, mode="append")
    sink = DeltaSink(str(tmp_path), MERGE_AT_ONCE)
    for number in range(2):
        sink(batches[1], number)
    DeltaCompaction(TablePlace(str(tmp_path)), MERGE_AT_ONCE).all_due(spark, LATER_MS)
    twice = sorted(expected(batches[:1]) + expected(batches[1:2]) * 2)

    assert {field.name for field in DeltaTable(tmp_path).schema().fields} == set(
        ARCHIVE_SCHEMA.names
    )
    assert archived(tmp_path) == twice
    frame = archive_delta.frame(spark, str(tmp_path))
    assert ids(frame) == twice
    assert len(clicks) == frame.where("body IS NULL").count()


def test_a_table_with_other_columns_or_partitions_is_refused(query, batches, tmp_path):
    """A table with another column type, or without partitions, raises ValueError."""
    other, flat = tmp_path / "other", tmp_path / "flat"
    changed = ARCHIVE_SCHEMA.set(
        ARCHIVE_SCHEMA.get_field_index("status"), pa.field("status", pa.string())
    )
    DeltaTable.create(str(other), changed, partition_by=["date", "hour"])
    DeltaTable.create(str(flat), ARCHIVE_SCHEMA)

    with pytest.raises(
        ValueError, match=r"column status of .*other has type string instead of integ"
    ):
        DeltaSink(str(other))(batches[0], 0)
    with pytest.raises(ValueError, match=r"flat is not partitioned by date and hour: name another"):
        DeltaSink(str(flat))(batches[0], 0)


def test_a_folder_with_a_parquet_archive_is_refused(query, batches, tmp_path):
    """A folder with a Parquet archive is refused and left unchanged."""
    archive.ArchiveSink(str(tmp_path), NO_MERGES)(batches[0], 0)
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(ValueError, match=r"holds a Parquet archive: use --archive-format=parquet"):
        DeltaSink(str(tmp_path))(batches[1], 1)
    assert before == sorted(tmp_path.rglob("*"))


def test_hours_are_utc_in_any_session_time_zone(spark, query, batches, tmp_path):
    """A session in another time zone writes the same rows to the same hours."""
    one, two = tmp_path / "one", tmp_path / "two"
    DeltaSink(str(one), NO_MERGES)(batches[0], 0)
    zone = "spark.sql.session.timeZone"
    before = spark.conf.get(zone)
    spark.conf.set(zone, "Asia/Kolkata")
    try:
        DeltaSink(str(two), NO_MERGES)(batches[0], 0)
    finally:
        spark.conf.set(zone, before)
    found = [
        DeltaTable(root).to_pyarrow_table(columns=["id", "time", "date", "hour"]).sort_by("id")
        for root in (one, two)
    ]

    assert found[0].equals(found[1])
    times, hours = (found[0][name].to_pylist() for name in ("time", "hour"))
    assert hours == [time.hour for time in times]


def test_a_column_without_values_has_nulls_of_its_type(query, messages, tmp_path):
    """A column without any value has nulls of its type, such as the common format's user agent."""
    line = b'192.0.2.1 - - [02/Mar/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 1'
    DeltaSink(str(tmp_path), NO_MERGES)(archive.archived(messages([line] * 3)), 0)
    table = DeltaTable(tmp_path).to_pyarrow_table()

    assert 3 == len(table) == table["user_agent"].null_count == table["vhost"].null_count
    assert [line] * 3 == table["body"].to_pylist()


def test_the_driver_gets_one_row_per_file(spark, query, batches, tmp_path, monkeypatch):
    """The driver gets one row per file, however many clicks the batch has."""
    sink = DeltaSink(str(tmp_path), NO_MERGES)
    rows = []
    between = sink._write

    def written(*arguments):
        added = between(*arguments)
        rows.append(len(added))
        return added

    monkeypatch.setattr(sink, "_write", written)
    one = batches[0].coalesce(1).cache()
    many = one
    for _ in range(5):
        many = many.union(many)
    sink(one, 0)
    sink(many.coalesce(1), 1)

    assert rows[0] == rows[1]
    assert len(archived(tmp_path)) == 33 * len(ids(one))
    one.unpersist()


def test_the_sink_is_refused_outside_a_streaming_query(spark, batches, tmp_path):
    """Outside a streaming query the sink is refused: it needs the id to find repeats."""
    with pytest.raises(
        RuntimeError, match="can only be written by foreachBatch of a streaming query"
    ):
        DeltaSink(str(tmp_path))(batches[0], 0)


def test_a_stream_that_repeats_its_last_batch_adds_no_duplicates(spark, messages, tmp_path):
    """A driver that dies between the table's commit and Spark's leaves no duplicates."""
    source, root, checkpoint = (tmp_path / name for name in ("in", "archive", "checkpoint"))
    lines = generate(300, seed=4).lines
    for at in range(0, 300, 100):
        messages(lines[at : at + 100], first=at).coalesce(1).write.parquet(str(source / f"{at}"))
    stream = (
        spark.readStream.schema(messages([b"x"]).schema)
        .option("maxFilesPerTrigger", 1).option("recursiveFileLookup", "true").parquet(str(source))
    )  # fmt: skip

    def run():
        sink = DeltaSink(str(root), MERGE_AT_ONCE)
        writer = archive.archived(stream).writeStream.foreachBatch(sink)
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        writer.start().awaitTermination()

    run()
    query = json.loads((checkpoint / "metadata").read_text())["id"]
    assert 2 == DeltaTable(root).transaction_version(query)
    assert archived(root) == ids(archive.archived(messages(lines)))
    for name in (checkpoint / "commits").glob("*2*"):
        name.unlink()
    run()

    assert archived(root) == ids(archive.archived(messages(lines)))
    assert not list(root.glob(f"date=*/hour=*/{query[:8]}-3-*"))
