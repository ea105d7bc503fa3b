"""Which JSON messages pass, and which of their fields: the filters of nsq_to_nsq.

1. A body is one JSON object in UTF-8; bytes that are no UTF-8 count as U+FFFD. What is no JSON by
   the book (NaN, a byte order mark, nesting that cannot be followed) is no JSON here.
2. A value that is asked for equals a string with the same characters, or a number with the same
   value; no other kind of value equals anything.
3. What is encoded anew has its keys in order and no spaces; a number without a fraction is written
   as an integer, one that was written as an integer keeps every digit.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

INTEGER_MAX: Final = 1 << 63
"""Larger numbers with an exponent stay in that form: 1e300 is not written with 300 zeros."""

_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


class NotAnObjectError(Exception):
    """A body is no JSON object; the text says why."""


class FieldMissingError(Exception):
    """The field whose value was asked for is not there."""


@dataclass(frozen=True, slots=True)
class JsonFilter:
    """What a message needs in order to pass, and what passes of it.

    Attributes:
        required: a field that it must have; "": none.
        value: the value that this field must have; "": any.
        kept: the only fields that pass; (): all, and the body passes as it is.
    """

    required: str = ""
    value: str = ""
    kept: Sequence[str] = ()

    def __bool__(self) -> bool:
        """Whether bodies have to be looked into at all."""
        return bool(self.required or self.kept)

    def passed(self, body: bytes) -> bytes | None:
        """What is to be handed on of a body; None: nothing.

        Raises:
            NotAnObjectError: it is no JSON object.
            FieldMissingError: there is no such field, though a value is asked for.
        """
        if not self:
            return body
        fields = parsed(body)
        if self.required and not self._wanted(fields):
            return None
        if not self.kept:
            return body
        return encoded({name: fields[name] for name in self.kept if name in fields})

    def _wanted(self, fields: dict[str, Any]) -> bool:
        if not self.value:
            return self.required in fields
        if self.required not in fields:
            raise FieldMissingError(f"no field {self.required!r}")
        return equals(fields[self.required], self.value)


def parsed(body: bytes) -> dict[str, Any]:
    """A body's fields.

    Raises:
        NotAnObjectError: it is no JSON object.
    """
    try:
        found = _DECODER.decode(body.decode("utf-8", "replace"))
    except RecursionError:
        raise NotAnObjectError("it is nested too deep") from None
    except ValueError as error:
        raise NotAnObjectError(str(error)) from None
    if not isinstance(found, dict):
        raise NotAnObjectError("it is JSON, but no object")
    return found


def encoded(fields: dict[str, Any]) -> bytes:
    """Fields as a body.

    Raises:
        NotAnObjectError: they are nested too deep.
    """
    try:
        return _ENCODER.encode(fields).encode()
    except RecursionError:
        raise NotAnObjectError("it is nested too deep") from None
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can say and UTF-8 cannot
        return _ASCII_ENCODER.encode(fields).encode()


def equals(value: object, text: str) -> bool:
    """Whether a field's value is what the text says."""
    if isinstance(value, str):
        return value == text
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return _NUMBER.fullmatch(text) is not None and value == _number(text)
    except ValueError:
        return False  # too large: no body has such a number


def _number(text: str) -> float:
    """A number; one without a fraction as an integer.

    Raises:
        ValueError: it is too large for a number.
    """
    if text.lstrip("+-").isdigit():
        return int(text)
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"number too large: {text:.40}")
    return int(value) if value.is_integer() and abs(value) < INTEGER_MAX else value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER: Final = json.JSONDecoder(parse_float=_number, parse_constant=_no_constant)
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"))
_ASCII_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
