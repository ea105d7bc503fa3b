"""The archive: every readable click once, by date and hour, after repeats and kills."""

import pytest
from pyspark.sql import functions as F

from sparq.demo.generator import generate
from sparq.pipeline import archive, compaction
from sparq.pipeline.archive_log import ArchiveLog
from sparq.pipeline.folders import Folders
from tests.pipeline.archived import expected, ids

NO_MERGES = None
MERGE_AT_ONCE = compaction.Sizes(settle_s=0)


def parquet_files(root):
    """The names of all Parquet files in the folder, live or not."""
    return {path.name for path in root.rglob("*.parquet")}


def test_every_readable_click_is_stored_once_by_date_and_hour(spark, query, batches, tmp_path):
    """Plain Spark and sparq read the same clicks, also from a folder whose name is escaped."""
    root = tmp_path / "an archive"
    sink = archive.ArchiveSink(str(root), NO_MERGES)
    assert ids(archive.frame(spark, str(root))) == []
    for number, batch in enumerate(batches):
        sink(batch, number)

    plain = spark.read.parquet(str(root))
    assert ids(plain) == ids(archive.frame(spark, str(root))) == expected(batches)
    assert archive.frame(spark, str(root)).columns == [*archive.ARCHIVE_COLUMNS, "date", "hour"]
    wrong = plain.where((F.to_date("time") != F.col("date")) | (F.hour("time") != F.col("hour")))
    assert wrong.count() == 0
    first = plain.orderBy("index").first()
    assert (root / f"date={first.date}" / f"hour={first.hour:02}").is_dir()
    assert sorted(archive.read(Folders(tmp_path / "none"))["id"].to_pylist()) == []


def test_reading_without_spark_gives_the_same_clicks(spark, query, batches, tmp_path):
    """On a local disk, `archive.read` returns the same clicks without Spark."""
    folders = Folders(tmp_path)
    sink = archive.ArchiveSink(str(folders.archive), MERGE_AT_ONCE)
    for number, batch in enumerate(batches):
        sink(batch, number)

    table = archive.read(folders)
    assert table.schema == archive.READ_SCHEMA
    assert sorted(table["id"].to_pylist()) == expected(batches)


def test_a_repeated_batch_changes_nothing(spark, query, batches, tmp_path):
    """A repeated batch writes no files, also if older batches were merged, or if it is empty."""
    sink = archive.ArchiveSink(str(tmp_path), MERGE_AT_ONCE)
    empty = batches[0].where("false")
    for number, batch in enumerate([*batches, empty]):
        sink(batch, number)
        files = parquet_files(tmp_path)
        sink(batch, number)
        assert {name for name in files if not name.startswith("compacted-")} == {
            name for name in parquet_files(tmp_path) if not name.startswith("compacted-")
        }

    assert ids(spark.read.parquet(str(tmp_path))) == expected(batches)


def test_files_of_a_killed_write_do_not_count(spark, query, batches, tmp_path, monkeypatch):
    """Files of a killed write do not count, and are deleted when the batch is written again."""
    sink = archive.ArchiveSink(str(tmp_path), NO_MERGES)
    sink(batches[0], 0)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ArchiveLog, "commit", killed)
        with pytest.raises(KeyboardInterrupt):
            sink(batches[1], 1)
    left = parquet_files(tmp_path)
    assert ids(spark.read.parquet(str(tmp_path))) == ids(batches[0])

    sink(batches[1], 1)
    assert ids(spark.read.parquet(str(tmp_path))) == expected(batches[:2])
    live = {path.name for path in archive.committed_files(tmp_path)}
    assert parquet_files(tmp_path) == live
    assert left - live


def test_of_two_drivers_with_the_same_batch_one_commits(
    spark, query, batches, tmp_path, monkeypatch
):
    """Of two drivers that write a batch one commits; neither deletes files that may be live."""
    living, dead = (archive.ArchiveSink(str(tmp_path), NO_MERGES) for _ in range(2))

    def between_files_and_commit(sink, do):
        write = sink._write

        def written(*arguments):
            found = write(*arguments)
            do(*arguments)
            return found

        monkeypatch.setattr(sink, "_write", written)

    other = archive.ArchiveSink(str(tmp_path), NO_MERGES)
    between_files_and_commit(living, other._write)
    living(batches[0], 0)
    assert ids(spark.read.parquet(str(tmp_path))) == expected(batches[:1])

    between_files_and_commit(dead, lambda *_: living(batches[1], 1))
    with pytest.raises(FileExistsError):
        dead(batches[1], 1)
    assert ids(spark.read.parquet(str(tmp_path))) == expected(batches[:2])


def test_hours_are_utc_in_any_session_time_zone(spark, query, messages, tmp_path):
    """A session in another time zone writes the same rows to the same hours."""
    lines = generate(200, seed=3).lines
    zone = "spark.sql.session.timeZone"
    before = spark.conf.get(zone)
    found = []
    for number, name in enumerate((before, "Asia/Kolkata")):
        root = str(tmp_path / str(number))
        spark.conf.set(zone, name)
        try:
            archive.ArchiveSink(root, NO_MERGES)(archive.archived(messages(lines)), 0)
        finally:
            spark.conf.set(zone, before)
        told = F.to_date("time").alias("day"), F.hour("time").alias("hour_of_day")
        rows = archive.frame(spark, root).select("id", "date", "hour", *told)
        found.append(rows.orderBy("id").collect())

    assert found[0] == found[1]
    assert all((row.day, row.hour_of_day) == (row.date, row.hour) for row in found[0])


def test_equal_batch_numbers_of_another_query_are_no_repeats(spark, query, batches, tmp_path):
    """A new checkpoint starts at batch 0; its batches are not taken for the old query's."""
    sink = archive.ArchiveSink(str(tmp_path), NO_MERGES)
    sink(batches[0], 0)
    query("22222222-bbbb")
    sink(batches[1], 0)

    assert ids(spark.read.parquet(str(tmp_path))) == expected(batches[:2])


def test_the_sink_is_refused_outside_a_streaming_query(spark, batches, tmp_path):
    """Outside a streaming query the sink is refused: it needs the id to find repeats."""
    with pytest.raises(
        RuntimeError, match="can only be written by foreachBatch of a streaming query"
    ):
        archive.ArchiveSink(str(tmp_path))(batches[0], 0)


def test_a_stream_that_repeats_its_last_batch_adds_no_duplicates(spark, messages, tmp_path):
    """A driver that dies between the archive's commit and Spark's leaves no duplicates."""
    source, root, checkpoint = (tmp_path / name for name in ("in", "archive", "checkpoint"))
    lines = generate(300, seed=4).lines
    for at in range(0, 300, 100):
        messages(lines[at : at + 100], first=at).coalesce(1).write.parquet(str(source / f"{at}"))
    stream = (
        spark.readStream.schema(messages([b"x"]).schema)
        .option("maxFilesPerTrigger", 1).option("recursiveFileLookup", "true").parquet(str(source))
    )  # fmt: skip

    def run():
        sink = archive.ArchiveSink(str(root), MERGE_AT_ONCE)
        writer = archive.archived(stream).writeStream.foreachBatch(sink)
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        writer.start().awaitTermination()

    run()
    expected_ids = ids(archive.archived(messages(lines)))
    assert ids(spark.read.parquet(str(root))) == expected_ids
    before = archive.committed_files(root)
    for name in (checkpoint / "commits").glob("*2*"):
        name.unlink()
    run()

    assert ids(spark.read.parquet(str(root))) == expected_ids
    newest = [path for path in before if not path.name.startswith("compacted-")]
    assert set(newest) <= set(archive.committed_files(root))
