"""Maintenance of tables: which files are merged, and that readers and writers are unaffected."""

import json
import os
import time
from collections import Counter

import pytest
from deltalake import DeltaTable

from sparq.pipeline import maintenance, tables
from sparq.pipeline.maintenance import FAN, MIB, Maintenance, drop_days, due, merge
from sparq.pipeline.tables import TableFile, Tables, files_of
from tests.pipeline.test_tables import ODD, files, indexes, split, tables_of

NOW_S = 1_800_000_000.0
LIMIT = 128 * MIB


QUIET_S = maintenance.SETTLED_S + 1
LARGE = LIMIT // 4


def file(size, day="2026-03-02", age_s=0.0):
    return TableFile(f"date={day}/{size}-{age_s}", size, int((NOW_S - age_s) * 1000), 1)


def old(*some, day="2026-03-02"):
    """Files of a day without a new one."""
    return [file(size, day, QUIET_S) for size in some]


def left_open(*some):
    """Files about sessions that were open at the end of a run."""
    return [
        one._replace(path=one.path.replace("/", f"/{maintenance.OPEN}topic-")) for one in old(*some)
    ]


FEW = [file(5_000 + at) for at in range(FAN - 1)]
LARGER = [file(MIB + at) for at in range(FAN - 1)]


@pytest.mark.parametrize(
    ("some", "limit", "merged"),
    [
        pytest.param([*FEW, *LARGER], LIMIT, [], id="fewer than FAN of a size"),
        pytest.param([*FEW, file(6_000), *LARGER], LIMIT, [FAN], id="FAN of a size"),
        pytest.param([*FEW, *LARGER, file(MIB)], LIMIT, [2 * FAN - 1], id="and all smaller ones"),
        pytest.param(old(2, LARGE, 1), LIMIT, [2], id="a quiet day, but for its large file"),
        pytest.param([*old(1), file(2)], LIMIT, [], id="a day that is not quiet"),
        pytest.param(old(1, LARGE), LIMIT, [], id="one small file"),
        pytest.param([*old(1), *old(1, day="2026-03-03")], LIMIT, [], id="of two days"),
        pytest.param(old(*[30 * MIB] * 9), LIMIT, [4], id="at most the limit"),
        pytest.param(old(9, 9), 40, [2], id="but two at least"),
        pytest.param([*old(1), *left_open(2)], LIMIT, [], id="none of open sessions"),
    ],
)
def test_which_files_are_merged(some, limit, merged):
    """FAN files of about one size are merged, and all of a day without new ones; a few at most."""
    assert merged == [len(one) for one in due(some, limit, NOW_S)]


def merge_all(spark, written, name):
    """Merge all files of a table's only day; returns whether it took effect."""
    table = written.opened[name]
    table.delta.update_incremental()
    return merge(spark, table, files_of(table.delta))


def test_a_merge_keeps_all_rows_and_changes_none(spark, query, batches, tmp_path):
    """After a merge, all rows are in one file, and the log says that no row has changed."""
    written = tables_of(spark, tmp_path)
    for number, batch in enumerate(batches):
        written.write(batch, number, split)
    assert merge_all(spark, written, "all")
    table = DeltaTable(tmp_path / "all")
    log = (tmp_path / "all" / "_delta_log" / f"{table.version():020}.json").read_text()
    changes = [json.loads(line) for line in log.splitlines()]

    assert list(range(600)) == indexes(tmp_path, "all")
    assert [600] == [one.rows for one in files_of(table)]
    assert {False} == {
        one[kind]["dataChange"] for one in changes for kind in ("add", "remove") if kind in one
    }
    assert 2 == table.transaction_version("11111111-aaaa")


def test_a_merge_that_comes_between_does_not_disturb_a_batch(
    spark, query, batches, tmp_path, monkeypatch
):
    """A merge and another query's batch between a batch's files and its commit do no harm."""
    first, second = tables_of(spark, tmp_path), tables_of(spark, tmp_path)
    first.write(batches[0], 0, split)
    first.write(batches[1], 1, split)
    commit = tables.commit

    def others(*arguments):
        monkeypatch.setattr(tables, "commit", commit)
        query("22222222-bbbb")
        second.write(batches[1], 7, split)
        query("11111111-aaaa")
        assert merge_all(spark, second, "all")
        commit(*arguments)

    monkeypatch.setattr(tables, "commit", others)
    first.write(batches[2], 2, split)

    assert Counter([*range(600), *range(200, 400)]) == Counter(indexes(tmp_path, "all"))


def test_of_two_merges_one_takes_effect(spark, query, batches, tmp_path):
    """Of two merges of the same files, by two drivers, the second is refused."""
    first, second = tables_of(spark, tmp_path), tables_of(spark, tmp_path)
    for number, batch in enumerate(batches):
        first.write(batch, number, split)
    table = second.opened["all"]
    table.delta.update_incremental()
    chosen = files_of(table.delta)
    assert merge_all(spark, first, "all")

    assert not merge(spark, table, chosen)
    assert list(range(600)) == indexes(tmp_path, "all")


def test_many_batches_leave_few_files(spark, query, batches, tmp_path):
    """Between batches files are merged; replaced ones are deleted when readers have had their time.

    Files that no commit names, of a killed task, are deleted after a day.
    """
    written = Tables(spark, str(tmp_path), [ODD])
    cared, began_s = Maintenance(written), time.time()
    for number in range(FAN):
        written.write(batches[0].coalesce(1), number, split_odd)
        cared.between_batches(spark, began_s + number * maintenance.CHECK_S)
    merged_s = began_s + number * maintenance.CHECK_S
    orphan = tmp_path / "odd" / "date=2026-11-21" / "11111111-9-x.parquet"
    orphan.write_bytes(b"")
    os.utime(orphan, (time.time() - 2 * maintenance.ORPHANS_S,) * 2)
    cared.between_batches(spark, merged_s + maintenance.KEEP_S - 1)
    before = files(tmp_path)
    cared.between_batches(spark, merged_s + maintenance.KEEP_S + maintenance.CLEAN_S)
    between = files(tmp_path)
    cared.between_batches(spark, merged_s + 2 * maintenance.ORPHANS_S)

    assert [FAN * 100] == [one.rows for one in files_of(DeltaTable(tmp_path / "odd"))]
    assert [FAN + 2, 2, 1] == [len(before), len(between), len(files(tmp_path))]
    assert FAN * 100 == len(indexes(tmp_path, "odd"))


def split_odd(batches):
    for parts in split(batches):
        yield {"odd": parts["odd"]}


def test_days_are_dropped(spark, query, messages, tmp_path):
    """Rows of days before the first that is kept are removed; a repeated batch stays known."""
    written = Tables(spark, str(tmp_path), [ODD])
    written.write(messages([b"x"] * 10), 0, split_odd)
    table = written.opened["odd"].delta

    assert [] == drop_days(table, "2026-11-21")
    assert files(tmp_path) == {f"odd/{path}" for path in drop_days(table, "2026-11-22")}
    assert [] == indexes(tmp_path, "odd")
    Tables(spark, str(tmp_path), [ODD]).write(messages([b"x"] * 10), 0, split_odd)
    assert [] == indexes(tmp_path, "odd")
