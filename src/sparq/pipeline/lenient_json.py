"""Reads one JSON object from one message, as leniently as Spark's `from_json`.

The pipeline first read its JSON clicks with `from_json`, so this reader accepts the same input:
strings and names in single quotes, NaN and Infinity as numbers, and any value as text.

1. Only white space may follow the object. A string with a bad escape makes the object invalid,
   while `from_json` continued with the text after it.
2. A value that is not a string is returned as compact JSON. A number with a point or an exponent is
   converted to a double and formatted as in Java: `1.50` becomes "1.5", `1e9` becomes "1.0E9".
3. No input causes recursion: nested containers are tracked in a list, to a depth of 999.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Container
from decimal import Decimal

DEPTH_MAX = 999  # Jackson's limit is 1,000, and the pipeline used to wrap the object in an array
DIGITS_MAX = 1000  # Jackson's limit for a number
NAME_CHARACTERS_MAX = 50_000  # Jackson's limit for a name

_SPACE = re.compile(r"[ \t\r\n]*")
_ESCAPE = r"\\(?:[\"'\\/bfnrt]|u[0-9A-Fa-f]{4})"
_DOUBLE = re.compile(rf'"([^"\\\x00-\x1f]*(?:{_ESCAPE}[^"\\\x00-\x1f]*)*)"')
_SINGLE = re.compile(rf"'([^'\\\x00-\x1f]*(?:{_ESCAPE}[^'\\\x00-\x1f]*)*)'")
_NUMBER = re.compile(r"(-?)(0|[1-9][0-9]*)((?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)")
_WORD = re.compile(r"[+-]?[A-Za-z]+")
_WORDS = {
    **{"true": "true", "false": "false", "NaN": '"NaN"'},
    **dict.fromkeys(("Infinity", "+Infinity", "+INF"), '"Infinity"'),
    **dict.fromkeys(("-Infinity", "-INF"), '"-Infinity"'),
}
_ESCAPED = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)")
_PLAIN = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class NotJson(ValueError):
    """The text is not one JSON object."""


def read_object(text: str, keys: Container[str]) -> dict[str, str | None]:
    """The values of the given keys in a JSON object, as text; null becomes None.

    If a key occurs several times, its last value counts.

    Raises:
        NotJson: the text is not one object, or something follows it.
    """
    found: dict[str, str | None] = {}
    at = _expect(text, 0, "{")
    if text[at : at + 1] == "}":
        _end(text, at + 1)
        return found
    while True:
        key, at = _key(text, at)
        if text[at : at + 1] in ('"', "'"):
            value, at = _string(text, at)
        elif text.startswith("null", at):
            value, at = None, at + 4
        else:
            value, at = _compact(text, at)
        if key in keys:
            found[key] = value
        at = _skip(text, at)
        if text[at : at + 1] == "}":
            _end(text, at + 1)
            return found
        at = _expect(text, at, ",")


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at


def _expect(text: str, at: int, sign: str) -> int:
    """Skip `sign` and the spaces around it; returns the next place."""
    at = _skip(text, at)
    if text[at : at + 1] != sign:
        raise NotJson
    return _skip(text, at + 1)


def _end(text: str, at: int) -> None:
    if _skip(text, at) != len(text):
        raise NotJson


def _key(text: str, at: int) -> tuple[str, int]:
    """A name, and the place where its value begins."""
    key, at = _string(text, at)
    if len(key) > NAME_CHARACTERS_MAX:
        raise NotJson
    return key, _expect(text, at, ":")


def _string(text: str, at: int) -> tuple[str, int]:
    """A string's text and its end; a lone surrogate becomes "?", as in Java."""
    found = (_SINGLE if text[at : at + 1] == "'" else _DOUBLE).match(text, at)
    if not found:
        raise NotJson
    value = found[1]
    if "\\" in value:
        value = _ESCAPED.sub(_unescaped, value)
        # Through UTF-16, two escaped surrogates that form a pair become one character.
        value = value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        value = value.encode("utf-8", "replace").decode()
    return value, found.end()


def _unescaped(found: re.Match[str]) -> str:
    sign = found[1]
    return chr(int(sign[1:], 16)) if len(sign) > 1 else _PLAIN.get(sign, sign)


def _compact(text: str, at: int) -> tuple[str, int]:
    """Any value as compact JSON, and its end."""
    pieces: list[str] = []
    closing: list[str] = []
    while True:
        sign = text[at : at + 1]
        if sign in ("{", "["):
            at = _skip(text, at + 1)
            closing.append("}" if sign == "{" else "]")
            pieces.append(sign)
            if len(closing) + 1 > DEPTH_MAX:
                raise NotJson
            ended = text[at : at + 1] == closing[-1]
        else:
            piece, at = _scalar(text, at)
            pieces.append(piece)
            ended = True
        while ended and closing:
            at = _skip(text, at)
            if text[at : at + 1] == closing[-1]:
                pieces.append(closing.pop())
                at += 1
            else:
                at = _expect(text, at, ",")
                pieces.append(",")
                ended = False
        if not closing:
            return "".join(pieces), at
        if closing[-1] == "}":
            key, at = _key(text, at)
            pieces += [_quoted(key), ":"]


def _scalar(text: str, at: int) -> tuple[str, int]:
    if text[at : at + 1] in ('"', "'"):
        value, at = _string(text, at)
        return _quoted(value), at
    if text.startswith("null", at):
        return "null", at + 4
    number = _NUMBER.match(text, at)
    if number:
        return _number(*number.groups()), number.end()
    word = _WORD.match(text, at)
    if not word or word[0] not in _WORDS:
        raise NotJson
    return _WORDS[word[0]], word.end()


def _quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _number(sign: str, whole: str, rest: str) -> str:
    if len(whole) > DIGITS_MAX or len(rest) > DIGITS_MAX:
        raise NotJson
    if not rest:
        return "0" if whole == "0" else sign + whole
    value = float(sign + whole + rest)
    return _java_double(value) if math.isfinite(value) else f'"{sign}Infinity"'


def _java_double(value: float) -> str:
    """A double as Java writes it: plain from 0.001 up to 10,000,000, else with an exponent."""
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).rstrip("0") or "0"
    point = len(digits) + exponent  # digits before the decimal point
    minus = "-" if sign else ""
    if text == "0":
        return f"{minus}0.0"
    if -3 < point <= 7:
        whole = text[: max(point, 0)].ljust(max(point, 0), "0") or "0"
        return f"{minus}{whole}.{'0' * max(-point, 0)}{text[max(point, 0) :] or '0'}"
    return f"{minus}{text[0]}.{text[1:] or '0'}E{point - 1}"
