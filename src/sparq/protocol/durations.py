"""Durations as Go writes them, such as `300ms`, `1.5h` or `2m30s`, in nanoseconds.

Both directions are exact: no value passes through a float. `format_duration` prints the same text
as Go's `time.Duration.String`, since NSQ's text pages and flag defaults show it.
"""

from __future__ import annotations

import re

MICROSECOND = 1_000
MILLISECOND = 1_000_000
SECOND = 1_000_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE

_UNITS = {
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
_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|\u00b5s|\u03bcs|ms|s|m|h)")
_LIMIT_NS = 1 << 63
_TEXT_SIZE_MAX = 100
"""No sensible duration is longer; a longer text is refused before it is parsed."""


def parse_duration(text: str) -> int:
    """Parse a Go duration.

    Args:
        text: e.g. `2s`, `-1.5h`, `1h2m3.5s`, or `0`.
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
        if part is None or not (part[1] or part[2]):
            raise ValueError(f"invalid duration {text!r}")
        fraction = part[2] or ""
        unit = _UNITS[part[3]]
        total += int(part[1] or "0") * unit
        # Integers, not floats: 0.1 s must be exactly 100 ms. Go drops digits below 1 ns as well.
        total += int(fraction or "0") * unit // 10 ** len(fraction)
        at = part.end()
        if total >= _LIMIT_NS:
            raise ValueError(f"invalid duration {text!r}")
    return -total if negative else total


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
