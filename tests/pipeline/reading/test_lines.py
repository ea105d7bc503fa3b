"""Patterns of a format: the usual one and the careful one give the same."""

import json
import random

import polars as pl
import pytest

from sparq.pipeline.reading.lines import LineReader, request_parts
from sparq.pipeline.reading.schema import Reading
from tests.pipeline.reading.written import REQUESTS, WRITERS

LINES = [
    writer(request)[0]
    for request in REQUESTS
    for name, writers in WRITERS.items()
    for writer in writers
    if not writer(request)[0].startswith("{")
]
REQUEST_LINES = {
    "GET / HTTP/1.1": ("GET", "/", "HTTP/1.1"),
    "GET  /a b HTTP/1.1 ": ("GET", "/a b", "HTTP/1.1"),
    "get /a": ("get", "/a", None),
    "M-SEARCH * HTTP/1": ("M-SEARCH", "*", "HTTP/1"),
    "GET /a HTTP/1.11": (None, None, None),
    "/only": (None, "/only", None),
    "-": (None, None, None),
    "": (None, None, None),
    " GET / HTTP/1.1": (None, None, None),
    "GET /a\nb HTTP/1.1": (None, None, None),
    None: (None, None, None),
}


def found(reader, lines):
    """{line: (format, fields)} of the lines that have a format, with the other values as JSON."""
    rows = {}
    for part in reader.read(pl.Series(lines)):
        extras = part.extras or [None] * len(part.rows)
        for at, row in enumerate(part.rows.tolist()):
            fields = {key: texts[at] for key, texts in part.fields.items() if texts[at]}
            rows[lines[row]] = part.format, fields | json.loads(extras[at] or "{}")
    return rows


def test_usual_and_careful_patterns_agree():
    """A line, damaged or not, is read the same way by all patterns, in any order of formats."""
    rng = random.Random(5)
    lines = list(LINES)
    for line in LINES * 4:
        at = rng.randrange(len(line))
        put = rng.choice(["", '"', "\\", " ", "[", "]", "-", "7", "x", "\t", "\u00e9"])
        lines.append(line[:at] + put + line[at + rng.randrange(2) :])
    usual, careful = LineReader(Reading()), LineReader(Reading())
    rows = found(usual, lines)
    careful._recent = []

    assert set(LINES) <= rows.keys()
    assert len(LINES) * 2 < len(rows) < len(set(lines))
    assert rows == found(careful, lines)
    found(usual, [line for line in LINES if "bucket1" in line])
    assert "s3" == usual._recent[0].name
    assert rows == found(usual, lines)


def test_further_words_are_the_rest():
    """Words after the last field are kept as `rest`; quotes only if the last field has them."""
    combined = WRITERS["combined"][0](REQUESTS[0])[0]
    common = WRITERS["common"][0](REQUESTS[0])[0]
    line = f'{combined} 0.001 "a \\" b" z'
    reader = LineReader(Reading(format="combined"))

    assert '0.001 "a \\" b" z' == found(reader, [line])[line][1]["rest"]
    assert {} == found(LineReader(Reading(format="common")), [f'{common} "x'])


def test_the_first_missing_field_is_the_reason():
    """The reason names the first field that the line does not have."""
    reader = LineReader(Reading(log_format="[$time_local] $remote_addr ($status)"))
    for line, reason in {
        "x": "no time_local in the line",
        "[x] ": "no remote_addr after time_local in the line",
        "[x] ::1 200": "no status after remote_addr in the line",
        "[x] ::1 (200) (": "the line goes on in an unknown form after status",
    }.items():
        assert reason == reader.mistake(line)


@pytest.mark.parametrize(("text", "parts"), REQUEST_LINES.items())
def test_a_request_line_has_three_parts(text, parts):
    """Method, path and protocol, of lenient clients too; a broken request has none."""
    columns = request_parts(pl.Series(["GET /x HTTP/1.1", text], dtype=pl.String))

    assert [("GET", "/x", "HTTP/1.1"), parts] == list(zip(*columns, strict=True))
