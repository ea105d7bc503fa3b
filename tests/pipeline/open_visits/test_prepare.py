"""Parsed messages become clicks as the state wants them."""

from datetime import UTC, datetime

import pyarrow as pa

from sparq.pipeline.open_visits.pack import CLICKS, blobs_of, kinds_of, prepared
from sparq.pipeline.packing import pack_partition
from sparq.pipeline.visits import OTHER, PAGE, RESOURCE, ROBOTS_TXT
from tests.pipeline.open_visits.machine import hash_of

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


def test_a_message_becomes_a_click():
    """A clock that runs ahead does not move the low mark beyond the time of publishing."""
    (one,) = clicks(message(1_200, page="/a.css"))

    assert {
        "visitor": hash_of("1.2.3.4\nbrowser"), "address": "1.2.3.4", "agent": "browser",
        "second": 1_200, "kind": RESOURCE, "page": "/a.css", "page_hash": hash_of("/a.css"),
        "id": f"{1_200:016x}", "nsqd": "n", "newest_s": 1_000, "published_s": 1_000, "batch_ms": 5,
    } == one  # fmt: skip


def test_what_cannot_be_read_is_no_click():
    """Another query reports it."""
    broken = message(7, time=None, address=None, page=None, reason="no click")

    assert [5] == [row["second"] for row in clicks(broken, message(5), broken)]
    assert [] == clicks(broken)
    none = prepared(pa.Table.from_pylist([broken], PARSED))
    assert [] == list(pack_partition(none.to_batches(), blobs_of, 4))


def test_missing_agents_and_pages_are_dashes():
    """A broken request asks for nothing; its page may not be taken for one named so."""
    rows = clicks(message(1, user_agent=None, page=None), message(2, user_agent="-", page="-"))

    assert [("-", "-")] * 2 == [(row["agent"], row["page"]) for row in rows]
    assert [OTHER, PAGE] == [row["kind"] for row in rows]
    assert rows[0]["visitor"] == rows[1]["visitor"]


def test_long_texts_are_cut_and_make_one_visitor():
    """A finding must fit into a message, and its digest must tell its visitor from others."""
    rows = clicks(
        message(1, user_agent="a" * 400 + "b", page="/" + "é" * 500 + ".css"),
        message(2, user_agent="a" * 400 + "c"),
    )

    assert [400, 400] == [len(rows[0][name]) for name in ("agent", "page")]
    assert rows[0]["visitor"] == rows[1]["visitor"]
    assert RESOURCE == rows[0]["kind"]  # by its whole name


def test_kinds_are_told_by_the_page():
    """Pages, what they load, robots.txt, and the rest."""
    expected = {
        "/": PAGE, "/a/b": PAGE, "/index.html": PAGE, "/a.php": PAGE, "/v1.2/notes": PAGE,
        "/a.css": RESOURCE, "/favicon.ico": RESOURCE, "/b/IMG.JPG": RESOURCE, "/a.b.js": RESOURCE,
        "/robots.txt": ROBOTS_TXT, "/x/robots.txt": OTHER, "/blog/feed/": OTHER, "/feed": OTHER,
        "/x.tar.gz": OTHER, "/news.rss": OTHER, "-": PAGE, None: OTHER,
    }  # fmt: skip

    assert [*expected.values()] == kinds_of(pa.array([*expected], pa.string())).tolist()
    assert [] == kinds_of(pa.array([], pa.string())).tolist()
