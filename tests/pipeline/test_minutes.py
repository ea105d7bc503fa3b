"""The books of the minutes, held to a plain count of the same clicks."""

from collections import Counter, defaultdict

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparq.pipeline.audit import newest_rows
from sparq.pipeline.minutes import (
    AHEAD_MAX_S,
    ENTRY_SCHEMA,
    MINUTE,
    PAGE,
    SUMS,
    TOP_PAGES,
    VISITOR,
    MinuteBooks,
)

HOUR_S = 3600
NOW_S = 1_800_000_000


def entries(clicks):
    """(minute, visitor, page) of each click, reduced as Spark does it."""
    groups = Counter()
    for minute, visitor, page in clicks:
        groups[minute, MINUTE, b""] += 1
        groups[minute, VISITOR, visitor.encode()] += 1
        groups[minute, PAGE, page.encode()] += 1
    rows = [
        {
            "minute": minute,
            "kind": kind,
            "key": key,
            **dict.fromkeys(SUMS, 0),
            "clicks": count,
            "bytes": 10 * count,
            "status_2xx": count,
            "revisions": int(kind == MINUTE),
        }
        for (minute, kind, key), count in groups.items()
    ]
    return pa.Table.from_pylist(rows, ENTRY_SCHEMA)


def apply(books, batch, clicks, nsqd="a"):
    newest = {nsqd: max((minute for minute, _, _ in clicks), default=0) * 60}
    return books.apply(batch, entries(clicks), newest, NOW_S)


def figures(rows):
    """{minute: (clicks, visitors, top pages)} of the newest revisions."""
    return {
        int(row["minute"].timestamp()) // 60: (
            row["clicks"],
            row["visitors"],
            [(page["page"], page["clicks"]) for page in row["top_pages"]],
        )
        for row in newest_rows(rows).to_pylist()
    }


def counted(clicks):
    """The same by other means."""
    minutes = defaultdict(list)
    for click in clicks:
        minutes[click[0]].append(click)
    return {
        minute: (
            len(mine),
            len({visitor for _, visitor, _ in mine}),
            sorted(Counter(page for *_, page in mine).items(), key=lambda one: (-one[1], one[0]))[
                :TOP_PAGES
            ],
        )
        for minute, mine in minutes.items()
    }


CLICK = st.tuples(
    st.integers(100, 400), st.sampled_from("uvwxyz"), st.sampled_from([f"/{n}" for n in range(15)])
)


@settings(max_examples=40)
@given(st.lists(st.lists(CLICK, max_size=30), max_size=8))
def test_every_click_is_in_its_minute(batches):
    """However the clicks fall into batches, the newest rows are the exact count."""
    books = MinuteBooks()
    rows = [apply(books, batch, clicks).rows for batch, clicks in enumerate(batches)]
    clicks = [click for batch in batches for click in batch]

    assert figures(pa.concat_tables([*rows, books.close()])) == counted(clicks)
    assert (books.clicks, books.late) == (len(clicks), 0)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.lists(CLICK, max_size=20)), max_size=10),
    st.sampled_from([0, 60, HOUR_S]),
    st.sampled_from([5, 60, 10**6]),
)
def test_no_click_is_lost_however_small_the_memory(batches, horizon_s, entries_max):
    """Clicks of the newest rows and late ones are all clicks; a closed minute stays as it is."""
    books = MinuteBooks(horizon_s=horizon_s, entries_max=entries_max)
    rows, late, closed = [], 0, {}
    for batch, (nsqd, clicks) in enumerate(batches):
        applied = apply(books, batch, clicks, nsqd)
        rows.append(applied.rows)
        late += sum(applied.late["clicks"].to_pylist())
        for row in applied.rows.to_pylist():
            assert row["minute"] not in closed
        closed |= {row["minute"]: row for row in applied.rows.to_pylist() if row["final"]}
    rows.append(books.close())
    total = sum(len(clicks) for _, clicks in batches)
    in_rows = sum(clicks for clicks, *_ in figures(pa.concat_tables(rows)).values())

    assert in_rows + late == total
    assert (books.clicks, books.late) == (in_rows, late)


@settings(max_examples=40)
@given(st.lists(st.lists(CLICK, max_size=20), min_size=2, max_size=6), st.data())
def test_a_repeated_batch_gives_equal_rows(batches, data):
    """From the memory before it, however that was folded: what a replay after a kill needs."""
    again = data.draw(st.integers(0, len(batches) - 1))
    books, kept, held = MinuteBooks(horizon_s=HOUR_S), [], {}
    for batch, clicks in enumerate(batches):
        if batch == again:
            entries_before = pa.concat_tables([ENTRY_SCHEMA.empty_table(), *kept])
            repeated = MinuteBooks(entries_before, held, horizon_s=HOUR_S)
        applied = apply(books, batch, clicks)
        held = books.books()
        kept.append(applied.entries)
        if batch == again:
            replayed = apply(repeated, batch, clicks)
            assert replayed.rows.to_pylist() == applied.rows.to_pylist()
            assert replayed.late.to_pylist() == applied.late.to_pylist()


def test_an_nsqd_three_batches_behind_loses_nothing_to_lateness():
    """Its clicks correct minutes that the other has long passed."""
    books = MinuteBooks(horizon_s=600)
    books.apply(0, entries([(100, "u", "/a"), (100, "v", "/a")]), {"a": 6000, "b": 6000}, NOW_S)
    for batch in (1, 2, 3):
        apply(books, batch, [(100 + 60 * batch, "u", "/a")], "a")
    rows = apply(books, 4, [(100, "w", "/b")], "b").rows.to_pylist()

    assert books.late == 0
    assert [(row["clicks"], row["visitors"], row["revision"]) for row in rows] == [(3, 3, 2)]


def test_a_click_of_a_closed_minute_is_late():
    """It is counted, with its minute, and changes nothing."""
    books = MinuteBooks(horizon_s=600)
    apply(books, 0, [(100, "u", "/a")])
    closing = apply(books, 1, [(200, "u", "/a")]).rows.to_pylist()
    applied = apply(books, 2, [(100, "v", "/a"), (100, "v", "/b")])

    assert [row["final"] for row in closing] == [False, True]
    assert applied.rows.num_rows == 0
    assert applied.late["clicks"].to_pylist() == [2]
    assert books.late == 2


@pytest.mark.parametrize(("minutes_more", "late"), [(0, 0), (1, 1)])
def test_a_click_from_the_future_is_late(minutes_more, late):
    """A wrong clock must not keep a minute open for ever; a day is taken for a time zone's slip."""
    books = MinuteBooks()
    minute = (NOW_S + AHEAD_MAX_S) // 60 + minutes_more
    books.apply(0, entries([(minute, "u", "/a")]), {"a": NOW_S}, NOW_S)

    assert (books.clicks, books.late) == (1 - late, late)


def test_memory_is_bounded():
    """The oldest minutes close when the entries are too many."""
    books = MinuteBooks(entries_max=30)
    for batch in range(20):
        apply(books, batch, [(1000 + batch, f"v{n}", "/a") for n in range(5)])

    assert books.entries.num_rows <= 30
    assert books.clicks == 100
