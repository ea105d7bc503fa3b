"""Merging the files of a Delta table: which files are merged, and that readers are unaffected."""

import json

from deltalake import DeltaTable

from sparq.pipeline import archive_delta, delta_compaction
from sparq.pipeline.archive_delta import DeltaSink
from sparq.pipeline.compaction import Sizes
from sparq.pipeline.delta_compaction import DeltaCompaction, files_of
from sparq.pipeline.delta_place import TablePlace
from tests.pipeline.archived import expected
from tests.pipeline.delta_table import archived, live_files, parquet_files

NO_MERGES = None
MERGE_AT_ONCE = Sizes(settle_s=0, keep_s=86_400)
DELETE_AT_ONCE = Sizes(settle_s=0, keep_s=0)
LATER_MS = 4 * 10**12  # long after everything that these tests write


def test_small_files_are_merged_hour_by_hour(spark, query, batches, tmp_path):
    """Small files are merged hour by hour between batches; every row stays, once and complete."""
    rows = archive_delta.frame
    sink = DeltaSink(str(tmp_path), NO_MERGES)
    for number, batch in enumerate([batches[0]] * 4):
        sink(batch, number)
    before = rows(spark, str(tmp_path)).orderBy("id", "index").collect()
    hours = {file.directory for file in files_of(DeltaTable(tmp_path))}
    assert len(live_files(tmp_path)) >= 4 * len(hours)

    merging = DeltaSink(str(tmp_path), MERGE_AT_ONCE)
    counts = []
    for _ in range(len(hours) + 1):
        merging(batches[0], 3)  # a repeated batch: only a merge happens
        counts.append(len(live_files(tmp_path)))

    assert counts == sorted(counts, reverse=True)
    assert len(hours) == counts[-1]
    assert hours == {file.directory for file in files_of(DeltaTable(tmp_path))}
    assert before == rows(spark, str(tmp_path)).orderBy("id", "index").collect()


def test_replaced_and_abandoned_files_are_deleted_later(
    spark, query, batches, tmp_path, monkeypatch
):
    """Replaced files and those of killed tasks are deleted after `keep_s`; live ones stay."""
    sink = DeltaSink(str(tmp_path), NO_MERGES)
    for number, batch in enumerate([batches[0]] * 2):
        sink(batch, number)
    left = tmp_path / "date=2026-03-02" / "hour=1" / "11111111-9-left.parquet"
    left.parent.mkdir(parents=True, exist_ok=True)
    left.write_bytes(b"what a killed task left")
    place = TablePlace(str(tmp_path))
    merged = DeltaCompaction(place, MERGE_AT_ONCE).all_due(spark, LATER_MS)
    assert 0 == merged.deleted
    assert left.exists()

    cleaned = DeltaCompaction(place, DELETE_AT_ONCE).all_due(spark, LATER_MS)

    assert cleaned.deleted > merged.files_before - merged.files_after
    assert live_files(tmp_path) == parquet_files(tmp_path)
    assert archived(tmp_path) == sorted(expected(batches[:1]) * 2)


def test_of_two_concurrent_merges_the_second_is_refused(spark, query, batches, tmp_path):
    """Of two concurrent merges the second to commit is refused; no click is lost or doubled.

    `deltalake` by itself would let both replace the same files.
    """
    sink = DeltaSink(str(tmp_path), NO_MERGES)
    for number, batch in enumerate([batches[0]] * 3):
        sink(batch, number)
    place = TablePlace(str(tmp_path))
    before = archived(tmp_path)
    living, dead = place.table(), place.table()
    hour = files_of(dead)[0].directory
    chosen = [one for one in files_of(dead) if one.directory == hour]

    def merge(table):
        return delta_compaction.merge(spark, place, table, chosen, MERGE_AT_ONCE)

    assert len(chosen) == merge(living) >= 3
    assert 0 == merge(dead)
    assert before == archived(tmp_path)
    assert 1 == sum(one.directory == hour for one in files_of(place.table()))


def test_a_merge_is_logged_as_no_data_change(spark, query, batches, tmp_path):
    """A merge's log entries have dataChange=false: streaming readers ignore them."""
    sink = DeltaSink(str(tmp_path), NO_MERGES)
    for number, batch in enumerate([batches[0]] * 2):
        sink(batch, number)
    DeltaCompaction(TablePlace(str(tmp_path)), MERGE_AT_ONCE).all_due(spark, LATER_MS)
    log = sorted((tmp_path / "_delta_log").glob("*.json"))[3:]
    changes = [
        action[kind]["dataChange"]
        for path in log
        for action in map(json.loads, path.read_text().splitlines())
        for kind in ("add", "remove")
        if kind in action
    ]

    assert changes
    assert not any(changes)


def test_small_files_are_grouped_up_to_the_target_size():
    """Small files become one group, or several groups near the target size; none of one file."""

    def groups(*sizes):
        files = [delta_compaction.FileStatus("d/h/f", size, 0) for size in sizes]
        found = delta_compaction.grouped(files, 128)
        return [[file.size for file in group] for group in found]

    assert [[3, 7]] == groups(3, 7)
    assert [[40, 130]] == groups(40, 130)
    assert [[40, 1000]] == groups(40, 1000)
    assert [[64, 64], [64, 64]] == groups(64, 64, 64, 64)
    assert [[50, 50, 50], [50, 50, 50]] == groups(*[50] * 6)
    many = [len(group) for group in groups(*[10] * 100)]
    assert (7, 100) == (len(many), sum(many))
    assert {14, 15} == set(many)
