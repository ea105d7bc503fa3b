"""Figures as pages show them: short in a column, whole in a tooltip. Pure.

An unknown figure (None) is a dash everywhere; a figure without end is a word.
"""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from typing import Any, Final

from sparq.nsqadmin.watch import words

UNKNOWN: Final = "\N{EN DASH}"
MINUS: Final = "\N{MINUS SIGN}"
_SHORT_FROM: Final = 100_000
_STEPS: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BYTES: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def whole(number: float | None) -> str:
    """`1,234,567`."""
    return UNKNOWN if number is None else f"{number:,.0f}"


def short(number: float | None) -> str:
    """`12,345`, from 100,000 on `123k`, `1.23M`."""
    if number is None:
        return UNKNOWN
    if math.isinf(number):
        return "∞"
    if abs(number) < _SHORT_FROM:
        return f"{number:,.0f}"
    return _scaled(number, _STEPS)


def _scaled(number: float, steps: tuple[tuple[float, str], ...], space: str = "") -> str:
    for step, unit in steps:
        if abs(number) >= step:
            scaled = number / step
            digits = max(0, 2 - int(math.log10(abs(scaled))))
            return f"{scaled:.{digits}f}{space}{unit}"
    return f"{number:.0f}"


def rate(per_second: float | None) -> str:
    """`0.4`, `123`, `1.23M`; the column says that it is a second."""
    if per_second is None:
        return UNKNOWN
    return words.rate(per_second) if abs(per_second) < _SHORT_FROM else short(per_second)


def per_second(count: float | None) -> str:
    """`123/s`; a dash where it is unknown."""
    return UNKNOWN if count is None else f"{rate(count)}/s"


def signed(per_second: float | None) -> str:
    """`+12`, `0`, or with a minus sign."""
    if per_second is None:
        return UNKNOWN
    text = rate(abs(per_second))
    return text if text in ("0", "0.0") else f"{'+' if per_second > 0 else MINUS}{text}"


def size(number: float | None) -> str:
    """`123 B`, `1.23 KiB`."""
    if number is None:
        return UNKNOWN
    return f"{number:.0f} B" if number < _BYTES[-1][0] else _scaled(number, _BYTES, " ")


def seconds(duration: float | None) -> str:
    """`12 s`, `5 min`, `3 h 20 min`; below a second `< 1 s`; without end `never`."""
    if duration is None:
        return UNKNOWN
    if math.isinf(duration):
        return "never"
    return "< 1 s" if 0 < duration < 1 else words.duration(max(0.0, duration))


def lag(duration: float | None) -> str:
    """As `seconds`; `∞` where nothing is being finished."""
    return "∞" if duration is not None and math.isinf(duration) else seconds(duration)


def moment(at: float | None) -> str:
    """`2026-11-23 12:00:00` in UTC, of seconds since 1970."""
    if not at:
        return UNKNOWN
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def clock(at: float) -> str:
    """`12:00:00` in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")


def ago(at: float | None, now: float | None = None) -> str:
    """`5 min ago`, of seconds since 1970."""
    if not at:
        return UNKNOWN
    return f"{words.duration(max(0.0, (time.time() if now is None else now) - at))} ago"


FILTERS: Final[dict[str, Any]] = {
    "whole": whole,
    "short": short,
    "rate": rate,
    "per_second": per_second,
    "signed": signed,
    "size": size,
    "seconds": seconds,
    "lag": lag,
    "moment": moment,
    "clock": clock,
    "ago": ago,
    "count": words.count,
}
"""By the names that templates know them by."""
