"""JSON of any shape: values by their paths, the rest, and shapes."""

import json
import random

import pytest

from sparq.pipeline.reading import json as reading_json
from sparq.pipeline.reading.json import JsonReader, at_path, put_at
from sparq.pipeline.reading.schema import Reading

OBJECT = {"a": {"b": [{"c": 1}, {"c": 2}]}, "x.y": {"z": 3}, "l": [4], "n": None}
PATHS = {"a.b.1.c": 2, "x.y.z": 3, "l.0": 4, "l.1": None, "l.x": None, "a.b.c": None, "n": None,
         "q": None, "a.b.0": {"c": 1}, "x": None}  # fmt: skip


def rows_of(reader, bodies):
    """By row: its format, its values that are not null, and the rest."""
    found = {}
    for part in reader.read(bodies):
        for at, row in enumerate(part.rows):
            values = {name: series[at] for name, series in part.fields.items()}
            values |= {number: column[at] for number, column in part.own.items()}
            name = part.format if isinstance(part.format, str) else part.format[at]
            rest = part.extras[at] if part.extras else None
            values = {key: value for key, value in values.items() if value is not None}
            found[row] = (
                name,
                {key: str(one) for key, one in values.items()},
                rest and json.loads(rest),
            )
    return found


@pytest.mark.parametrize(("path", "value"), PATHS.items())
def test_a_path_leads_through_objects_and_lists(path, value):
    """A path has keys and places in lists; keys may have points."""
    assert value == at_path(OBJECT, path)


def test_a_value_is_put_back_at_its_path():
    """A value goes back below the objects that are there, else at its path as a key."""
    found = {"a": {"x": 1}, "b": 2}
    for path in ("a.y", "c.d.e", "b.c"):
        put_at(found, path, 7)

    assert {"a": {"x": 1, "y": 7}, "b": 2, "c": {"d": {"e": 7}}, "b.c": 7} == found


def random_objects(rng, count):
    """Objects with some of the usual keys, in random order, with values of all types."""
    texts = ["/a", "", "-", "1.2.3.4", "200", 'a"b', "\u00e9", "2026-03-02T10:00:00Z"]
    odd = [None, True, 7, 1.5, {"a": 1}, [], ["x"], 10**30]
    keys = [
        "time",
        "ts",
        "ip",
        "path",
        "url",
        "status",
        "size",
        "agent",
        "k",
        "request_time",
        "l.m",
    ]
    for _ in range(count):
        chosen = rng.sample(keys, rng.randint(1, len(keys)))
        yield {key: rng.choice(texts if rng.random() < 0.7 else odd) for key in chosen}


def test_shapes_give_what_paths_give(monkeypatch):
    """An object that has a shape is read as if each of its paths were followed."""
    rng = random.Random(3)
    bodies = [json.dumps(one).encode() for one in random_objects(rng, 3000)]
    bodies += [b"[]", b"{", b"7", b"{}", b"\xff", b'{"time": 1e999}'] * 20
    own = Reading(columns=(("k", "k: bigint"), ("m", "l.m: string")))
    with monkeypatch.context() as patch:
        patch.setattr(reading_json, "FEW", 2.0)
        careful = rows_of(JsonReader(own), bodies)
    monkeypatch.setattr(reading_json, "FEW", 0.0)
    reader = JsonReader(own)
    for _ in range(30):  # each batch has another object in its middle, which gives the shape
        rng.shuffle(bodies)
        assert len(bodies) == len(rows_of(reader, bodies))
        both = dict(zip(bodies, map(rows_of(reader, bodies).get, range(len(bodies))), strict=True))
        if reader._shapes:
            break

    assert reader._shapes
    again = rows_of(JsonReader(own), bodies)
    monkeypatch.setattr(reading_json, "FEW", 2.0)
    expected = rows_of(JsonReader(own), bodies)
    assert careful.keys() == expected.keys()
    assert expected == again
    assert expected == dict(enumerate(both[body] for body in bodies))


def test_objects_of_a_program_have_one_shape():
    """Objects with the same keys are read by one shape, also if some keys are missing."""
    reader = JsonReader(Reading())
    whole = [
        json.dumps({"time": at, "ip": "::1", "path": "/a", "k": at, "agent": None}).encode()
        for at in range(60)
    ]
    part = [b'{"path": "/b", "time": 7}'] * 40
    found = list(reader.read(whole + part))

    assert [list(range(100))] == [one.rows for one in found]
    assert {"k": 3} == json.loads(found[0].extras[3])
    assert found[0].extras[99] is None


def test_a_value_that_fits_no_field_stays_in_the_rest():
    """An object is no text; the next path that has one counts, and the object is kept."""
    reader = JsonReader(Reading())
    body = b'{"time": 1, "path": {"v": 1}, "url": "/u", "status": true, "agent": 5}'
    (found,) = rows_of(reader, [body]).values()

    assert (
        "json",
        {"time": "1000000", "has_time": "True", "path": "/u", "user_agent": "5"},
    ) == found[:2]
    assert {"path": {"v": 1}, "status": True} == found[2]
