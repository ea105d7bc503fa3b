"""Ordinary JSON, found a batch at a time: same result as with the careful reader."""

from sparq.pipeline.click_reader import read
from sparq.pipeline.ordinary_json import find_json
from tests.pipeline.click_examples import (
    ORDINARY,
    VALUES,
    as_json,
    nearly_ordinary,
    ordinary_clicks,
)

OBJECTS = [body for body in ORDINARY if body.startswith(b"{")]
NUMBERS = ("status", "bytes")


def test_ordinary_clicks_are_read_as_by_the_careful_reader():
    """An object that is found as ordinary is read as by the careful reader, and is valid."""
    bodies = list(nearly_ordinary(VALUES, as_json))
    rows, clicks = ordinary_clicks(find_json, bodies)

    assert 50 < len(rows) < len(bodies)
    for row, (micros, click) in zip(rows, clicks, strict=True):
        expected = read(bodies[row])._asdict()
        names = [name for name in click if name not in NUMBERS]
        assert (None, micros) == (expected["reason"], expected["time"])
        assert {name: expected[name] for name in names} == {name: click[name] for name in names}


def test_ordinary_objects_are_found_among_other_rows():
    """Objects of several forms are found among rows that are not ordinary."""
    rows, clicks = ordinary_clicks(
        find_json, [b"{}", OBJECTS[0], b'{"a": 1', OBJECTS[1], b'{"time": "x\\n"}']
    )

    assert [1, 3] == rows
    assert [("1.2.3.4", "/a"), ("::1", "/a")] == [
        (click["address"], click["page"]) for _, click in clicks
    ]


def test_a_batch_without_ordinary_objects_gives_no_clicks():
    """A batch without ordinary objects, even without quotes, gives no clicks."""
    assert ([], []) == ordinary_clicks(find_json, [b"{", b"{}"])
