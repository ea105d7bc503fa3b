"""JSON messages: the values of a click by their paths, and all others as `extra`.

Each path is followed in all objects of a format at once: how deep or varied they are costs little.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final

import msgspec
import numpy as np

from sparq.pipeline.reading import formats
from sparq.pipeline.reading.schema import Counts, Found, Reading, fitting

Values = Sequence[Any]

_WRONG: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
_NUMBERS: Final = {int, float, type(None)}
_SIMPLE: Final = {str, *_NUMBERS}
_ADDRESS: Final = r"[0-9A-Za-z._:%\[\]-]{1,255}"
_FORMS: Final = {
    **dict.fromkeys(("address", "forwarded"), rf"-|{_ADDRESS}(?:,\s*{_ADDRESS})*"),
    "status": r"(?:-1?|0|[1-9]\d\d)?",
    "bytes": r"-|\d{1,18}",
}
"""What texts and numbers look like that fit the columns of some fields."""
_DURATION: Final = re.compile(r"-?|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)

encode: Final = msgspec.json.Encoder().encode
decode: Final = msgspec.json.Decoder().decode


class JsonReader:
    """Reads JSON messages in the formats of a setting; it has none if that is for lines.

    With `by_form`, values that do not fit the column of their field stay in `extra`.
    """

    def __init__(self, reading: Reading, *, by_form: bool = False) -> None:
        mapped = {name: [path] for name, path in reading.click}
        self._own = reading.own
        forms = _FORMS if by_form else {}
        self._fits: dict[str, Callable[[Values], Values]] = {
            **{name: partial(_of_form, re.compile(form, re.ASCII)) for name, form in forms.items()},
            **dict.fromkeys(formats.DURATIONS, _durations),
        }
        self.formats = [
            (
                name,
                [set(one.split()) for one in marks],
                {**{field: one.split() for field, one in paths.items()}, **mapped},
            )
            for name, marks, paths in formats.JSON
            if reading.format in (formats.AUTO, name) and not reading.log_format
        ]

    def read(self, bodies: Sequence[bytes]) -> Iterator[Found]:
        """Read the messages that are objects, those of a format together."""
        objects = {row: one for row, one in enumerate(_decoded(bodies)) if type(one) is dict}
        # Objects of a program have the same keys.
        of_keys = {keys: self._format(set(keys)) for keys in set(map(tuple, objects.values()))}
        rows_of: dict[int, list[int]] = {number: [*objects] for number in of_keys.values()}
        if len(rows_of) > 1:
            rows_of = {number: [] for number in rows_of}
            for row, one in objects.items():
                rows_of[of_keys[tuple(one)]].append(row)
        for number, rows in rows_of.items():
            name, _, paths = self.formats[number]
            root, misfits = _Place([objects[row] for row in rows]), np.zeros(len(rows), np.int32)
            fields = {
                field: root.take(several, misfits, self._fits.get(field), field == "forwarded")
                for field, several in paths.items()
            }
            own = {
                column: root.take([path], misfits, partial(fitting, kind))
                for column, (path, kind) in self._own.items()
            }
            yield Found(np.array(rows), name, fields, own, misfits, root.extras())

    def _format(self, keys: set[str]) -> int:
        """The number of the first format whose marks are among the keys of an object."""
        for number, (_, marks, _) in enumerate(self.formats):
            if any(mark <= keys for mark in marks):
                return number
        return len(self.formats) - 1


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


def _of_form(form: re.Pattern[str], values: Values) -> Values:
    return [one if type(one) in _SIMPLE and form.fullmatch(str(one)) else None for one in values]


def _durations(values: Values) -> Values:
    return values if set(map(type, values)) <= _NUMBERS else _of_form(_DURATION, values)


class _Place:
    """One place in all objects: `values` has what each one has there, else None."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self._kinds = set(map(type, values))
        self._keys: set[str] = set()
        if dict in self._kinds:
            self._keys.update(*(one for one in values if type(one) is dict))
        self._below: dict[str, _Place] = {}
        self._left: Values | None = values  # what is in no column; None: nothing

    def at(self, path: str) -> Iterator[_Place]:
        """The places at a path of keys and of numbers in lists; keys may have points."""
        for end in (len(path), *(point.start() for point in re.finditer(r"\.", path))):
            key = path[:end]
            if key in self._keys or (list in self._kinds and key.isdecimal()):
                below = self._child(key)
                yield from [below] if end == len(path) else below.at(path[end + 1 :])

    def _child(self, key: str) -> _Place:
        if key not in self._below:
            try:
                values = list(map(itemgetter(key), self.values))
            except (KeyError, TypeError):
                values = [_item(one, key) for one in self.values]
            self._below[key] = _Place(values)
        return self._below[key]

    def take(
        self,
        paths: Sequence[str],
        misfits: Counts,
        fit: Callable[[Values], Values] | None,
        stays: bool = False,
    ) -> Values:
        """The first value of each object along some paths that fits; empty: no object has one.

        `fit` gives None for values that do not; without it all texts and numbers fit. Misfits are
        counted. A value that `stays` is not only in a column, but also in `extra`.
        """
        found: Values = []
        for place in (place for path in paths for place in self.at(path)):
            values = place.values
            if fit is not None:
                values = fit(values)
            elif not place._kinds <= _SIMPLE:
                values = [one if type(one) in _SIMPLE else None for one in values]
            if values is not place.values:
                pairs = zip(values, place.values, strict=True)
                misfits += [fits is None and one is not None for fits, one in pairs]
            if found:
                both = list(zip(found, values, strict=True))
                found = [one if before is None else before for before, one in both]
                values = [one if before is None else None for before, one in both]
            else:
                found = values
            if values is place.values and not stays:
                place._left = None
            elif place._left is not None and not stays:
                pairs = zip(place._left, values, strict=True)
                place._left = [value if fits is None else None for value, fits in pairs]
        return found

    def extras(self) -> list[bytes | None]:
        """Of each object what is in no column; empty: nothing."""
        if all(key in self._below and self._below[key]._left is None for key in self._keys):
            return []
        return [encode(one) if one else None for one in self._rests() or []]

    def _rests(self) -> Values | None:
        """What is in no column, without what is empty then. A list of several stays whole."""
        for key, below in self._below.items():
            left = below._rests()
            if left is None and self._kinds == {dict}:
                for one in self.values:
                    one.pop(key, None)
                continue
            for row, one in enumerate(self.values):
                if left is None or left[row] is None:
                    if type(one) is dict:
                        one.pop(key, None)
                    elif key == "0" and type(one) is list and len(one) == 1:
                        one.clear()
        if self._below and self._left:
            return [None if one in ({}, []) else one for one in self._left]
        return self._left


def _item(found: Any, key: str) -> Any:
    if type(found) is list and key.isdecimal():
        return found[int(key)] if int(key) < len(found) else None
    return found.get(key) if type(found) is dict else None
