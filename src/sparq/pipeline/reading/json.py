"""JSON messages: the values of a click by their paths, and all others as `extra`.

Objects of a program have the same keys. For such keys a shape is made: msgspec reads further
objects into a struct, if all values are at the top and have the usual types. Each other object is
read as a dictionary, and each path is followed (`_Format.read`). Both give the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec
import polars as pl
from msgspec import UNSET

from sparq.pipeline.reading import formats
from sparq.pipeline.reading.formats import FIELDS_OF_CLICK
from sparq.pipeline.reading.schema import Reading
from sparq.pipeline.reading.times import event_micros

NOT_JSON: Final = "the JSON is not one valid object"
SHAPES_MAX: Final = 4
FEW: Final = 0.02
"""Up to this part of a batch's objects are read one by one, without a shape."""

_ESCAPED: Final = re.compile(r'["\\\x00-\x1f]')  # signs that msgspec refuses in a field's name
_FIELDS: Final = len(FIELDS_OF_CLICK)
_TIME: Final = FIELDS_OF_CLICK.index("time")
_FORWARDED: Final = FIELDS_OF_CLICK.index("forwarded")
_DURATIONS: Final = tuple(name for name in FIELDS_OF_CLICK if name.startswith("duration"))
NUMBERS: Final = ("time", "status", "bytes", *_DURATIONS)
_WRONG: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)

encode: Final = msgspec.json.Encoder().encode
decode: Final = msgspec.json.Decoder().decode


class JsonRows(NamedTuple):
    """Objects that were read together.

    Attributes:
        rows: the numbers of their bodies.
        format: the format of all of them, or of each; None if a body is no JSON object.
        fields: the fields of a click that any of them has, as texts or as numbers; `time` is in
            microseconds, and `has_time` says where it was given.
        own: the values of the user's columns by number, as they are.
        extras: of each object the other values, as JSON; empty: there are none.
    """

    rows: list[int]
    format: str | list[str | None]
    fields: dict[str, pl.Series]
    own: Mapping[int, Sequence[Any]]
    extras: list[bytes | None]


class _Format:
    """A JSON format with the user's paths.

    Attributes:
        name: the format's name.
        marks: see `formats.JsonFormat`.
        slots: for each field, and each of the user's columns, where it may be: the first counts.
    """

    def __init__(
        self, form: formats.JsonFormat, mapped: Iterable[tuple[str, str]], own: Sequence[str]
    ) -> None:
        self.name, self.marks = form.name, form.marks
        paths = {**form.paths, **{name: (path,) for name, path in mapped}}
        self.slots = [paths.get(name, ()) for name in FIELDS_OF_CLICK] + [(one,) for one in own]
        # By the first key of a path, and by each longer beginning, since keys may have points.
        self._by_key: dict[str, list[tuple[int, int, str]]] = {}
        for at, several in enumerate(self.slots):
            for rank, path in enumerate(several):
                parts = path.split(".")
                for end in range(1, len(parts) + 1):
                    key = ".".join(parts[:end])
                    self._by_key.setdefault(key, []).append((at, rank, path))

    def places(self, keys: Iterable[str]) -> list[tuple[int, int, str]]:
        """Where objects with these keys may have values: field, rank among its paths, path."""
        return sorted({one for key in keys for one in self._by_key.get(key, ())})

    def read(self, found: dict[str, Any]) -> tuple[list[Any], bytes | None]:
        """The values of an object along their paths, and the rest: also what fits no field."""
        row: list[Any] = [None] * len(self.slots)
        used = set()
        for at, _, path in self.places(found):
            if row[at] is None:
                value = found[path] if path in found else at_path(found, path)
                row[at] = _fitting(value, FIELDS_OF_CLICK[at]) if at < _FIELDS else value
                is_null = value is None and path in found
                if (row[at] is not None or is_null) and at != _FORWARDED:
                    used.add(path)
        for path in used:
            _remove(found, path)
        return row, encode(found) if found else None


class _Shape:
    """Objects with certain keys, or some of them, as a struct.

    Args:
        form: their format.
        keys: their keys, each the whole path of a field, or no part of any path.
    """

    def __init__(self, form: _Format, keys: Sequence[str]) -> None:
        self.name = form.name
        paths: dict[int, list[str]] = {}
        for at, _, path in form.places(keys):
            paths.setdefault(at, []).append(path)
        self.places = {at: several[0] for at, several in paths.items()}
        self.is_flat = all(path in keys for several in paths.values() for path in several)
        marks = {key for mark in form.marks for key in mark}
        # A field of a click comes last, since it needs the narrower type.
        places = sorted(self.places.items(), reverse=True)
        taken = {path: at for at, path in places if at != _FORWARDED}
        attributes = {key: f"a{number}" for number, key in enumerate(keys)}
        fields: list[Any] = []
        for key, name in attributes.items():
            at = taken.get(key, _FIELDS)
            kind: Any = Any
            if at < _FIELDS:
                kind = str | int | float if FIELDS_OF_CLICK[at] in NUMBERS else str
            if key in marks or len(paths.get(at, ())) > 1:
                fields.insert(0, (name, kind))  # what decides for this shape is required
            else:
                is_ours = key in taken
                fields.append((name, kind | None if is_ours else kind, None if is_ours else UNSET))
        struct = msgspec.defstruct(
            "Shape",
            fields,
            rename={name: key for key, name in attributes.items()},
            forbid_unknown_fields=True,
            gc=False,
        )
        self._decode = msgspec.json.Decoder(struct).decode
        self._attributes = attributes
        self._rest = [key for key in keys if key not in taken]

    def read(self, bodies: Sequence[bytes], rows: Sequence[int]) -> tuple[JsonRows, list[int]]:
        """Read the objects that have this shape; also returns the rows of the others."""
        objects, fitting, others = [], [], []
        read = self._decode
        for row in rows:
            try:
                objects.append(read(bodies[row]))
                fitting.append(row)
            except _WRONG:
                others.append(row)
        columns = {
            at: list(map(attrgetter(self._attributes[path]), objects))
            for at, path in self.places.items()
        }
        extras: list[bytes | None] = []
        if self._rest:
            extras = [self._extra(one) for one in objects]
        own = {at - _FIELDS: values for at, values in columns.items() if at >= _FIELDS}
        return JsonRows(fitting, self.name, _fields(columns), own, extras), others

    def _extra(self, found: Any) -> bytes | None:
        rest = {key: getattr(found, self._attributes[key]) for key in self._rest}
        if UNSET in rest.values():
            rest = {key: value for key, value in rest.items() if value is not UNSET}
        return encode(rest) if rest else None


class JsonReader:
    """Reads JSON messages in the formats of a setting."""

    def __init__(self, reading: Reading) -> None:
        own = [path for path, _ in reading.own.values()]
        self._formats = [
            _Format(one, reading.click, own)
            for one in formats.JSON
            if reading.format in (formats.AUTO, one.name)
        ]
        self._shapes: list[_Shape] = []

    def read(self, bodies: Sequence[bytes]) -> Iterator[JsonRows]:
        """Read objects; of bodies that are none, the format is None."""
        left: Sequence[int] = range(len(bodies))
        counts = {}
        for shape in self._shapes:
            found, left = shape.read(bodies, left)
            counts[shape] = len(found.rows)
            if found.rows:
                yield found
            if len(left) <= len(bodies) * FEW:
                break
        # What was frequent is tried first in the next batch.
        self._shapes.sort(key=lambda one: -counts.get(one, 0))
        self._shapes = [one for one in self._shapes if counts.get(one, 1)]
        while len(left) > len(bodies) * FEW and len(self._shapes) < SHAPES_MAX:
            new = self._new_shape(bodies[left[len(left) // 2]])
            if new is None:
                break
            found, left = new.read(bodies, left)
            if found.rows:
                yield found
            if len(found.rows) <= len(bodies) * FEW:
                break
            self._shapes.append(new)
        if left:
            yield self._careful(bodies, left)

    def _new_shape(self, body: bytes) -> _Shape | None:
        """The shape of an object; None if it has values below other keys."""
        try:
            found = decode(body)
        except _WRONG:
            return None
        if type(found) is not dict or not found or any(map(_ESCAPED.search, found)):
            return None
        shape = _Shape(self._format(found), tuple(found))
        return shape if shape.is_flat else None

    def _format(self, found: dict[str, Any]) -> _Format:
        present = found.keys()
        marked = (one for one in self._formats if any(mark <= present for mark in one.marks))
        return next(marked, self._formats[-1])

    def _careful(self, bodies: Sequence[bytes], rows: Sequence[int]) -> JsonRows:
        """Read objects one by one."""
        nothing = [None] * len(self._formats[0].slots)
        values: list[list[Any]] = []
        extras: list[bytes | None] = []
        names: list[str | None] = []
        for row in rows:
            try:
                found = decode(bodies[row])
            except _WRONG:
                found = None
            if type(found) is dict:
                form = self._format(found)
                name: str | None = form.name
                one, extra = form.read(found)
            else:
                name, one, extra = None, nothing, None
            values.append(one)
            extras.append(extra)
            names.append(name)
        columns = dict(enumerate(zip(*values, strict=True)))
        own = {at - _FIELDS: columns.pop(at) for at in range(_FIELDS, len(nothing))}
        return JsonRows(list(rows), names, _fields(columns), own, extras)


def _fields(columns: Mapping[int, Sequence[Any]]) -> dict[str, pl.Series]:
    found = {
        FIELDS_OF_CLICK[at]: _series(values, FIELDS_OF_CLICK[at])
        for at, values in columns.items()
        if at < _FIELDS and at != _TIME and values.count(None) < len(values)
    }
    if _TIME in columns:
        times = columns[_TIME]
        found["time"] = pl.Series([event_micros(one) for one in times], dtype=pl.Int64)
        found["has_time"] = pl.Series([one is not None for one in times])
    return found


def _series(values: Sequence[Any], name: str) -> pl.Series:
    """Values as texts or as numbers; as texts where there are both."""
    if name in NUMBERS:
        kinds = set(map(type, values)) - {type(None)}
        if kinds == {int} and all(value is None or abs(value) < 1 << 63 for value in values):
            return pl.Series(values, dtype=pl.Int64)
        if kinds <= {int, float} and name in _DURATIONS:
            return pl.Series(values, dtype=pl.Float64, strict=False)
        values = [one if one is None or isinstance(one, str) else repr(one) for one in values]
    return pl.Series(values, dtype=pl.String)


def at_path(found: Any, path: str) -> Any:
    """The value at a path of keys and places in lists; keys may have points. None: no value."""
    if isinstance(found, list):
        key, _, rest = path.partition(".")
        value = found[int(key)] if key.isdecimal() and int(key) < len(found) else None
        return at_path(value, rest) if rest else value
    if not isinstance(found, dict):
        return None
    if path in found:
        return found[path]
    at = path.find(".")
    while at >= 0:
        below = found.get(path[:at])
        value = None if below is None else at_path(below, path[at + 1 :])
        if value is not None:
            return value
        at = path.find(".", at + 1)
    return None


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


def _remove(found: Any, path: str) -> None:
    """Remove the value at a path, and what is empty then. A list with more values stays whole."""
    if isinstance(found, list):
        key, _, rest = path.partition(".")
        if rest and key.isdecimal() and int(key) < len(found):
            _remove(found[int(key)], rest)
        elif len(found) == 1:
            found.clear()
        return
    if path in found:
        del found[path]
        return
    at = path.find(".")
    while at >= 0:
        key, rest = path[:at], path[at + 1 :]
        if at_path(found.get(key), rest) is not None:
            _remove(found[key], rest)
            if not found[key]:
                del found[key]
            return
        at = path.find(".", at + 1)


def _fitting(value: Any, name: str) -> Any:
    """The value in the form that its field takes; None if it does not fit."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return None if name in NUMBERS else str(value).lower()
    if isinstance(value, int | float):
        return value if name in NUMBERS else str(value)
    return None
