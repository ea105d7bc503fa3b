"""Example clicks for several tests: readable, unreadable, hostile and almost ordinary ones."""

import itertools
import json
import random
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from sparq.demo.generator import generate
from sparq.pipeline.text_spans import Text

ACCESS_LOG = Path(__file__).parents[3] / "shared" / "data" / "access.log"
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


def damaged(line, rng):
    """A line with up to two characters removed, doubled or replaced."""
    for _ in range(rng.randrange(3)):
        at = rng.randrange(len(line))
        put = rng.choice([b"", b'"', b"\\", b" ", b"[", b"]", b"-", b"7", b"x", line[at : at + 1]])
        line = line[:at] + put + line[at + rng.randrange(2) :]
    return line or b"-"


# For each part of a line, an ordinary value first, then unusual ones.
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


# The same for JSON values; None: the key is absent.
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
    """Messages with each unusual value alone, with pairs of them, and with random values."""
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


def ordinary_clicks(find, bodies):
    """The rows that `find` reads as ordinary, and the click of each: its time, and its texts."""
    text = Text(pa.array(bodies, pa.binary()))
    found = find(text, np.arange(len(bodies)))
    columns = {name: text.strings(spans).to_pylist() for name, spans in found.spans.items()}
    clicks = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return found.rows.tolist(), list(zip(found.micros.tolist(), clicks, strict=True))


def odd_bodies():
    """Almost ordinary messages, and messages with invalid UTF-8 or control characters inserted."""
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


ORDINARY = [
    b'1.2.3.4 - joe [02/Mar/2026:10:00:00 +0130] "GET /a?b HTTP/1.1" 200 17 "-" "M (x)"',
    b'h.x:80 ::1 - - [29/Feb/2024:23:59:59 -0000] "POST /a HTTP/2" 404 - "r" "M" "9.9.9.9" 0.1',
    b'{"time": "2026-03-02T10:00:00.5Z", "ip": "1.2.3.4", "request": "GET /a HTTP/1.1", "x": 1}',
    b'{"ts":1760129736,"ip":"::1","path":"/a?b","method":"GET","status":200,"t":0.25}',
]
