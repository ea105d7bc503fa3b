"""Patterns of a format: the usual one and the careful one give the same."""

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
}


def found(reader, lines):
    """{row: (format, fields)} of the usual lines."""
    rows = {}
    for places, form, groups in reader.usual(pl.Series(lines)):
        names = [one.ours or one.name for one in form.fields]
        for place, values in zip(places.tolist(), groups.iter_rows(), strict=True):
            fields = dict(zip(names, values, strict=True))
            rows[place] = form.name, {key: text for key, text in fields.items() if text is not None}
    return rows


def test_usual_and_careful_patterns_agree():
    """Whatever a usual pattern matches, damaged or not, the careful ones read the same way."""
    rng = random.Random(5)
    lines = list(LINES)
    for line in LINES * 4:
        at = rng.randrange(len(line))
        put = rng.choice(["", '"', "\\", " ", "[", "]", "-", "7", "x", "\t", "\u00e9"])
        lines.append(line[:at] + put + line[at + rng.randrange(2) :])
    reader = LineReader(Reading())
    rows = found(reader, lines)

    careful = {LINES[at] for at in set(range(len(LINES))) - rows.keys()}
    assert {line for line in LINES if 'Mozilla+"' in line} == careful
    assert len(LINES) * 2 < len(rows) < len(lines)
    for place, usual in rows.items():
        assert usual == reader.read(lines[place]), lines[place]


def test_frequent_formats_are_tried_first():
    """The order of attempts follows the last batch, and does not change a line's format."""
    reader = LineReader(Reading())
    first = found(reader, LINES)
    found(reader, [line for line in LINES if "bucket1" in line])

    assert "s3" == reader._recent[0].name
    assert first == found(reader, LINES)


def test_further_words_are_the_rest():
    """Words after the last field are kept as `rest`; quotes only if the last field has them."""
    combined = WRITERS["combined"][0](REQUESTS[0])[0]
    reader = LineReader(Reading(format="combined"))

    assert '0.001 "a \\" b" z' == reader.read(f'{combined} 0.001 "a \\" b" z')[1]["rest"]
    with pytest.raises(ValueError, match="the referer is never closed"):
        LineReader(Reading(format="common")).read(WRITERS["common"][0](REQUESTS[0])[0] + ' "x')


def test_the_first_missing_field_is_the_reason():
    """In a chosen format, the reason names the first field that the line does not have."""
    reader = LineReader(Reading(log_format="[$time_local] $remote_addr ($status)"))
    for line, reason in {
        "x": "no time_local in the line",
        "[x] ": "no remote_addr after time_local in the line",
        "[x] ::1 200": "no status after remote_addr in the line",
    }.items():
        with pytest.raises(ValueError, match=reason):
            reader.read(line)


@pytest.mark.parametrize(("text", "parts"), REQUEST_LINES.items())
def test_a_request_line_has_three_parts(text, parts):
    """Method, path and protocol, of lenient clients too; a broken request has none."""
    assert parts == request_parts(text)
