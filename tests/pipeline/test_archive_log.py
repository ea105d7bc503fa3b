"""The archive's log: the live files, commit by commit, with one writer at a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.pipeline.archive_log import (
    COMMITS_KEPT,
    FOLDER,
    ArchiveLog,
    Snapshot,
    decoded,
    encoded,
    parts_of,
)
from sparq.pipeline.hadoop_files import FileStatus, HadoopFiles

statuses = st.builds(
    FileStatus, st.text(), st.integers(0), st.integers(0), st.integers(1, 3), st.integers(0)
)


def status(number):
    """The status of file number `number`."""
    return FileStatus(f"file:/a/date=2026-03-02/hour=10/{number}.parquet", 7, 1000, 1, 512)


@given(st.lists(statuses))
def test_a_commit_survives_a_round_trip(files):
    """A commit survives a round trip, with any file names."""
    assert decoded(encoded(files)) == files


def test_a_commit_of_another_version_is_refused():
    """A commit of another version raises a ValueError that names both versions."""
    with pytest.raises(
        ValueError, match="the archive's log has version v2, this sparq reads version v1"
    ):
        decoded(b"v2\n{}")


def test_a_snapshot_is_the_newest_complete_commit_and_later_ones():
    """A snapshot is the newest complete commit (`.compact`) and all later ones.

    Sparq writes only complete commits; of those of Spark's sink every tenth is complete.
    """
    assert parts_of([]) == []
    assert parts_of(["7.compact", "8.compact", ".8.compact.crc"]) == ["8.compact"]
    assert parts_of(["0", "1"]) == ["0", "1"]
    assert parts_of(["8", "9.compact", "10", "11", "_x"]) == ["9.compact", "10", "11"]


def test_a_changed_snapshot_keeps_the_order_of_its_files():
    """A changed snapshot keeps the order of its files; added ones are last."""
    one, two, three = map(status, range(3))

    assert Snapshot(4, (one, two)).changed([one], [three]) == (two, three)
    assert Snapshot().changed(added=[one]) == (one,)


def test_a_commit_is_never_replaced(spark, tmp_path):
    """Of two writers that start from the same commit, the second gets a FileExistsError."""
    root = (tmp_path / "an archive").as_uri()
    log = ArchiveLog(HadoopFiles(spark), root)
    empty = log.read()
    first = log.commit(empty, (status(1),))

    assert (empty, first) == (Snapshot(), Snapshot(0, (status(1),)))
    with pytest.raises(FileExistsError):
        log.commit(empty, (status(2),))
    assert ArchiveLog(HadoopFiles(spark), root).read() == first


def test_only_the_newest_commits_are_kept(spark, tmp_path):
    """Only the newest COMMITS_KEPT commits stay, for readers that are still using them."""
    log = ArchiveLog(HadoopFiles(spark), str(tmp_path))
    snapshot = log.read()
    for number in range(COMMITS_KEPT + 3):
        snapshot = log.commit(snapshot, (status(number),))

    names = {path.name for path in (tmp_path / FOLDER).glob("*.compact")}
    assert names == {f"{number}.compact" for number in range(3, COMMITS_KEPT + 3)}
    assert log.read() == Snapshot(COMMITS_KEPT + 2, (status(COMMITS_KEPT + 2),))


def test_a_log_of_sparks_own_sink_is_continued(spark, tmp_path):
    """A log of Spark's own sink can be continued, and Spark reads the result."""
    source = tmp_path / "in"
    spark.range(5).write.parquet(str(source))
    root = str(tmp_path / "archive")
    stream = spark.readStream.schema("id BIGINT").parquet(str(source))
    writer = stream.writeStream.format("parquet").trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "c")).start(root).awaitTermination()
    files = HadoopFiles(spark)
    log = ArchiveLog(files, root)
    before = log.read()
    spark.range(5, 7).coalesce(1).write.mode("append").option(
        "mapreduce.output.basename", "more").parquet(root)  # fmt: skip
    more = [one for one in files.list(root) if one.name.startswith("more")]
    log.commit(before, before.changed(added=more))

    assert sorted(row.id for row in spark.read.parquet(root).collect()) == list(range(7))
    assert log.read().files == (*before.files, *more)
