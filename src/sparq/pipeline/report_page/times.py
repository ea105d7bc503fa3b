"""Formats times for the page, all in UTC: labels of axes and of points.

Pure. A time is a number of minutes since 1970, or of seconds since the start of a run.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from sparq.pipeline.report_page.points import DAY, HOUR

MINUTE_TICKS: Final = (1, 2, 5, 10, 15, 30, *(HOUR * n for n in (1, 2, 3, 6, 12)))
DAY_TICKS: Final = tuple(DAY * n for n in (1, 2, 7, 14, 28, 91, 182, 364))
SECOND_TICKS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 86400)

Ticks = list[tuple[float, str]]

ENDS: Final = tuple(datetime(year, 1, 1, tzinfo=UTC).timestamp() // 60 for year in (1, 9999))
"""The limits of Python's calendar in minutes; a point of many weeks may begin before them."""


def at(minute: float) -> datetime:
    """The time of a minute, or the nearest time that Python's calendar has."""
    return datetime.fromtimestamp(min(max(minute, ENDS[0]), ENDS[1]) * 60, UTC)


def minute_text(minute: float) -> str:
    """Format a minute, such as 21 Nov 2026 10:05."""
    return f"{at(minute):%-d %b %Y %H:%M}"


def span_text(begin: int, step: int) -> str:
    """Format the time of a point: its minute, or its first minute and the one after its last."""
    first, end = at(begin), at(begin + step)
    if step == 1:
        return f"{first:%-d %b %H:%M}"
    if step < DAY:
        return f"{first:%-d %b %H:%M}-{end:%H:%M}"
    return f"{first:%-d %b %Y}" if step == DAY else f"{first:%-d %b} - {end:%-d %b %Y}"


def step_text(step: int) -> str:
    """Format a number of minutes in words."""
    for length, word in ((7 * DAY, "week"), (DAY, "day"), (HOUR, "hour")):
        if step >= length and step % length == 0:
            return f"{step // length} {word}s" if step > length else word
    return f"{step} minutes" if step > 1 else "minute"


def minute_ticks(first: float, last: float, count: int) -> Ticks:
    """At most `count` labelled ticks between two minutes."""
    step = _step((*MINUTE_TICKS, *DAY_TICKS), last - first, count)
    style = "%-d %b" if step >= DAY else "%H:%M"
    if step >= 28 * DAY:
        style = "%b %Y"
    places = range(-int(-first // step) * step, int(last) + 1, step)
    labels = [(float(place), f"{at(place):{style}}") for place in places]
    # At midnight the label is the day, since the time of day would say nothing there.
    return [(place, f"{at(place):%-d %b}" if text == "00:00" else text) for place, text in labels]


def second_ticks(last: float, count: int) -> Ticks:
    """At most `count` labelled ticks from 0 to `last` seconds."""
    step = _step(SECOND_TICKS, last, count)
    return [(float(place), seconds_text(place)) for place in range(0, int(last) + 1, step)]


def seconds_text(seconds: float) -> str:
    """Format seconds, such as 45 s, 2:05, 1:00:00."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _step(steps: tuple[int, ...], length: float, count: int) -> int:
    for step in steps:
        if length < step * count:
            return step
    step = steps[-1]
    while length >= step * count:
        step *= 2
    return step
