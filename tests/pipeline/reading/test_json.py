"""JSON of any shape: values by their paths, and the rest."""

import json

import pytest

from sparq.pipeline.reading.json import JsonReader
from sparq.pipeline.reading.schema import Reading

OBJECT = {"a": {"b": [{"c": 1}, {"c": 2}]}, "x.y": {"z": 3}, "l": [4], "n": None}
PATHS = {"a.b.1.c": "2", "x.y.z": "3", "l.0": "4", "l.1": None, "l.x": None, "a.b.c": None,
         "n": None, "q": None, "a.b.0": None, "x": None}  # fmt: skip


def rows_of(reader, bodies):
    """By row: its format, its values that are not null, misfits, and the rest."""
    found = {}
    for part in reader.read(bodies):
        columns = {**part.fields, **part.own}
        for at, row in enumerate(part.rows.tolist()):
            values = {name: column[at] for name, column in columns.items() if column}
            rest = part.extras[at] if part.extras else None
            found[row] = (
                part.format,
                {name: value for name, value in values.items() if value is not None},
                int(part.misfits[at]),
                rest and json.loads(rest),
            )
    return found


@pytest.mark.parametrize(("path", "value"), PATHS.items())
def test_a_path_leads_through_objects_and_lists(path, value):
    """A path has keys and places in lists, keys may have points; what does not fit stays."""
    reader = JsonReader(Reading(columns=(("own", path),)))
    _, values, misfits, rest = rows_of(reader, [json.dumps(OBJECT).encode()])[0]

    assert value == values.get("own")
    assert (OBJECT == rest) == (value is None and path != "n")
    assert misfits == (path == "a.b.0")


def test_what_is_taken_is_removed_from_the_rest():
    """Emptied objects go, too; a list with further values stays whole; a null is no value."""
    caddy = {"logger": "a", "msg": "b", "ts": 1, "status": 200, "request": {"uri": "/", "n": None,
             "headers": {"User-Agent": ["x"], "Referer": ["y", "z"]}}}  # fmt: skip
    other = {"logger": "a", "msg": "b", "ts": 2, "request": {"method": "GET"}, "status": None}
    found = rows_of(JsonReader(Reading()), [json.dumps(one).encode() for one in (caddy, other)])

    assert {"time": 1, "status": 200, "path": "/", "user_agent": "x", "referer": "y"} == found[0][1]
    headers = {"Referer": ["y", "z"]}
    assert {"logger": "a", "msg": "b", "request": {"n": None, "headers": headers}} == found[0][3]
    assert ("caddy", {"time": 2, "method": "GET"}, 0, {"logger": "a", "msg": "b"}) == found[1]
