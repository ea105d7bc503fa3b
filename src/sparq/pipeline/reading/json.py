"""JSON messages: the values of a click by their paths, and all others as `extra`.

The objects of a format are read together: each path is followed in all of them at once, and gives a
column. How deep or how varied the objects are makes little difference.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec
import polars as pl

from sparq.pipeline.reading import formats
from sparq.pipeline.reading.formats import FIELDS_OF_CLICK
from sparq.pipeline.reading.schema import Reading

_DURATIONS: Final = tuple(name for name in FIELDS_OF_CLICK if name.startswith("duration"))
NUMBERS: Final = ("time", "status", "bytes", *_DURATIONS)
_WRONG: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)

encode: Final = msgspec.json.Encoder().encode
decode: Final = msgspec.json.Decoder().decode


class JsonClicks(NamedTuple):
    """Objects of one format.

    Attributes:
        rows: the numbers of their bodies.
        format: None: the bodies are no JSON objects, and have no values.
        fields: the fields of a click that any of them has: texts and numbers, or None.
        own: by name the user's columns that any of them has, with values of any type.
        extras: of each object the other values, as JSON; empty: there are none.
    """

    rows: Sequence[int]
    format: str | None
    fields: dict[str, Sequence[Any]]
    own: dict[str, Sequence[Any]]
    extras: list[bytes | None]


class JsonReader:
    """Reads JSON messages in the formats of a setting."""

    def __init__(self, reading: Reading) -> None:
        mapped = {name: (path,) for name, path in reading.click}
        self._own = {name: path for name, (path, _) in reading.own.items()}
        self._formats = [
            one._replace(paths={**one.paths, **mapped})
            for one in formats.JSON
            if reading.format in (formats.AUTO, one.name)
        ]

    def read(self, bodies: Sequence[bytes]) -> Iterator[JsonClicks]:
        """Read objects, those of a format together."""
        found = _decoded(bodies)
        objects = {row: one for row, one in enumerate(found) if type(one) is dict}
        if len(objects) < len(found):
            yield JsonClicks(
                [row for row in range(len(found)) if row not in objects], None, {}, {}, []
            )
        # Objects of a program have the same keys.
        numbers = {keys: self._format(set(keys)) for keys in set(map(tuple, objects.values()))}
        rows: dict[int, Sequence[int]] = dict.fromkeys(numbers.values(), tuple(objects))
        if len(rows) > 1:
            for number in rows:
                rows[number] = [
                    row for row, one in objects.items() if numbers[tuple(one)] == number
                ]
        for number, some in rows.items():
            name, _, paths = self._formats[number]
            root = _Place([objects[row] for row in some])
            fields = {field: _taken(root, several, field) for field, several in paths.items()}
            own = {column: _taken(root, (path,), "") for column, path in self._own.items()}
            yield JsonClicks(some, name, _given(fields), _given(own), root.rests())

    def _format(self, keys: set[str]) -> int:
        """The number of the first format whose marks are among the keys of an object."""
        marked = (
            number
            for number, one in enumerate(self._formats)
            if any(mark <= keys for mark in one.marks)
        )
        return next(marked, len(self._formats) - 1)


def _decoded(bodies: Sequence[bytes]) -> list[Any]:
    """JSON values; None for what is no JSON."""
    # The collector would traverse all objects of the batch again and again, for nothing: counting
    # references frees them.
    gc.disable()
    try:
        return list(map(decode, bodies))
    except _WRONG:
        return [None] if len(bodies) == 1 else [one for body in bodies for one in _decoded([body])]
    finally:
        gc.enable()


def _given(columns: Mapping[str, Sequence[Any] | None]) -> dict[str, Sequence[Any]]:
    return {name: values for name, values in columns.items() if values is not None}


class _Place:
    """One place in all objects.

    Attributes:
        values: what each object has there; None: nothing, or null.
        kinds: the types of values.
        taken: the rows whose values are in a column; None: all rows.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        kinds = set(map(type, values))
        self.values = values
        self.kinds = kinds - {type(None)}
        self.taken: set[int] | None = set()
        self._is_dicts = kinds == {dict}
        self._keys: set[str] = set()
        if dict in self.kinds:
            self._keys.update(*(one for one in values if type(one) is dict))
        self._below: dict[str, _Place] = {}

    def at(self, path: str) -> Iterator[_Place]:
        """The places at a path of keys and of numbers in lists; keys may have points."""
        if self._has(path):
            yield self._child(path)
        for point in re.finditer(r"\.", path):
            if self._has(path[: point.start()]):
                yield from self._child(path[: point.start()]).at(path[point.end() :])

    def _has(self, key: str) -> bool:
        return key in self._keys or (list in self.kinds and key.isdecimal())

    def _child(self, key: str) -> _Place:
        if key not in self._below:
            try:
                values = list(map(itemgetter(key), self.values))
            except (KeyError, TypeError):
                values = [_item(one, key) for one in self.values]
            self._below[key] = _Place(values)
        return self._below[key]

    def rests(self) -> list[bytes | None]:
        """Of each object what is in no column; empty: nothing."""
        if all(key in self._below and self._below[key].taken is None for key in self._keys):
            return []
        self._remove_taken()
        return [encode(one) if one else None for one in self.values]

    def _remove_taken(self) -> None:
        """Remove what is in columns, and what is empty then. A list of several stays whole."""
        for key, below in self._below.items():
            below._remove_taken()
            if self._is_dicts and below.taken is None:
                for one in self.values:
                    one.pop(key, None)
                continue
            for row, (one, value) in enumerate(zip(self.values, below.values, strict=True)):
                nothing = value is None or (value in ({}, []) and below._below)
                if below.taken is None or row in below.taken or nothing:
                    if type(one) is dict:
                        one.pop(key, None)
                    elif type(one) is list and len(one) == 1 and value is not None:
                        one.clear()


def _item(found: Any, key: str) -> Any:
    if type(found) is dict:
        return found.get(key)
    is_there = type(found) is list and key.isdecimal() and int(key) < len(found)
    return found[int(key)] if is_there else None


def _taken(root: _Place, paths: Sequence[str], name: str) -> Sequence[Any] | None:
    """The first value of each object along some paths that fits a field; None: there are none.

    Args:
        root: the objects.
        paths: where the value may be.
        name: of the field; "": one of the user, which takes any value.
    """
    found: Sequence[Any] | None = None
    for place in (place for path in paths for place in root.at(path)):
        values = _fitting(place, name)
        if found is None and values is place.values:
            found, rows = values, None
        else:
            before = found or [None] * len(values)
            rows = {
                row for row, value in enumerate(values) if value is not None and before[row] is None
            }
            found = [values[row] if row in rows else one for row, one in enumerate(before)]
        if name != "forwarded":
            place.taken = None if rows is None or place.taken is None else place.taken | rows
    return found


def _fitting(place: _Place, name: str) -> Sequence[Any]:
    """The values in the form that a field takes; None for those that do not fit."""
    if not name or place.kinds <= {str} or (name in NUMBERS and place.kinds <= {str, int, float}):
        return place.values
    fit = _number if name in NUMBERS else _text
    return [fit(value) for value in place.values]


def _number(value: Any) -> str | int | float | None:
    is_number = isinstance(value, str | int | float) and not isinstance(value, bool)
    return value if is_number else None


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int | float) else None


def series(values: Sequence[Any], name: str) -> pl.Series:
    """Values of a field as texts or as numbers; as texts where there are both."""
    if name in NUMBERS:
        kinds = set(map(type, values)) - {type(None)}
        with suppress(OverflowError):
            if kinds == {int}:
                return pl.Series(values, dtype=pl.Int64)
        if kinds <= {int, float} and name in _DURATIONS:
            return pl.Series(values, dtype=pl.Float64, strict=False)
        values = [one if one is None or isinstance(one, str) else repr(one) for one in values]
    return pl.Series(values, dtype=pl.String)


def put_at(found: dict[str, Any], path: str, value: Any) -> None:
    """Put a value back at its path, or, where that is taken, at the path as one key."""
    below = found
    *above, key = path.split(".")
    for one in above:
        below = below.setdefault(one, {})
        if not isinstance(below, dict):
            below, key = found, path
            break
    below[key] = value
