"""Durations as Go writes them, such as `300ms` or `2m30s`, in nanoseconds; sizes such as `64m`.

Both directions are exact: no value passes through a float. `format_duration` prints the same text
as Go's `time.Duration.String`, since NSQ's text pages and flag defaults show it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

MICROSECOND = 1_000
MILLISECOND = 1_000_000
SECOND = 1_000_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

GO_UNITS = {
    "ns": 1,
    "us": MICROSECOND,
    # Go accepts both: the micro sign, which it prints, and the Greek letter mu.
    "\u00b5s": MICROSECOND,
    "\u03bcs": MICROSECOND,
    "ms": MILLISECOND,
    "s": SECOND,
    "m": MINUTE,
    "h": HOUR,
}
UNITS = GO_UNITS | {"min": MINUTE, "d": DAY}
"""Also those that Spark and people write."""

SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?([a-z\u00b5\u03bc]+)")
_WORD = re.compile(r"\s*(ms|mi(?=lli)|min|[smhd])[a-z]*\s*")
_LIMIT_NS = 1 << 63
_TEXT_SIZE_MAX = 100
"""No sensible duration is longer; a longer text is refused before it is parsed."""


def parse_duration(text: str, units: Mapping[str, int] = GO_UNITS) -> int:
    """Parse a duration.

    Args:
        text: e.g. `2s`, `-1.5h`, `1h2m3.5s`, or `0`.
        units: the units that it may have.
    Returns:
        Nanoseconds.
    Raises:
        ValueError: the text has no unit, an unknown one, or is out of range.
    """
    if len(text) > _TEXT_SIZE_MAX:
        raise ValueError("invalid duration: too long")
    negative = text.startswith("-")
    rest = text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return 0
    total = 0
    at = 0
    while at < len(rest) or at == 0:
        part = _PART.match(rest, at)
        if part is None or not (part[1] or part[2]) or part[3] not in units:
            raise ValueError(f"invalid duration {text!r}")
        fraction = part[2] or ""
        unit = units[part[3]]
        total += int(part[1] or "0") * unit
        # Integers, not floats: 0.1 s must be exactly 100 ms. Go drops digits below 1 ns as well.
        total += int(fraction or "0") * unit // 10 ** len(fraction)
        at = part.end()
        if total >= _LIMIT_NS:
            raise ValueError(f"invalid duration {text!r}")
    return -total if negative else total


def parse_words(text: str, unit: str) -> int:
    """Parse a duration as Spark writes it: `1 minute 30 seconds`; a bare number has the unit.

    Raises:
        ValueError: it is none, or negative.
    """
    if len(text) > _TEXT_SIZE_MAX:
        raise ValueError("invalid duration: too long")
    text = _WORD.sub(lambda word: {"mi": "ms"}.get(word[1], word[1]), text.strip().lower())
    found = parse_duration(text if text[-1:].isalpha() else f"{text}{unit}", UNITS)
    if found < 0:
        raise ValueError(f"invalid duration {text!r}")
    return found


def parse_size(text: str) -> int:
    """Parse a number of bytes above 0: `67108864`, `512k`, `64 MiB`. ValueError: it is none."""
    found = re.fullmatch(r"([0-9]+) ?([kmgt]?)i?b?", text.lower())
    if found is None or not int(found[1]):
        raise ValueError(f"invalid size {text!r}")
    return int(found[1]) * SIZES[found[2]]


def _decimal(value: int, unit: int) -> str:
    """`value / unit` without trailing zeros, exactly (units are powers of ten)."""
    whole, rest = divmod(value, unit)
    if not rest:
        return str(whole)
    digits = f"{rest:0{len(str(unit)) - 1}d}".rstrip("0")
    return f"{whole}.{digits}"


def format_duration(nanoseconds: int) -> str:
    """Format nanoseconds as Go does: `1m0s`, `250ms`, `0s`."""
    if nanoseconds == 0:
        return "0s"
    sign = "-" if nanoseconds < 0 else ""
    value = abs(nanoseconds)
    if value < MICROSECOND:
        return f"{sign}{value}ns"
    if value < MILLISECOND:
        return f"{sign}{_decimal(value, MICROSECOND)}\u00b5s"
    if value < SECOND:
        return f"{sign}{_decimal(value, MILLISECOND)}ms"
    minutes, rest = divmod(value, MINUTE)
    seconds = f"{_decimal(rest, SECOND)}s"
    if not minutes:
        return sign + seconds
    hours, minutes = divmod(minutes, 60)
    return f"{sign}{hours}h{minutes}m{seconds}" if hours else f"{sign}{minutes}m{seconds}"
