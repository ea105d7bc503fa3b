"""A small filter language for JSON bodies: `user.id = "7"`, `status >= 500`, `items[0].sku ~ "x"`.

    filter   = path [operator value]
    path     = name or ["name"], then any of: .name  ["name"]  [position]
    operator = "=" (also "=="), "!=", "<", "<=", ">", ">=", "~"
    value    = a number, a string in double quotes, true, false or null, as in JSON

1. A path alone matches if it exists in the body. Numbers are compared with numbers, strings with
   strings, character by character; `true`, `false` and `null` are only equal or not. `~`: the value
   is a part of the string in the body. A value of another type, or a missing one, matches no
   operator.
2. Matching a body costs one parse of it; no other cost grows faster than the body.
3. Parsing lets no other thread run: a body of the largest size takes milliseconds.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Final

import msgspec

FILTER_CHARACTERS_MAX: Final = 1024
"""Maximum length of a filter."""

STEPS_MAX: Final = 32
"""Maximum number of steps in a path."""

PARSED_BYTES_MAX: Final = 256 << 10
"""Larger bodies are not parsed."""

ESCAPE: Final = b"\\u"
"""The start of a Unicode escape: the second way in which JSON can write any character."""

_NAME: Final = re.compile(r"[^\W\d][\w-]*")
_POSITION: Final = re.compile(r"\[(\d{1,9})\]")
_OPERATOR: Final = re.compile(r"==|!=|<=|>=|=|<|>|~")
_COMPARED: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": eq,
    "==": eq,
    "!=": ne,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
    "~": lambda found, part: part in found,
}
_FOR_NEEDLES: Final = ("=", "==", "~")
# JSON writes "/" also as "\/", and escapes the others: there are no certain bytes to search for.
_SPECIAL: Final = re.compile(r'["\\/\x00-\x1f\x7f]')
_FOR_CONSTANTS: Final = ("=", "==", "!=")
_MISSING: Final = object()
_DECODER: Final = json.JSONDecoder()


class FilterError(ValueError):
    """An invalid filter; the text says where and what was expected."""


@dataclass(frozen=True, slots=True)
class JsonFilter:
    """One condition on a JSON body.

    Attributes:
        path: names and positions, from the outside inwards.
        operator: how the value in the body is compared; empty: it only has to exist.
        value: the value to compare with.
    """

    path: tuple[str | int, ...]
    operator: str = ""
    value: str | float | bool | None = None

    def matches(self, body: bytes) -> bool:
        """Whether a body is JSON and matches; a body over PARSED_BYTES_MAX never does."""
        if len(body) > PARSED_BYTES_MAX:
            return False
        # A large document would cause many collections. Each of them looks at all of it and lets no
        # other thread run, and the document contains nothing to collect.
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return self._matches(msgspec.json.decode(body))
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            # The parser recurses for each level: a publisher chooses the depth.
            return False
        finally:
            if was_enabled:
                gc.enable()

    def _matches(self, found: Any) -> bool:
        """Whether a parsed body matches."""
        for step in self.path:
            try:
                # A dict's names are texts: a position is none of them.
                is_there = isinstance(found, dict if isinstance(step, str) else list)
                found = found[step] if is_there else _MISSING
            except (KeyError, IndexError):
                found = _MISSING
        if found is _MISSING or not self.operator:
            return found is not _MISSING
        is_alike = _type_of(found) == _type_of(self.value)
        return is_alike and _COMPARED[self.operator](found, self.value)

    def needle(self) -> bytes:
        """Return bytes that every matching body contains, unless it contains `ESCAPE`."""
        value = self.value
        # Not the names of the path: all bodies of a topic may have them.
        if not isinstance(value, str) or self.operator not in _FOR_NEEDLES:
            return b""
        if _SPECIAL.search(value):
            return b""
        text = value if self.operator == "~" else f'"{value}"'
        return text.encode("utf-8", "surrogatepass")


def _type_of(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "constant"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "other"


def parse(text: str) -> JsonFilter:
    """Parse a filter.

    Raises:
        FilterError: the filter is invalid.
    """
    if len(text) > FILTER_CHARACTERS_MAX:
        raise FilterError(f"may have at most {FILTER_CHARACTERS_MAX} characters")
    path, at = _path(text, _skip(text, 0))
    at = _skip(text, at)
    if at == len(text):
        return JsonFilter(path)
    operator = _OPERATOR.match(text, at)
    if operator is None:
        raise FilterError(f"expected an operator (= != < <= > >= ~) at {text[at : at + 20]!r}")
    what = "expected a number, a string in double quotes, true, false or null"
    value, end = _decoded(text, _skip(text, operator.end()), what)
    if _type_of(value) == "other" or _skip(text, end) != len(text):
        raise FilterError(f"{what}, and nothing after it")
    if operator[0] == "~" and not isinstance(value, str):
        raise FilterError("~ needs a string in double quotes")
    if _type_of(value) == "constant" and operator[0] not in _FOR_CONSTANTS:
        raise FilterError(f"{operator[0]} needs a number or a string in double quotes")
    return JsonFilter(path, operator[0], value)


def _skip(text: str, at: int) -> int:
    return len(text) - len(text[at:].lstrip(" \t"))


def _decoded(text: str, at: int, what: str) -> tuple[Any, int]:
    """Return the JSON value here, and where it ends."""
    try:
        return _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        raise FilterError(f"{what} at {text[at : at + 20]!r}") from None


def _path(text: str, at: int) -> tuple[tuple[str | int, ...], int]:
    """Return the steps of a path, and where it ends."""
    steps: list[str | int] = []
    while len(steps) <= STEPS_MAX:
        position = _POSITION.match(text, at)
        if position is not None:
            steps.append(int(position[1]))
            at = position.end()
        elif text.startswith("[", at):
            what = "expected a position or a string in double quotes"
            name, end = _decoded(text, at + 1, what)
            if not isinstance(name, str):
                raise FilterError(f"{what} at {text[at + 1 : at + 21]!r}")
            if text[end : end + 1] != "]":
                raise FilterError(f"expected ] at {text[end : end + 20]!r}")
            steps.append(name)
            at = end + 1
        elif steps and text[at : at + 1] != ".":
            return tuple(steps), at
        else:
            at += bool(steps)
            found = _NAME.match(text, at)
            if found is None:
                raise FilterError(f"expected a name at {text[at : at + 20]!r}")
            steps.append(found[0])
            at = found.end()
    raise FilterError(f"a path has at most {STEPS_MAX} steps")
