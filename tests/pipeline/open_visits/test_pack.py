"""Parsed messages become clicks, and a partition becomes one packed row per bucket."""

from collections import Counter
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.pipeline import packing
from sparq.pipeline.open_visits.batch import Arrivals, robot_clicks
from sparq.pipeline.open_visits.pack import CLICKS, blobs_of, ids_of, page_kinds, prepared
from sparq.pipeline.packing import pack_partition
from sparq.pipeline.visits import IDS_KEPT, OTHER, PAGE, RESOURCE, ROBOTS_TXT
from tests.pipeline.open_visits.in_memory_query import (
    FIRST_BATCH_MS,
    PUBLISHED_S,
    click,
    hash_of,
    table_of,
)

PARSED = pa.schema(
    [
        ("nsqd", pa.string()),
        ("id", pa.string()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("batch_ms", pa.int64()),
        ("time", pa.timestamp("us", "UTC")),
        ("address", pa.string()),
        ("page", pa.string()),
        ("user_agent", pa.string()),
        ("reason", pa.string()),
    ]
)

CLICK_LISTS = st.lists(
    st.builds(
        click,
        st.integers(1_000, 1_040),
        who=st.sampled_from("abcd"),
        kind=st.sampled_from((PAGE, RESOURCE, ROBOTS_TXT, OTHER)),
        page=st.sampled_from(("/", "/x", "/é")),
        robot=st.booleans(),
        ident=st.integers(0, 2**64 - 1),
    ),
    min_size=1,
    max_size=60,
)


def pack(batches, buckets):
    """The function that `mapInArrow` runs."""
    return packing.pack_partition(batches, blobs_of, buckets)


def arrivals(clicks, buckets, rows_max=7):
    """What each bucket receives from one partition."""
    table = table_of(clicks, ["n"] * len(clicks), FIRST_BATCH_MS)
    batches = table.to_batches(max_chunksize=rows_max)
    (rows,) = pack(batches, buckets)
    frame = rows.to_pandas()
    assert list(range(buckets)) == frame["bucket"].tolist()
    return [Arrivals.read(packing.receive([frame.iloc[at : at + 1]])) for at in range(buckets)]


@given(CLICK_LISTS, st.integers(1, 5))
def test_each_bucket_gets_its_visitors_clicks(clicks, buckets):
    """A bucket gets its visitors' clicks per second, pages, texts, names and declared robots."""
    seconds, pages, names, texts, robots = Counter(), Counter(), {}, {}, {}
    for bucket, got in enumerate(arrivals(clicks, buckets)):
        s, p = got.seconds, got.pages
        assert all(v % buckets == bucket for v in [*s.visitor.tolist(), *p.visitor.tolist()])
        for v, at, last, *counts in zip(
            s.visitor, s.first_s, s.last_s, s.clicks, s.resources, s.pages, strict=True
        ):
            assert at == last
            seconds.update({(v, at, kind): n for kind, n in zip("crp", counts, strict=True)})
        pages.update(zip(p.visitor, p.second, p.kind, p.page, p.id, strict=True))
        for row in got.names.to_pylist():
            names[row.pop("visitor")] = row
        texts.update(zip(got.texts["page"].to_pylist(), got.texts["text"].to_pylist(), strict=True))
        robots |= {one.visitor: one for one in robot_clicks(got)}

    expected, asked = Counter(), Counter()
    for c in clicks:
        robot = c["agent"].startswith("Testbot")
        key = (c["visitor"], c["second"])
        expected.update({(*key, "c"): 1, (*key, "r"): int(c["kind"] == RESOURCE)})
        expected.update({(*key, "p"): int(c["kind"] == PAGE)})
        if c["kind"] == PAGE or (c["kind"] == ROBOTS_TXT and not robot):
            asked[*key, c["kind"], c["page_hash"], int(c["id"], 16)] += 1
            assert c["page"] == texts[c["page_hash"]]
        assert names[c["visitor"]] == {
            "address": c["address"], "agent": c["agent"], "declared": robot,
        }  # fmt: skip
    assert (expected, asked) == (seconds, pages)
    for visitor, one in robots.items():
        mine = sorted((c["second"], int(c["id"], 16)) for c in clicks if c["visitor"] == visitor)
        assert (len(mine), mine[0][0], mine[-1][0]) == (one.clicks, one.first_s, one.last_s)
        assert [ident for _, ident in mine[:IDS_KEPT]] == one.ids
    assert {c["visitor"] for c in clicks if c["agent"].startswith("Testbot")} == set(robots)


def test_every_bucket_gets_a_row_with_all_marks():
    """Every bucket gets a row with all marks: all buckets must compute the same low mark."""
    clicks = [click(5_000, who="a"), click(4_000, who="b")]
    table = table_of(clicks, ["n", "m"], FIRST_BATCH_MS)
    (rows,) = pack(table.to_batches(), 8)

    assert rows.schema.equals(packing.PACKED_SCHEMA)
    assert ['{"m": 4000, "n": 5000}'] * 8 == rows["marks"].to_pylist()
    assert [PUBLISHED_S] * 8 == rows["published_s"].to_pylist()
    assert [FIRST_BATCH_MS] * 8 == rows["batch_ms"].to_pylist()


def test_a_partition_without_clicks_sends_nothing():
    """A partition without clicks sends no rows."""
    assert [] == list(pack([], 4))
    assert [] == list(pack(table_of([], [], 0).to_batches(), 4))


def test_a_partition_in_several_arrow_batches_gives_one_row_per_bucket():
    """The number of Arrow batches in a partition does not change the packed rows."""
    clicks = [click(second, who=f"{second % 7}") for second in range(100)]
    table = table_of(clicks, ["n"] * 100, FIRST_BATCH_MS)

    assert list(pack(table.to_batches(max_chunksize=3), 4)) == list(pack(table.to_batches(), 4))


def test_ids_keep_the_order_of_their_texts():
    """Ids become unsigned 64-bit numbers in the order of their texts, also in a slice."""
    texts = [f"{one:016x}" for one in (7, 2**64 - 1, 0, 2**63)]
    column = pa.chunked_array([pa.array(["zz", *texts]).slice(1)])

    assert [7, 2**64 - 1, 0, 2**63] == ids_of(column).tolist()


@pytest.mark.parametrize("wrong", ["0123", "", "0123456789abcdef0"])
def test_an_invalid_message_id_is_refused(wrong):
    """An invalid message id raises a ValueError that shows it."""
    with pytest.raises(ValueError, match=f"column id: '{wrong}' is not a message id"):
        ids_of(pa.chunked_array([pa.array(["0" * 16, wrong])]))


def message(second, published_s=1_000, **fields):
    row = {
        "nsqd": "n", "id": f"{second:016x}", "batch_ms": 5, "address": "1.2.3.4", "page": "/",
        "timestamp": datetime.fromtimestamp(published_s + 0.9, UTC), "user_agent": "browser",
        "time": datetime.fromtimestamp(second, UTC), "reason": None,
    }  # fmt: skip
    return row | fields


def clicks(*messages):
    table = prepared(pa.Table.from_pylist(messages, PARSED))
    assert table.schema.equals(CLICKS)
    return table.to_pylist()


def test_a_click_time_after_its_publish_time_is_clamped():
    """A click time after the publish time is clamped for the low mark (`newest_s`)."""
    (one,) = clicks(message(1_200, page="/a.css"))

    assert {
        "visitor": hash_of("1.2.3.4\nbrowser"), "address": "1.2.3.4", "agent": "browser",
        "second": 1_200, "kind": RESOURCE, "page": "/a.css", "page_hash": hash_of("/a.css"),
        "id": f"{1_200:016x}", "nsqd": "n", "newest_s": 1_000, "published_s": 1_000, "batch_ms": 5,
    } == one  # fmt: skip


def test_rejected_messages_are_left_out():
    """Rejected messages are left out: the query `metrics` reports them."""
    broken = message(7, time=None, address=None, page=None, reason="no click")

    assert [5] == [row["second"] for row in clicks(broken, message(5), broken)]
    assert [] == clicks(broken)
    none = prepared(pa.Table.from_pylist([broken], PARSED))
    assert [] == list(pack_partition(none.to_batches(), blobs_of, 4))


def test_missing_agents_and_pages_become_dashes():
    """A missing agent or page becomes "-", but a missing page is of kind OTHER, not PAGE."""
    rows = clicks(message(1, user_agent=None, page=None), message(2, user_agent="-", page="-"))

    assert [("-", "-")] * 2 == [(row["agent"], row["page"]) for row in rows]
    assert [OTHER, PAGE] == [row["kind"] for row in rows]
    assert rows[0]["visitor"] == rows[1]["visitor"]


def test_agents_with_equal_beginnings_are_one_visitor():
    """Agents and pages are cut to 400 characters; agents with equal beginnings are one visitor."""
    rows = clicks(
        message(1, user_agent="a" * 400 + "b", page="/" + "é" * 500 + ".css"),
        message(2, user_agent="a" * 400 + "c"),
    )

    assert [400, 400] == [len(rows[0][name]) for name in ("agent", "page")]
    assert rows[0]["visitor"] == rows[1]["visitor"]
    assert RESOURCE == rows[0]["kind"]  # by its complete name


def test_a_pages_path_determines_its_kind():
    """A page's path decides its kind: page, resource, robots.txt or other."""
    expected = {
        "/": PAGE, "/a/b": PAGE, "/index.html": PAGE, "/a.php": PAGE, "/v1.2/notes": PAGE,
        "/a.css": RESOURCE, "/favicon.ico": RESOURCE, "/b/IMG.JPG": RESOURCE, "/a.b.js": RESOURCE,
        "/robots.txt": ROBOTS_TXT, "/x/robots.txt": OTHER, "/blog/feed/": OTHER, "/feed": OTHER,
        "/x.tar.gz": OTHER, "/news.rss": OTHER, "-": PAGE, None: OTHER,
    }  # fmt: skip

    assert [*expected.values()] == page_kinds(pa.array([*expected], pa.string())).tolist()
    assert [] == page_kinds(pa.array([], pa.string())).tolist()
