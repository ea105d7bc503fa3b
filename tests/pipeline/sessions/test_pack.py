"""Packing: each click goes once to the bucket of its visitor, in the form of the state."""

import json

import polars as pl

from sparq.demo.generator import generate
from sparq.pipeline.sessions.pack import BUCKETS_PER_PARTITION, from_blob, pack
from tests.pipeline.sessions.visitors import BEGIN_S, BROWSER, RULES, Click, messages, packed_rows


def test_every_click_is_in_one_bucket_and_every_bucket_gets_a_row():
    """All readable clicks are in the buckets, each once; a visitor is in one bucket only."""
    day = generate(3_000, 5)
    rows = packed_rows(messages(day.lines), buckets=16)
    clicks = [from_blob(one) for one in rows["clicks"] if one]
    visitors = [set(from_blob(one)["visitor"]) for one in rows["visitors"] if one]

    assert list(rows["bucket"]) == list(range(16))
    assert pl.concat(clicks)["id"].n_unique() == sum(map(len, clicks)) == 3_000 - day.damaged
    assert [set(one["visitor"]) for one in clicks] == visitors
    assert len(set().union(*visitors)) == sum(map(len, visitors))
    assert rows["marks"].nunique() == 1


def test_a_click_is_packed_with_what_the_rules_use():
    """Columns of a packed click: hash of its visitor, time, kind, page, message id, `followed`."""
    table = messages([Click(5, "/a?x=1", referer="http://x/").line()])
    table = table.set_column(1, "id", [["f" * 16]])
    (row,) = packed_rows(table).to_dict("records")
    (click,), (visitor,) = (from_blob(row[name]).to_dicts() for name in ("clicks", "visitors"))

    assert {**click, "visitor": 0} == {
        "visitor": 0,
        "second": BEGIN_S + 5,
        "kind": "page",
        "page": "/a",
        "id": 2**64 - 1,
        "followed": True,
    }
    assert click["visitor"] == visitor.pop("visitor") == 3787890925228041834
    assert visitor == {"address": "203.0.113.7", "user_agent": BROWSER, "robot": None}


def test_marks_are_the_newest_times_of_each_nsqd_but_not_of_the_future():
    """A mark is an nsqd's newest event time, at most the publish time; of clicks only."""
    table = messages(
        [Click(at).line() for at in (5, 9, 99)] + [b"no click"], published_s=BEGIN_S + 50
    )
    (row,) = packed_rows(table).to_dict("records")
    (nothing,) = packed_rows(messages([b"no click"])).to_dict("records")

    assert json.loads(row["marks"]) == {"a": BEGIN_S + 50}
    assert (json.loads(nothing["marks"]), nothing["clicks"]) == ({}, b"")
    assert nothing["published_s"] == BEGIN_S


def test_clicks_that_tell_no_visitor_are_in_no_session():
    """Without an address, clicks of strangers would be one endless session. Marks count them."""
    body = b'{"time": "2026-11-21T00:00:%02dZ", "url": "/a", "http_user_agent": "Mozilla/5.0"}'
    lines = [Click(1).line(), *(body % at for at in range(2, 60))]
    (row,) = packed_rows(messages(lines, published_s=BEGIN_S + 99)).to_dict("records")

    assert [BEGIN_S + 1] == from_blob(row["clicks"])["second"].to_list()
    assert {"a": BEGIN_S + 59} == json.loads(row["marks"])


def test_a_partition_is_packed_as_one():
    """Several Arrow batches give one row for each bucket; an empty partition gives none.

    There are 8 buckets per shuffle partition, a number that the checkpoint fixes.
    """
    table = messages([Click(at).line() for at in range(4)])
    rows = pack(table.to_batches(max_chunksize=2), RULES, BUCKETS_PER_PARTITION * 1)

    assert [len(one) for one in rows] == [8]
    assert [*pack(table.slice(0, 0).to_batches(), RULES, 8)] == []
