"""Parsing clicks: the readable forms, the reasons for others; no input stops a query."""

import json
import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparq.demo.generator import generate
from sparq.pipeline import click_reader, clicks
from tests.pipeline import plain, spark_sql_clicks
from tests.pipeline.click_examples import (
    ACCESS_LOG,
    HOSTILE,
    ORDINARY,
    READ,
    UNREADABLE,
    WORDS,
    as_line,
    damaged,
    odd_bodies,
)

COMPARED = ("time", "address", "page", "status", "bytes", "referer", "user_agent")


def batch_of(bodies):
    """A batch as it comes from Spark, with a column that is not part of a click."""
    return pa.record_batch(
        {"index": pa.array(range(len(bodies)), pa.int64()), "body": pa.array(bodies, pa.binary())}
    )


def parsed(bodies):
    """The parsed rows as dictionaries, in the order of the messages."""
    table = clicks.parse_arrow(batch_of(bodies))
    table.validate(full=True)
    assert table["index"].to_pylist() == list(range(len(bodies)))
    return table.to_pylist()


def read_carefully(body):
    """The row that the careful reader gives for a message."""
    click = click_reader.read(body)._asdict()
    if click["time"] is not None:
        click["time"] = pa.scalar(click["time"], pa.timestamp("us", "UTC")).as_py()
    return click


def clicks_of(rows):
    """The rows with the columns of a click only."""
    return [{name: row[name] for name in clicks.CLICK_COLUMNS} for row in rows]


def test_all_click_formats_are_read():
    """The common and combined formats, their usual extensions, and JSON are read."""
    rows = parsed([line.encode() for line in READ])

    for row, expected in zip(rows, READ.values(), strict=True):
        assert row["reason"] is None, row["body"]
        assert {name: row[name] for name in expected} == expected


def test_an_unreadable_message_has_a_reason():
    """An unreadable message has the first error as its reason."""
    rows = parsed([line.encode() for line in UNREADABLE])

    assert {row["body"].decode(): row["reason"] for row in rows} == UNREADABLE


def test_hostile_messages_are_returned_unchanged_with_a_reason():
    """Hostile messages of up to 1 MB come back with a reason and an unchanged body."""
    rows = parsed(HOSTILE)

    assert [row["body"] for row in rows] == HOSTILE
    assert [bool(row["reason"]) for row in rows].count(False) == 2


def answer(body):
    """The fields that plain Python reads; None if the body is not a click."""
    try:
        found = plain.read(body)
    except plain.Unreadable:
        return None
    return tuple(found[name] for name in COMPARED)


def same_as_plain_python(rows):
    for row in rows:
        read = tuple(row[name] for name in COMPARED) if row["reason"] is None else None
        assert read == answer(row["body"]), row


def test_damaged_lines_are_read_as_by_plain_python():
    """3,000 lines, most of them damaged at random, are read as by plain Python."""
    rng = random.Random(7)
    lines = generate(1500, seed=7).lines
    bodies = [damaged(line, rng) for line in lines * 2]
    rows = parsed(bodies)

    same_as_plain_python(rows)
    assert 0.2 < sum(row["reason"] is not None for row in rows) / len(rows) < 0.6


@pytest.mark.skipif(not ACCESS_LOG.exists(), reason="needs the sample log")
def test_a_real_log_is_read_as_by_plain_python():
    """Every line of a real log is read as by plain Python; one has no closing quote."""
    rows = parsed(ACCESS_LOG.read_bytes().splitlines())

    same_as_plain_python(rows)
    assert [row["reason"] for row in rows if row["reason"]] == ["the user agent is never closed"]


def test_ordinary_and_careful_readers_agree():
    """Ordinary and careful readers agree in all columns, for any batch and any slice of it."""
    bodies = odd_bodies()
    random.Random(13).shuffle(bodies)
    expected = [read_carefully(body) for body in bodies]
    whole = batch_of(bodies)

    assert clicks_of(parsed(bodies)) == expected
    for size in (1, 2, 37):
        starts = range(0, 60 * size, size)
        found = [clicks.parse_arrow(whole.slice(at, size)) for at in starts]
        assert clicks_of(pa.concat_tables(found).to_pylist()) == expected[: 60 * size]


@st.composite
def nearly_ordinary_bodies(draw):
    """Ordinary messages with up to three places removed or replaced."""
    body = bytearray(draw(st.sampled_from(ORDINARY)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(body) - 1))
        put = draw(
            st.binary(max_size=2) | st.sampled_from([b'"', b" ", b"\\", b"0", b"}", b",", b":"])
        )
        body[at : at + draw(st.integers(0, 1))] = put
    return bytes(body)


@settings(max_examples=300)
@given(st.lists(nearly_ordinary_bodies() | st.binary(max_size=30), max_size=6))
def test_a_rows_result_does_not_depend_on_its_batch(bodies):
    """A row's result does not depend on the other rows of its batch."""
    assert clicks_of(parsed(bodies)) == [read_carefully(body) for body in bodies]


def test_nearly_all_messages_are_ordinary(monkeypatch):
    """Of generated clicks only damaged ones are read one by one."""
    careful = []
    monkeypatch.setattr(
        clicks, "read", lambda body: careful.append(body) or click_reader.read(body)
    )
    made = generate(4000, seed=5)
    lines = list(dict.fromkeys(made.lines))
    clicks.parse_arrow(batch_of(lines))

    assert len(careful) <= made.damaged

    careful.clear()
    rows = clicks.parse_arrow(batch_of(ORDINARY)).to_pylist()
    assert careful == []
    assert [row["reason"] for row in rows] == [None] * len(ORDINARY)


def test_only_the_requested_columns_are_added():
    """Requested columns follow the existing ones, in the order of CLICK_COLUMNS.

    An unknown name raises a ValueError that lists the columns.
    """
    batch = batch_of(ORDINARY)

    assert clicks.parse_arrow(batch, ["status", "time"]).column_names == [
        "index", "body", "time", "status"]  # fmt: skip
    assert clicks.parse_arrow(batch, []).equals(pa.table(batch))
    with pytest.raises(ValueError, match="a click has no column 'agent'; choose from time, "):
        clicks.parse_arrow(batch, ["agent"])


def test_a_batch_without_rows_has_the_same_columns():
    """An empty batch has the same schema; a null body is an empty message."""
    empty = clicks.parse_arrow(batch_of([]))

    assert empty.schema == clicks.parse_arrow(batch_of(ORDINARY)).schema
    assert empty.schema.field("time") == clicks.CLICK_SCHEMA.field("time")
    assert parsed([None])[0]["reason"] == "the message is empty"


def as_json_module_reads(body):
    """Whether Python's own JSON reader finds one object."""
    try:
        return isinstance(json.loads(body), dict)
    except (ValueError, RecursionError):
        return False


def test_spark_gives_the_same_columns_as_its_own_functions(messages):
    """Rows, types and reasons equal those of Spark's own functions (`spark_sql_clicks`).

    Exception: there, a string with a bad escape or a control character ended the JSON object.
    """
    frame = messages(odd_bodies()).coalesce(1)
    found, expected = clicks.parse(frame), spark_sql_clicks.parse(frame)

    assert [(field.name, field.dataType) for field in found.schema] == [
        (field.name, field.dataType) for field in expected.schema
    ]
    pairs = zip(found.toArrow().to_pylist(), expected.toArrow().to_pylist(), strict=True)
    different = [(new, old) for new, old in pairs if new != old]
    reasons = {new["reason"] for new, _ in different}
    assert reasons <= {"the JSON is not one valid object"}
    assert not any(as_json_module_reads(new["body"]) for new, _ in different)
    assert len(different) < 5


def test_event_times_do_not_depend_on_the_sessions_time_zone(spark, messages):
    """Event times do not depend on the session's time zone."""
    usual = {name: pool[0] for name, pool in WORDS.items()}
    frame = messages([as_line(usual | {"time": time}) for time in WORDS["time"]])

    def seconds():
        rows = (
            clicks.parse(frame, ["time"]).selectExpr("index", "unix_micros(time) AS at").collect()
        )
        return sorted(map(tuple, rows))

    here = seconds()
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        there = seconds()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)

    assert there == here
