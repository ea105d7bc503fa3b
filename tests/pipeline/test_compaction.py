"""Merging the archive's files: which are due, and that readers see every click exactly once."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.pipeline import compaction
from sparq.pipeline.archive_log import ArchiveLog
from sparq.pipeline.compaction import FOLDER, PREFIX, Compaction, Sizes, batch_of, due
from sparq.pipeline.hadoop_files import FileStatus, HadoopFiles

NOW_MS = 10**12
SIZES = Sizes(
    small_bytes=64,
    target_bytes=128,
    merge_bytes_max=1024,
    settle_s=600,
    final_s=86_400,
    small_count=4,
)
QUERY = "0a1b2c3d"
HOUR = "file:/a/date=2026-03-02/hour=10"


def files_of(*sizes, age_s=0, hour=HOUR):
    """Files of these sizes, written `age_s` seconds ago."""
    return [
        FileStatus(f"{hour}/{at}-{size}.parquet", size, NOW_MS - age_s * 1000)
        for at, size in enumerate(sizes)
    ]


def merged(files):
    """The sizes of the files that are due, one list per hour."""
    return [sorted(one.size for one in hour) for hour in due(files, SIZES, NOW_MS)]


def test_small_files_of_a_recent_hour_wait_for_target_bytes():
    """In a recent hour small files wait until they add up to target_bytes."""
    assert merged(files_of(40, 40)) == []
    assert merged(files_of(40, 40, 50)) == [[40, 40, 50]]
    assert merged(files_of(40, 40, 50, 200)) == [[40, 40, 50]]


def test_small_files_of_a_settled_hour_are_merged():
    """After settle_s all small files of an hour are merged; a lone file is left as it is."""
    assert merged(files_of(1, 2, age_s=601)) == [[1, 2]]
    assert merged(files_of(1, 2, age_s=599)) == []
    assert merged(files_of(1, age_s=10**6)) == []
    assert merged(files_of(64, 200, age_s=10**6)) == []


def test_late_clicks_do_not_rewrite_a_large_file_each_time():
    """Beside a large file, small ones wait until they are 4, or 64 bytes in all, or a day old."""
    assert merged(files_of(1, 2, 3, 200, age_s=3600)) == []
    assert merged(files_of(1, 2, 3, 4, 200, age_s=3600)) == [[1, 2, 3, 4]]
    assert merged(files_of(40, 41, 200, age_s=3600)) == [[40, 41]]
    assert merged(files_of(1, 100, 200, age_s=86_400)) == [[1, 100]]


def test_the_hour_with_the_most_files_is_merged_first():
    """Hours are separate, the one with the most files first; a merge is limited in bytes."""
    others = files_of(1, 2, 3, age_s=700, hour=HOUR.replace("10", "11"))

    assert merged(files_of(4, 5, age_s=700) + others) == [[1, 2, 3], [4, 5]]
    assert len(due(files_of(*[60] * 30), SIZES, NOW_MS)[0]) == 1024 // 60
    assert len(due(files_of(*[60] * 30), Sizes(64, 128, 1), NOW_MS)[0]) == 2


@given(st.lists(st.integers(1, 300), max_size=30), st.integers(0, 100_000))
def test_repeated_merges_end_with_at_most_one_small_file(sizes, age_s):
    """Every merge leaves fewer files; a day-old hour ends with at most one small file."""
    files = files_of(*sizes, age_s=age_s)
    for _ in range(40):
        chosen = next(iter(due(files, SIZES, NOW_MS)), None)
        if chosen is None:
            break
        assert len(chosen) > 1
        together = sum(one.size for one in chosen)
        count = max(1, min(together // SIZES.target_bytes, len(chosen) - 1))
        files = [one for one in files if one not in chosen]
        files += [FileStatus(f"{HOUR}/{len(files)}m{at}", together // count, NOW_MS - age_s * 1000)
                  for at in range(count)]  # fmt: skip
    else:
        pytest.fail("it goes on for ever")
    small = [one for one in files if one.size < SIZES.small_bytes]
    if age_s >= SIZES.final_s:
        assert len(small) <= 1
        assert not small or len(files) == 1


def test_a_file_name_has_its_query_and_batch():
    """A file's name gives its query and batch; a merged file belongs to none."""

    def of(name):
        return batch_of(FileStatus(f"{HOUR}/{name}-00000-x.parquet", 1, 1))

    assert of("0a1b2c3d-17-ffff") == ("0a1b2c3d", 17)
    assert of(f"{PREFIX}17") is None
    assert of("part") is None


@pytest.fixture
def archive(spark, tmp_path):
    """An archive of three batches in one hour; returns its folder."""
    root = str(tmp_path / "an archive")
    files = HadoopFiles(spark)
    log = ArchiveLog(files, root)
    hour = f"{root}/date=2026-03-02/hour=10"
    for batch in range(3):
        frame = spark.range(batch * 10, batch * 10 + 10).coalesce(1)
        frame.write.mode("append").option("mapreduce.output.basename", f"{QUERY}-{batch}-").parquet(
            hour
        )
        found = [one for one in files.list(hour) if one.name.startswith(f"{QUERY}-{batch}-")]
        before = log.read()
        log.commit(before, before.changed(added=found))
    return root


def ids(spark, root):
    """The ids that a reader sees, sorted."""
    spark.catalog.clearCache()
    return sorted(row.id for row in spark.read.parquet(root).select("id").collect())


def parquet_files(tmp_path):
    """The sorted names of all Parquet files, live or not."""
    return sorted(path.name for path in tmp_path.rglob("*.parquet"))


SMALL = Sizes(settle_s=0, keep_s=3600)
LATER_MS = 4 * 10**12  # long after everything that these tests write


def test_small_files_are_merged_except_those_of_the_newest_batch(spark, archive, tmp_path):
    """A merge spares the newest batch; readers see each row once; old files are deleted later."""
    before = parquet_files(tmp_path)
    merges = Compaction(spark, archive, SMALL)
    live = ArchiveLog(HadoopFiles(spark), archive)
    newest = next(one for one in live.read().files if one.name.startswith(f"{QUERY}-2-"))
    now_ms = newest.modified_ms + 1000

    assert merges.between_batches(f"{QUERY}-2-", now_ms) == 2
    assert ids(spark, archive) == list(range(30))
    files = live.read().files
    assert newest in files
    assert [one.name.startswith(PREFIX) for one in files] == [False, True]
    assert set(before) < set(parquet_files(tmp_path))

    assert merges.between_batches(f"{QUERY}-2-", LATER_MS) == 0
    assert parquet_files(tmp_path) == sorted(one.name for one in files)
    assert list((tmp_path / "an archive" / FOLDER).glob("*.json")) == []
    assert ids(spark, archive) == list(range(30))


def test_a_killed_merge_loses_no_rows_and_is_cleaned_up(spark, archive, tmp_path, monkeypatch):
    """A merge that is killed before or after its commit loses no rows and can be cleaned up."""
    before = parquet_files(tmp_path)
    commit = ArchiveLog.commit

    def killed(*_):
        raise KeyboardInterrupt

    def killed_after(*arguments):
        commit(*arguments)
        raise KeyboardInterrupt

    for stop, live in ((killed, before), (killed_after, None)):
        monkeypatch.setattr(ArchiveLog, "commit", stop)
        with pytest.raises(KeyboardInterrupt):
            Compaction(spark, archive, SMALL).between_batches(f"{QUERY}-2-", NOW_MS * 3)
        monkeypatch.setattr(ArchiveLog, "commit", commit)
        assert ids(spark, archive) == list(range(30))
        assert Compaction(spark, archive, SMALL).clean_up(LATER_MS) > 0
        assert ids(spark, archive) == list(range(30))
        if live is not None:
            assert parquet_files(tmp_path) == live
    assert len(parquet_files(tmp_path)) == 2


def test_a_merge_retries_after_a_writers_commit(spark, archive, monkeypatch):
    """A merge retries after a writer's commit, and gives up if another merge was first."""
    log = ArchiveLog(HadoopFiles(spark), archive)
    merges = Compaction(spark, archive, SMALL)
    chosen = list(log.read().files[:2])
    commit = ArchiveLog.commit
    writer_first = [True]

    def commit_after_a_writer(self, before, files):
        if writer_first.pop() if writer_first else False:
            commit(self, before, before.files)
        return commit(self, before, files)

    monkeypatch.setattr(ArchiveLog, "commit", commit_after_a_writer)
    assert merges.merge(chosen, NOW_MS) is True
    assert merges.merge(chosen, NOW_MS) is False
    assert ids(spark, archive) == list(range(30))


def test_all_due_files_except_the_newest_batch_are_merged(spark, archive):
    """`all_due` merges all due files but the newest batch's, and reports the numbers of files."""
    found = Compaction(spark, archive, SMALL).all_due(LATER_MS)

    assert (found.files_before, found.files_after) == (3, 2)
    assert ids(spark, archive) == list(range(30))


def test_a_merged_file_has_all_columns_of_its_sources(spark, archive):
    """A merged file has all columns that any of its sources has."""
    files = HadoopFiles(spark)
    log = ArchiveLog(files, archive)
    hour = f"{archive}/date=2026-03-02/hour=10"
    wider = spark.range(30, 31).selectExpr("id", "'x' AS further")
    wider.write.mode("append").option("mapreduce.output.basename", f"{QUERY}-3-").parquet(hour)
    before = log.read()
    found = [one for one in files.list(hour) if one.name.startswith(f"{QUERY}-3-")]
    log.commit(before, before.changed(added=found))
    Compaction(spark, archive, SMALL).between_batches(f"{QUERY}-4-", LATER_MS)

    rows = spark.read.parquet(archive).collect()
    assert {row.id: row.further for row in rows} == {**dict.fromkeys(range(30)), 30: "x"}


def test_a_merge_with_missing_rows_is_not_committed(spark, archive, monkeypatch):
    """A merge with missing rows raises RuntimeError and is not committed."""
    monkeypatch.setattr(compaction.Compaction, "_made", lambda self, hour, _token: [
        one for one in self._files.list(hour) if one.name.startswith(f"{QUERY}-0-")])  # fmt: skip
    with pytest.raises(RuntimeError, match="has 10 rows instead of 20"):
        Compaction(spark, archive, SMALL).between_batches(f"{QUERY}-2-", NOW_MS * 3)

    assert ids(spark, archive) == list(range(30))


def test_a_merges_record_names_the_replaced_files(spark, archive, tmp_path):
    """A merge's record names the files it replaces: a clean-up needs no other information."""
    newest = ArchiveLog(HadoopFiles(spark), archive).read().files[-1].modified_ms
    Compaction(spark, archive, SMALL).between_batches(f"{QUERY}-2-", newest + 1000)

    (note,) = (tmp_path / "an archive" / FOLDER).glob("*.json")
    replaced = json.loads(note.read_text())["replaced"]
    assert [one.rpartition("/")[2][:11] for one in replaced] == [f"{QUERY}-0-", f"{QUERY}-1-"]
