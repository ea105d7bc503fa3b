"""JSON as Go's encoder writes it: for every answer that an NSQ client can see.

Several clients search for text such as `"tls_v1":true` in an answer instead of parsing it, so the
bytes count: no blanks, the members in the given order, and `<`, `>`, `&` and the two line
separators of JavaScript as escapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any, Final

_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_ESCAPED: Final = {mark: f"\\u{ord(mark):04x}" for mark in "<>&\u2028\u2029"}
# From here on, a whole float has an exponent in Go's JSON as in Python's.
_EXPONENT_FROM: Final = 1e21


@cache
def _encoder(default: Callable[[Any], Any] | None) -> json.JSONEncoder:
    return json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=default)


def to_text(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """Encode a value; the text can always be encoded as UTF-8.

    Args:
        value: str, int, float, bool, None, or lists and dictionaries of them.
        default: converts any other value into one of these.
    """
    text = _encoder(default).encode(value)
    # These characters stand only within strings. Five searches are faster than one translation.
    for mark, escaped in _ESCAPED.items():
        text = text.replace(mark, escaped)
    # As in Go, half of a surrogate pair becomes the replacement character. An nsqd's IDENTIFY may
    # hold one, and strict encoding would fail for each answer that shows this nsqd.
    return text if text.isascii() else _LONE_SURROGATE.sub("\ufffd", text)


def to_bytes(value: Any) -> bytes:
    """Encode a value as UTF-8."""
    return to_text(value).encode()


def number(value: float) -> float:
    """Return a float64 as Go's encoder writes it: a whole number without a fraction."""
    return int(value) if value.is_integer() and abs(value) < _EXPONENT_FROM else value
