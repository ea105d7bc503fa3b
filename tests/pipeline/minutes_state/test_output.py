"""Reading the minutes of all buckets: of each bucket's minute the newest revision counts."""

import datetime
import random

import pyarrow as pa
import pytest

from sparq.pipeline.minutes_state import output


def row(minute, bucket, revision, clicks, *, final=False, pages=()):
    time = datetime.datetime.fromtimestamp(60 * minute, datetime.UTC)
    figures = dict.fromkeys(output.FIGURES, clicks)
    top = [{"page": page, "clicks": count} for page, count in pages]
    return {
        **{"kind": "minute", "bucket": bucket, "minute": time, "revision": revision},
        **{"final": final, **figures, "top_pages": top},
    }


def read(*rows):
    return output.read(pa.Table.from_pylist([*rows], output.SCHEMA)).to_pylist()


ROWS = [
    row(5, 0, 1, 10, pages=[("/a", 3)]),
    row(5, 0, 2, 20, pages=[("/a", 9), ("/b", 1)]),
    row(5, 1, 1, 1, pages=[("/c", 2)]),
    row(5, 1, 2, 2, pages=[("/c", 4), ("/d", 1)]),
    row(6, 0, 1, 7, final=True),
]


def test_a_minute_is_the_sum_of_its_newest_revisions():
    """A minute is the sum of its buckets' newest rows; top pages are merged."""
    first, second = read(*ROWS)

    assert {first[name] for name in output.FIGURES} == {22}
    assert (first["revision"], first["final"]) == (2, False)
    assert [(page["page"], page["clicks"]) for page in first["top_pages"]] == [
        ("/a", 9),
        ("/c", 4),
        ("/b", 1),
        ("/d", 1),
    ]
    assert (second["clicks"], second["final"]) == (7, True)


@pytest.mark.parametrize("seed", range(5))
def test_order_and_duplicates_of_rows_do_not_matter(seed):
    """Rows may be read in any order, and twice: a batch's folder may exist twice for a while."""
    rows = [*ROWS, *ROWS[:3]]
    random.Random(seed).shuffle(rows)

    assert read(*rows) == read(*ROWS)


def test_a_minute_is_final_if_it_is_final_in_all_buckets():
    """A minute is final only if its newest row in every bucket is."""
    closed = row(5, 0, 3, 1, final=True)

    assert [one["final"] for one in read(closed, row(5, 1, 1, 1))] == [False]
    assert [one["final"] for one in read(closed, row(5, 1, 2, 1, final=True))] == [True]


def test_only_the_top_ten_pages_are_listed():
    """The top ten pages are chosen from the buckets' top ten: each page is in one bucket."""
    buckets = [
        row(5, bucket, 1, 1, pages=[(f"/{bucket}-{n}", 20 - n) for n in range(10)])
        for bucket in range(3)
    ]
    pages = read(*buckets)[0]["top_pages"]

    assert [page["clicks"] for page in pages] == [20, 20, 20, 19, 19, 19, 18, 18, 18, 17]
    assert pages[-1]["page"] == "/0-3"


def test_rows_of_other_kinds_are_ignored():
    """Rows of kind `late` are ignored, although they have a minute."""
    assert read(ROWS[4], ROWS[4] | {"kind": "late", "bucket": 3}) == read(ROWS[4])


def test_no_rows_give_no_minutes():
    """Reading no rows gives an empty table of minutes."""
    assert output.read(output.EMPTY) == output.MINUTE_SCHEMA.empty_table()


def test_spark_and_arrow_schema_have_the_same_columns():
    """The stage's DDL and the Arrow schema have the same columns."""
    names = [part.split()[0] for part in output.DDL.replace("page: STRING, clicks", "").split(", ")]

    assert names == output.SCHEMA.names
