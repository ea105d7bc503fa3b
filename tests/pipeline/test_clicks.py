"""What a click is: forms that are read, lines that are not, and none that stops the query."""

import itertools
import json
import random
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparq.demo.generator import generate
from sparq.pipeline import click_reader, clicks
from tests.pipeline import plain, staged_clicks

ACCESS_LOG = Path(__file__).parents[3] / "shared" / "data" / "access.log"
COMPARED = ("time", "address", "page", "status", "bytes", "referer", "user_agent")
TIME = "[10/Oct/2025:13:55:36 -0700]"
UTC_TIME = datetime(2025, 10, 10, 20, 55, 36, tzinfo=UTC)

READ = {
    f'1.2.3.4 - - {TIME} "GET /a?b=c HTTP/1.0" 200 2326': {
        "time": UTC_TIME, "address": "1.2.3.4", "user": "-", "method": "GET", "path": "/a?b=c",
        "page": "/a", "protocol": "HTTP/1.0", "status": 200, "bytes": 2326, "format": "common",
    },
    f'::1 - frank {TIME} "GET / HTTP/1.1" 304 - "http://r/" "Mozilla \\"x\\" (y)"\r\n': {
        "address": "::1", "user": "frank", "bytes": 0, "referer": "http://r/",
        "user_agent": 'Mozilla \\"x\\" (y)', "format": "combined",
    },
    f'www.x:443 1.2.3.4 - - {TIME} "GET / HTTP/1.1" 200 1 "-" "-"': {
        "vhost": "www.x:443", "address": "1.2.3.4", "user": "-", "user_agent": "-",
    },
    f'1.2.3.4, 10.0.0.1 - joe smith {TIME} "GET / HTTP/1.1" 200 1 "-" "-" "9.9.9.9" 0.01': {
        "vhost": None, "address": "1.2.3.4", "user": "joe smith", "format": "combined",
    },
    f'1.2.3.4 - - {TIME} "-" 408 - "-" "-"': {"method": None, "page": None, "status": 408},
    f'1.2.3.4 - - {TIME} "\\x16\\x03\\x01" 400 0': {"method": None, "path": None, "status": 400},
    f'1.2.3.4 - - {TIME} "" - - "-" "-"': {"page": None, "status": None, "bytes": 0},
    f'1.2.3.4 - - {TIME} "GET /a b c HTTP/1.1" 404 7': {"path": "/a b c", "page": "/a b c"},
    f'1.2.3.4 - - {TIME} "GET https://h.example/p?q HTTP/1.1" 200 7': {"page": "/p"},
    '1.2.3.4 - - [2025-10-10T20:55:36Z] "GET /old" 200 7': {"time": UTC_TIME, "page": "/old"},
    '{"time": 1760129736, "ip": "1.2.3.4", "path": "/a?b", "method": "GET"}': {
        "time": UTC_TIME, "page": "/a", "method": "GET", "status": None, "bytes": 0,
        "format": "json",
    },
    '{"ts": 1760129736000.5, "client_ip": "1.2.3.4", "request": "GET /a HTTP/2.0"}': {
        "time": UTC_TIME.replace(microsecond=500), "page": "/a", "protocol": "HTTP/2.0",
    },
    '{"@timestamp": "2025-10-10 22:55:36+0200", "clientip": "::1", "uri": "/", "status": "404",'
    ' "bytes": 12, "agent": "a\\u0001\\"b"}': {
        "time": UTC_TIME, "status": 404, "bytes": 12, "user_agent": 'a\x01"b',
    },
}  # fmt: skip

UNREADABLE = {
    "": "the message is empty",
    "  \r\n": "the message is empty",
    "hello": "not an access-log line and not JSON",
    '1.2.3.4 - - "GET / HTTP/1.1" 200 1': "no time in brackets after address, identity and user",
    f'1.2.3.4 - - {TIME[:-1]} "GET / HTTP/1.1" 200 1': "no time in brackets after address,"
    " identity and user",
    f"1.2.3.4 - - {TIME} GET / 200 1": "no quoted request after the time",
    f'1.2.3.4 - - {TIME} "GET / HTTP/1.1 200 1': "the request is never closed",
    f'1.2.3.4 - - {TIME} "GET / HTTP/1.1" OK 1': "the status is not three digits",
    f'1.2.3.4 - - {TIME} "GET / HTTP/1.1" 200 many': "the size is not a number",
    f'1.2.3.4 - - {TIME} "GET / HTTP/1.1" 200 {"9" * 19}': "the size is not a number",
    f'1.2.3.4 - - {TIME} "GET / HTTP/1.1" 200 1 "http://r': "the referer is never closed",
    f'1.2.3.4 - - {TIME} "GET / HTTP/1.1" 200 1 "-"': "the user agent is missing",
    f'1.2.3.4 - - {TIME} "GET / HTTP/1.1" 200 1 "-" "Mozilla': "the user agent is never closed",
    f'1.2.3.4 - - {TIME} "GET / HTTP/1.1" 200 1 "-" "M" "x': "the line goes on in an unknown form",
    f'1.2.3.4\x01 - - {TIME} "GET / HTTP/1.1" 200 1': "the line has a control character",
    '1.2.3.4 - - [31/Feb/2025:13:55:36 +0000] "GET / HTTP/1.1" 200 1': "the time is not a time",
    '1.2.3.4 - - [10/Oct/2025:13:55:36 [0000] "GET / HTTP/1.1" 200 1': "the time is not a time",
    '1.2.3.4 - - [yesterday] "GET / HTTP/1.1" 200 1': "the time is not a time",
    f'<a> - - {TIME} "GET / HTTP/1.1" 200 1': "the address is neither an IP address nor a name",
    '{"time": 1, "ip": "::1", "path": "/"': "the JSON is not one valid object",
    '{"time": 1, "ip": "::1", "path": "/"} {"a": 1}': "the JSON is not one valid object",
    '{"time": 1, "ip": "::1", "path": "/"}, {"a": 1}': "the JSON is not one valid object",
    '{"ip": "::1", "path": "/"}': "the time is missing",
    '{"time": 1e300, "ip": "::1", "path": "/"}': "the time is not a time",
    '{"time": -1, "ip": "::1", "path": "/"}': "the time is not a time",
    '{"time": 1, "path": "/"}': "the address is missing",
    '{"time": 1, "ip": {"v": 4}, "path": "/"}': "the address is neither an IP address nor a name",
    '{"time": 1, "ip": "::1"}': "the request is missing",
    '{"time": 1, "ip": "::1", "path": "/", "status": "fine"}': "the status is not three digits",
    '{"time": 1, "ip": "::1", "path": "/", "bytes": 1.5}': "the size is not a number",
}

HOSTILE = [
    b"\x00", b"\xff\xfe", b"{", b"[]", b"null", b'"' * 1_000_000, b"\\" * 1_000_000,
    b"\n" * 1_000_000 + b"x", b" " * 1_000_000 + b"{", b"{" * 100_000, b'{"a":' * 100_000,
    b'{"time":' + b"[" * 200_000, b"1 2 3 [" * 100_000,
    f'1.2.3.4 - - {TIME} "'.encode() + b'\\"' * 400_000,
    f'1.2.3.4 - - {TIME} "GET '.encode() + b" " * 900_000 + b'x" 200 1',
    f'1.2.3.4 - - {TIME} "GET / HTTP/1.1" 200 1'.encode() + b" x" * 400_000 + b' "',
    f'1.2.3.4 - - {TIME} "GET / HTTP/1.1" 200 1 "-" "'.encode() + b"\xe4" * 1000 + b'"',
    '{"time": "\N{BOMB}", "ip": "\u0661", "path": "\\ud800"}'.encode(),
]  # fmt: skip


def batch_of(bodies):
    """A batch as it comes from Spark, with a column that has nothing to do with it."""
    return pa.record_batch(
        {"index": pa.array(range(len(bodies)), pa.int64()), "body": pa.array(bodies, pa.binary())}
    )


def parsed(bodies):
    """The parsed rows as dictionaries, in the order of the messages."""
    table = clicks.parse_arrow(batch_of(bodies))
    table.validate(full=True)
    assert table["index"].to_pylist() == list(range(len(bodies)))
    return table.to_pylist()


def carefully(body):
    """What the careful reading makes of a message, as a row."""
    click = click_reader.read(body)._asdict()
    if click["time"] is not None:
        click["time"] = pa.scalar(click["time"], pa.timestamp("us", "UTC")).as_py()
    return click


def clicks_of(rows):
    """Rows without what is not the click's own."""
    return [{name: row[name] for name in clicks.CLICK_COLUMNS} for row in rows]


def test_the_forms_of_a_click():
    """Common, combined, their usual extensions, and JSON under its usual names."""
    rows = parsed([line.encode() for line in READ])

    for row, expected in zip(rows, READ.values(), strict=True):
        assert row["reason"] is None, row["body"]
        assert {name: row[name] for name in expected} == expected


def test_what_cannot_be_read_says_why():
    """The first thing that is wrong."""
    rows = parsed([line.encode() for line in UNREADABLE])

    assert {row["body"].decode(): row["reason"] for row in rows} == UNREADABLE


def test_nothing_stops_it_and_nothing_is_lost():
    """A megabyte of anything comes back with its reason, its body as it came."""
    rows = parsed(HOSTILE)

    assert [row["body"] for row in rows] == HOSTILE
    assert [bool(row["reason"]) for row in rows].count(False) == 2


def damaged(line, rng):
    """A line with a few characters lost, doubled or exchanged."""
    for _ in range(rng.randrange(3)):
        at = rng.randrange(len(line))
        put = rng.choice([b"", b'"', b"\\", b" ", b"[", b"]", b"-", b"7", b"x", line[at : at + 1]])
        line = line[:at] + put + line[at + rng.randrange(2) :]
    return line or b"-"


def answer(body):
    """What plain Python reads, None where it reads nothing."""
    try:
        found = plain.read(body)
    except plain.Unreadable:
        return None
    return tuple(found[name] for name in COMPARED)


def same_as_plain_python(rows):
    for row in rows:
        read = tuple(row[name] for name in COMPARED) if row["reason"] is None else None
        assert read == answer(row["body"]), row


def test_it_reads_what_plain_python_reads():
    """Thousands of lines, most of them damaged at random."""
    rng = random.Random(7)
    lines = generate(1500, seed=7).lines
    bodies = [damaged(line, rng) for line in lines * 2]
    rows = parsed(bodies)

    same_as_plain_python(rows)
    assert 0.2 < sum(row["reason"] is not None for row in rows) / len(rows) < 0.6


@pytest.mark.skipif(not ACCESS_LOG.exists(), reason="needs the sample log")
def test_it_reads_a_real_log():
    """Every line as plain Python reads it; the one whose user agent is never closed is rejected."""
    rows = parsed(ACCESS_LOG.read_bytes().splitlines())

    same_as_plain_python(rows)
    assert [row["reason"] for row in rows if row["reason"]] == ["the user agent is never closed"]


# For each place of a line, what is ordinary first, then what only nearly is.
WORDS = {
    "head": (
        "1.2.3.4 - -", "::1 - joe", "www.x:443 1.2.3.4 - -", "www.x 1.2.3.4 - -", "1.2.3.4:80 - -",
        "a:1 b:2 - -", "1.2.3.4, 10.0.0.1 - -", "1.2.3.4 - joe smith", "1.2.3.4 - [x", "a\tb - -",
        "1.2.3.4 - a\\b", "1.2.3.4 -", "x:80 1.2.3.4 -", "h 1.2.3.4, 2.3.4.5 - -", "\x01 - -",
        "fe80::1%eth0 - -", "a" * 256 + " - -", "\u0661 - -", "1.2.3.4 - \ufffd",
    ),
    "time": (
        "02/Mar/2026:10:00:00 +0000", "29/Feb/2024:23:59:59 -0730", "29/Feb/2025:10:00:00 +0000",
        "31/Apr/2026:10:00:00 +0000", "31/Jul/2026:10:00:00 +0545", "31/Aug/2026:10:00:00 +1759",
        "30/Feb/2026:10:00:00 +0000", "28/Feb/2026:10:00:00 +1800", "01/Jan/2026:10:00:00 +1801",
        "01/Jan/1970:00:00:00 +0100", "31/Dec/9999:23:59:59 -0100", "01/Foo/2026:10:00:00 +0000",
        "00/Mar/2026:10:00:00 +0000", "02/Mar/2026:24:00:00 +0000", "02/Mar/2026:10:00:60 +0000",
        "02/mar/2026:10:00:00 +0000", "02/Mar/0000:10:00:00 +0000", "2026-03-02T10:00:00+00:00",
        "2026-03-02 10:00:00", "1760129736", "31/Sep/2026:10:00:00 -0030", "31/Oct/2026:10:00:00 Z",
    ),
    "request": (
        "GET / HTTP/1.1", "GET /a?b=c?d HTTP/2.0", "POST /a", "GET /a?b HTTP/1", "get /a HTTP/1.1",
        "GET  /a HTTP/1.1", "GET /a b HTTP/1.1", "GET /a HTTP/1.1 ", "-", "",
        "GET http://h/p HTTP/1.1",
        "GET /\u00e9 HTTP/1.1", "GET * HTTP/1.1", "GET /a\\x HTTP/1.1", "GET /a HTTP/1.11",
        "GET /a HTTP/", "M-SEARCH /a HTTP/1.1", "GET ?a HTTP/1.1", "GET /a\u2028b HTTP/1.1",
        "GET /a\x01b HTTP/1.1", "GET /a\nb HTTP/1.1", "GET /a \x01 HTTP/1.1", " GET / HTTP/1.1",
    ),
    "status": ("200", "-", "007", "20", "2000", "ok", "+20", "\u0662\u0660\u0660"),
    "size": ("17", "-", "0", "007", "9" * 18, "9" * 19, "+1", "1.5", "\u0661"),
    "rest": (
        ' "-" "-"', "", ' "http://r/" "Mozilla (x)"', ' "" ""',
        ' "-" "M" "-" 0.1', ' "-" "M" 0.1 x',
        ' "a\\"b" "c"', ' "-" "M\\\\"', ' "-" "M', ' "-"', ' "-" "M" ', ' "-" "M"x', " 0.1 0.2",
        ' "-" "M" "x', ' "\u00e9" "\U0001f4a3"', ' "a\nb" "c\rd"', ' "-" "M"\r\n', ' "-" "M"\u2028',
        ' "-" "\ufffd"', ' "-" "a\x01b"', ' "-"  "M"', ' "-" "M" \u0085', ' "-" "M" "\u00e9"\n\n',
    ),
}  # fmt: skip
# The same of JSON values; None: the key is not there.
VALUES = {
    "ip": (
        "1.2.3.4", None, "::1", 7, {"v": 4}, "a b", "x:80 1.2.3.4", "\x01", "1.2.3.4\x01", "",
        "[::1]",
        "\u0661", "1.2.3.4, 10.0.0.1", True,
    ),
    "time": (
        "2026-03-02T10:00:00+00:00", None, "2026-03-02T10:00:00Z", "2026-03-02 10:00:00",
        "2026-03-02T10:00:00-0730", "2026-03-02T10:00:00.5Z", "2026-03-02T10:00Z", 1760129736,
        1760129736000.5, "1e9", "2024-02-29T10:00:00Z", "2025-02-29T10:00:00Z",
        "2026-13-01T10:00:00Z",
        "2026-00-01T10:00:00Z", "2026-12-31T10:00:00+17:59", "2026-12-31T10:00:00+18:01", -1,
        "02/Mar/2026:10:00:00 +0000", "1969-12-31T23:59:59Z", "9999-12-31T23:59:59-01:00", "",
        "2026-06-31T10:00:00Z", "2026-Ju-30T10:00:00Z",
    ),
    "request": (
        "GET /a?b HTTP/1.1", None, *WORDS["request"],
        'GET /"a" HTTP/1.1', "GET /a HTTP/1.1\x01200\x011",
    ),
    "method": ("GET", None, "get", "GET /a", "GET /a HTTP/1.1", "", 5),
    "path": ("/a?b", None, "/", "", "a", "/a b", "HTTP/1.1", "/x HTTP/1.1",
        "/\x01", "/x\x01200\x011"),
    "status": (200, None, "404", "-", "", "20", 2000, 1.5, "200\x01"),
    "bytes": (12, None, "-", "12", -1, 1.5, 10**18, "", "\x01"),
    "http_referer": ("-", None, "", 'a" "b', "a\\b", "\x01", "\ud800", "\ufffd", "\u00e9"),
    "agent": ("M", None, "", 'a" "b', "\x01", "\U0001f4a3", 5),
    "vhost": (None, "h", ""),
}  # fmt: skip


def nearly_ordinary(pools, form):
    """Each odd value of each place in an otherwise ordinary message, and odd ones together."""
    rng = random.Random(11)
    usual = {name: pool[0] for name, pool in pools.items()}
    for name, pool in pools.items():
        yield from (form(usual | {name: value}) for value in pool)
    for one, other in itertools.combinations(pools, 2):
        for _ in range(12):
            odd = {name: rng.choice(pools[name]) for name in (one, other)}
            yield form(usual | odd)
    for _ in range(200):
        yield form({name: rng.choice(pool) for name, pool in pools.items()})


def as_line(words):
    text = '{head} [{time}] "{request}" {status} {size}{rest}'.format(**words)
    return text.encode("utf-8", "surrogatepass")


def as_json(values):
    found = {name: value for name, value in values.items() if value is not None}
    return json.dumps(found).encode()


def odd_bodies():
    """What is near to ordinary, and bytes that are no UTF-8 in the middle of it."""
    rng = random.Random(12)
    bodies = [*nearly_ordinary(WORDS, as_line), *nearly_ordinary(VALUES, as_json)]
    log = ACCESS_LOG.read_bytes().splitlines() if ACCESS_LOG.exists() else []
    bodies += [damaged(line, rng) for line in generate(800, seed=8).lines + log[::20]]
    for body in rng.sample(bodies, 200):
        at = rng.randrange(len(body) + 1)
        put = rng.choice([b"\xff", b"\xc3", b"\xe2\x80", b"\xed\xa0\x80", b"\x01", b"\x00", b"\n"])
        bodies.append(body[:at] + put + body[at:])
    ends = [b"\r\n", b"\n", b" ", b"\t", b"{", b"}", b",{}"]
    bodies += [
        end + body + other for body in bodies[::40] for end in (b"", b" ", b"\n") for other in ends
    ]
    lines = [line.encode() for line in (*READ, *UNREADABLE)]
    return bodies + lines + HOSTILE


def test_the_ordinary_ways_give_what_the_careful_one_gives():
    """All columns and reasons, whatever else is in the batch and wherever it begins."""
    bodies = odd_bodies()
    random.Random(13).shuffle(bodies)
    expected = [carefully(body) for body in bodies]
    whole = batch_of(bodies)

    assert clicks_of(parsed(bodies)) == expected
    for size in (1, 2, 37):
        starts = range(0, 60 * size, size)
        found = [clicks.parse_arrow(whole.slice(at, size)) for at in starts]
        assert clicks_of(pa.concat_tables(found).to_pylist()) == expected[: 60 * size]


ORDINARY = [
    b'1.2.3.4 - joe [02/Mar/2026:10:00:00 +0130] "GET /a?b HTTP/1.1" 200 17 "-" "M (x)"',
    b'h.x:80 ::1 - - [29/Feb/2024:23:59:59 -0000] "POST /a HTTP/2" 404 - "r" "M" "9.9.9.9" 0.1',
    b'{"time": "2026-03-02T10:00:00.5Z", "ip": "1.2.3.4", "request": "GET /a HTTP/1.1", "x": 1}',
    b'{"ts":1760129736,"ip":"::1","path":"/a?b","method":"GET","status":200,"t":0.25}',
]


@st.composite
def nearly_ordinary_bodies(draw):
    """Ordinary messages, a few of whose bytes are lost, doubled or replaced."""
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
def test_any_batch_gives_what_the_careful_way_gives(bodies):
    """Each row alone decides what becomes of it."""
    assert clicks_of(parsed(bodies)) == [carefully(body) for body in bodies]


def test_nearly_all_messages_are_ordinary(monkeypatch):
    """Of generated clicks only those that are damaged are read one by one."""
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


def test_only_the_columns_that_are_asked_for():
    """In the order of CLICK_COLUMNS, behind what was there; a name that is none is named."""
    batch = batch_of(ORDINARY)

    assert clicks.parse_arrow(batch, ["status", "time"]).column_names == [
        "index", "body", "time", "status"]  # fmt: skip
    assert clicks.parse_arrow(batch, []).equals(pa.table(batch))
    with pytest.raises(ValueError, match="a click has no column 'agent'; choose from time, "):
        clicks.parse_arrow(batch, ["agent"])


def test_a_batch_without_rows_has_the_same_columns():
    """Types and names as ever; so has a message that is null, and it is an empty one."""
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
    """Rows, types and reasons equal those of the reading in nine steps by Spark's functions.

    But that one took a string with a bad escape or a control character as the end of an object.
    """
    frame = messages(odd_bodies()).coalesce(1)
    found, expected = clicks.parse(frame), staged_clicks.parse(frame)

    assert [(field.name, field.dataType) for field in found.schema] == [
        (field.name, field.dataType) for field in expected.schema
    ]
    pairs = zip(found.toArrow().to_pylist(), expected.toArrow().to_pylist(), strict=True)
    different = [(new, old) for new, old in pairs if new != old]
    reasons = {new["reason"] for new, _ in different}
    assert reasons <= {"the JSON is not one valid object"}
    assert not any(as_json_module_reads(new["body"]) for new, _ in different)
    assert len(different) < 5


def test_nothing_depends_on_the_sessions_time_zone(spark, messages):
    """Instants are the same in Kathmandu."""
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
