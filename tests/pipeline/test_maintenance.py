"""Maintenance of tables: which files are merged, and that readers and writers are unaffected."""

import json
import time
from collections import Counter

import pytest
from deltalake import DeltaTable

from sparq.pipeline import maintenance
from sparq.pipeline.maintenance import FAN, KEEP_S, Maintenance, due, merge
from sparq.pipeline.tables import TableFile, Tables, files_of
from tests.pipeline.conftest import QUERY
from tests.pipeline.stored import put
from tests.pipeline.test_tables import (
    ODD,
    between_files_and_commit,
    files,
    indexes,
    split,
    tables_of,
)

NOW_S = 1_800_000_000.0
MIB = 1 << 20
LIMIT = 128 * MIB
LARGE = LIMIT // 4


def files_of_size(*some, day="2026-03-02", age_s=0.0, prefix=""):
    written_ms = int((NOW_S - age_s) * 1000)
    return [TableFile(f"date={day}/{prefix}{size}", size, written_ms, 1) for size in some]


def old(*some, **given):
    """Files of a day without a new one."""
    return files_of_size(*some, age_s=maintenance.SETTLED_S + 1, **given)


FEW = files_of_size(*range(5_000, 5_000 + FAN - 1))
LARGER = files_of_size(*range(MIB, MIB + FAN - 1))


@pytest.mark.parametrize(
    ("some", "limit", "merged"),
    [
        pytest.param([*FEW, *LARGER], LIMIT, 0, id="fewer than FAN of a size"),
        pytest.param([*FEW, *files_of_size(6_000), *LARGER], LIMIT, FAN, id="FAN of a size"),
        pytest.param(
            [*FEW, *LARGER, *files_of_size(MIB)], LIMIT, 2 * FAN - 1, id="and all smaller ones"
        ),
        pytest.param(old(2, LARGE, 1), LIMIT, 2, id="a quiet day, but for its large file"),
        pytest.param([*old(1), *files_of_size(2)], LIMIT, 0, id="a day that is not quiet"),
        pytest.param(old(1, LARGE), LIMIT, 0, id="one small file"),
        pytest.param([*old(1), *old(1, day="2026-03-03")], LIMIT, 0, id="of two days"),
        pytest.param(old(*[30 * MIB] * 9), LIMIT, 4, id="at most the limit"),
        pytest.param(old(9, 9), 40, 2, id="but two at least"),
        pytest.param(
            [*old(1), *old(2, prefix=f"{maintenance.OPEN}topic-")],
            LIMIT, 0, id="none of open sessions",
        ),
    ],
)  # fmt: skip
def test_which_files_are_merged(some, limit, merged):
    """FAN files of about one size are merged, and all of a day without new ones; a few at most."""
    assert merged == len(due(some, limit, NOW_S))


def merge_all(spark, written, name):
    """Merge all files of a table's only day; returns whether it took effect."""
    table = written.opened[name]
    table.delta.update_incremental()
    return merge(spark, table, files_of(table.delta))


def test_a_merge_keeps_all_rows_and_changes_none(spark, query, batches, tmp_path):
    """After a merge, all rows are in one file, and the log says that no row has changed.

    Of two merges of the same files, by two drivers, the second is refused.
    """
    written, other = tables_of(spark, tmp_path), tables_of(spark, tmp_path)
    for number, batch in enumerate(batches):
        put(written, batch, number, split)
    late = other.opened["all"]
    late.delta.update_incremental()
    chosen = files_of(late.delta)
    assert merge_all(spark, written, "all")
    table = DeltaTable(tmp_path / "all")
    log = (tmp_path / "all" / "_delta_log" / f"{table.version():020}.json").read_text()
    changes = [json.loads(line) for line in log.splitlines()]

    assert {False} == {
        one[kind]["dataChange"] for one in changes for kind in ("add", "remove") if kind in one
    }
    assert 2 == table.transaction_version(QUERY)
    assert not merge(spark, late, chosen)
    assert [600] == [one.rows for one in files_of(DeltaTable(tmp_path / "all"))]
    assert list(range(600)) == indexes(tmp_path, "all")


def test_a_merge_that_comes_between_does_not_disturb_a_batch(
    spark, query, batches, tmp_path, monkeypatch
):
    """A merge and another query's batch between a batch's files and its commit do no harm."""
    first, second = tables_of(spark, tmp_path), tables_of(spark, tmp_path)
    put(first, batches[0], 0, split)
    put(first, batches[1], 1, split)

    def others():
        query("22222222-bbbb")
        put(second, batches[1], 7, split)
        query(QUERY)
        assert merge_all(spark, second, "all")

    between_files_and_commit(monkeypatch, others)
    put(first, batches[2], 2, split)

    assert Counter([*range(600), *range(200, 400)]) == Counter(indexes(tmp_path, "all"))


def test_many_batches_leave_few_files(spark, query, batches, tmp_path):
    """Between batches files are merged; replaced ones are deleted when readers have had their time.

    So are files that no commit names, of a killed task, and commits that a checkpoint replaces.
    """
    written = Tables(spark, str(tmp_path), [ODD])
    cared, began_s = Maintenance(written), time.time()
    for number in range(FAN):
        put(written, batches[0].coalesce(1), number, split_odd)
        cared.between_batches(spark, began_s + number * maintenance.CHECK_S)
    for name in ("11111111-9-x", "22222222-9-x"):  # of this query, and of one that may be running
        (tmp_path / "odd" / "date=2026-11-21" / f"{name}.parquet").write_bytes(b"")
    seen_s = began_s + FAN * maintenance.CHECK_S
    left = []
    ends = (seen_s + stays_s + maintenance.CHECK_S for stays_s in (KEEP_S, maintenance.LEFT_S))
    for at_s in (seen_s, seen_s + KEEP_S - 1, *ends):
        cared.between_batches(spark, at_s)
        left.append(len(files(tmp_path)))

    assert [FAN * 100] == [one.rows for one in files_of(DeltaTable(tmp_path / "odd"))]
    assert [FAN + 3, 3, 2, 1] == left
    assert FAN * 100 == len(indexes(tmp_path, "odd"))


def split_odd(batches):
    for parts in split(batches):
        yield {"odd": parts["odd"]}
