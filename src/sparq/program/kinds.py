"""The types that an option may have: how each is read from a command line and a TOML file.

1. `parse` takes what a user typed, `coerce` what a TOML file holds; both raise ValueError with the
   reason. Only `coerce` takes a bare number for a duration: milliseconds.
2. A flag whose kind has `bare` may stand without a value and then means that.
3. `gather` makes one tuple of a flag that was given several times; ValueError: these do not go
   together.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from sparq.program.logging import level_name, parse_level
from sparq.protocol.durations import MILLISECOND, format_duration, parse_duration

_TRUE = ("1", "t", "T", "true", "TRUE", "True")
_FALSE = ("0", "f", "F", "false", "FALSE", "False")
_INT64 = range(-(1 << 63), 1 << 63)


class Kind(NamedTuple):
    """How one type of option is read and shown."""

    name: str
    parse: Callable[[str], Any]
    coerce: Callable[[Any], Any]
    show: Callable[[Any], str]
    bare: str = ""
    gather: Callable[[Iterable[Any]], tuple[Any, ...]] = tuple


def _parse_bool(text: str) -> bool:
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError("parse error")


def _parse_int(text: str) -> int:
    # As Go's base 0: 0x, 0o, 0b and a leading 0 for octal. (Python would also take blanks.)
    try:
        if not text.isascii() or text != text.strip():
            raise ValueError
        value = int(re.sub(r"^([+-]?)0(?=[0-7_])", r"\g<1>0o", text), 0)
    except ValueError:
        raise ValueError("parse error") from None
    if value not in _INT64:
        raise ValueError("value out of range")
    return value


def _parse_duration(text: str) -> int:
    try:
        return parse_duration(text)
    except ValueError:
        raise ValueError("parse error") from None


def _coerce_string(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise ValueError(f"invalid string value type {type(value).__name__}")


def _coerce_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _parse_bool(value)
    raise ValueError(f"invalid bool value type {type(value).__name__}")


def _coerce_int(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _parse_int(value)
    raise ValueError(f"invalid int value type {type(value).__name__}")


def _coerce_duration(value: Any) -> int:
    if isinstance(value, str):
        return parse_duration(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value * MILLISECOND
    raise ValueError(f"invalid duration value type {type(value).__name__}")


def _coerce_level(value: Any) -> int:
    return parse_level(str(value))


def _parse_float(text: str) -> float:
    # Python also takes blanks and underscores; Go's infinities and NaN are no measure of anything.
    try:
        value = float(text) if re.fullmatch(r"[0-9eE.+-]+", text) else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError("parse error")
    return value


def _coerce_float(value: Any) -> float:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return _parse_float(str(value))
    raise ValueError(f"invalid float64 value type {type(value).__name__}")


def _parse_floats(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError("parse error") from None


def _coerce_floats(value: Any) -> list[float]:
    if isinstance(value, str):
        return _parse_floats(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return [float(value)]
    raise ValueError(f"invalid float value type {type(value).__name__}")


def _descending(lists: Iterable[list[float]]) -> tuple[float, ...]:
    return tuple(sorted((value for values in lists for value in values), reverse=True))


def _parse_tls_required(text: str) -> str:
    if text.lower() == "tcp-https":
        return "tcp-https"
    return "true" if _parse_bool(text) else "false"


def _coerce_tls_required(value: Any) -> str:
    return _parse_tls_required(str(value).lower() if isinstance(value, bool) else str(value))


TLS_VERSION_DEFAULT = "tls1.2"
TLS_VERSIONS = ("tls1.0", "tls1.1", "tls1.2", "tls1.3")


def _parse_tls_version(text: str) -> str:
    if not text:
        return TLS_VERSION_DEFAULT
    if text.lower() not in TLS_VERSIONS:
        raise ValueError(f"tls version must be one of {', '.join(TLS_VERSIONS)}")
    return text.lower()


def _show_string(value: str) -> str:
    # A newline as \n: a help page wraps its lines.
    return json.dumps(value, ensure_ascii=False) if value else ""


STRING = Kind("string", str, _coerce_string, _show_string)
BOOL = Kind("bool", _parse_bool, _coerce_bool, lambda value: "true" if value else "", "true")
INT = Kind("int", _parse_int, _coerce_int, str)
FLOAT = Kind("float", _parse_float, _coerce_float, lambda value: f"{value:g}")
DURATION = Kind("duration", _parse_duration, _coerce_duration, format_duration)
LEVEL = Kind("level", parse_level, _coerce_level, lambda value: f'"{level_name(value)}"')
FLOATS = Kind("float,...", _parse_floats, _coerce_floats, str, gather=_descending)
TLS_REQUIRED = Kind("true|false|tcp-https", _parse_tls_required, _coerce_tls_required, str, "true")
TLS_VERSION = Kind("version", _parse_tls_version, lambda value: _parse_tls_version(str(value)), str)
