"""Formats numbers, durations and lists of names for sentences."""

from __future__ import annotations

import math

MINUTE, HOUR, DAY = 60, 3600, 86_400


def count(number: float, noun: str = "", plural: str = "") -> str:
    """`1,234`; with a noun `1 message`, `1,234 messages`."""
    text = f"{number:,.0f}"
    if not noun:
        return text
    return f"{text} {noun if text == '1' else plural or noun + 's'}"


def rate(per_second: float) -> str:
    """`1,234`, below 10 with a decimal: `0.4`."""
    return f"{per_second:,.0f}" if per_second >= 10 or not per_second else f"{per_second:.1f}"


def duration(seconds: float) -> str:
    """`12 s`, `5 min`, `3 h 20 min`, `2 days`; `forever`."""
    if math.isinf(seconds):
        return "forever"
    if seconds < 2 * MINUTE:
        return f"{seconds:.0f} s"
    if seconds < HOUR:
        return f"{seconds // MINUTE:.0f} min"
    if seconds < 2 * DAY:
        hours, minutes = divmod(int(seconds) // MINUTE, 60)
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{seconds // DAY:.0f} days"


def names(texts: list[str], shown: int = 3) -> str:
    """`a`, `a and b`, `a, b and c`, `a, b, c and 4 more`."""
    if len(texts) > shown:
        return f"{', '.join(texts[:shown])} and {len(texts) - shown:,} more"
    return " and ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else "".join(texts)
