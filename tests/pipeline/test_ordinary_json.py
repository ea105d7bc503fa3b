"""Ordinary JSON, found a batch at a time: same result as with the careful reader."""

import numpy as np
import pyarrow as pa

from sparq.pipeline.click_reader import read
from sparq.pipeline.ordinary_json import find_json
from sparq.pipeline.text_spans import Text
from tests.pipeline.click_examples import ORDINARY, VALUES, as_json, nearly_ordinary

OBJECTS = [body for body in ORDINARY if body.startswith(b"{")]
NUMBERS = ("status", "bytes")


def found_in(bodies):
    """The ordinary rows, and the click of each: its time, and its columns as text."""
    text = Text(pa.array(bodies, pa.binary()))
    found = find_json(text, np.arange(len(bodies)))
    columns = {name: text.strings(spans).to_pylist() for name, spans in found.spans.items()}
    clicks = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return found.rows.tolist(), list(zip(found.micros.tolist(), clicks, strict=True))


def test_ordinary_clicks_are_read_as_by_the_careful_reader():
    """An object that is found as ordinary is read as by the careful reader, and is valid."""
    bodies = list(nearly_ordinary(VALUES, as_json))
    rows, clicks = found_in(bodies)

    assert 50 < len(rows) < len(bodies)
    for row, (micros, click) in zip(rows, clicks, strict=True):
        expected = read(bodies[row])._asdict()
        names = [name for name in click if name not in NUMBERS]
        assert (None, micros) == (expected["reason"], expected["time"])
        assert {name: expected[name] for name in names} == {name: click[name] for name in names}


def test_ordinary_objects_are_found_among_other_rows():
    """Objects of several forms are found among rows that are not ordinary."""
    rows, clicks = found_in([b"{}", OBJECTS[0], b'{"a": 1', OBJECTS[1], b'{"time": "x\\n"}'])

    assert [1, 3] == rows
    assert [("1.2.3.4", "/a"), ("::1", "/a")] == [
        (click["address"], click["page"]) for _, click in clicks
    ]


def test_a_batch_without_ordinary_objects_gives_no_clicks():
    """A batch without ordinary objects, even without quotes, gives no clicks."""
    assert ([], []) == found_in([b"{", b"{}"])
