"""The minutes of a run as a limited number of points of a chart.

Pure: an Arrow table of minutes in, numpy arrays out.

1. There are at most `points_max` points, however many clicks there are. If there are more minutes,
   a point is the mean of several, and still *per minute*: its unit stays the same. A mean of
   visitors per minute is correct, while visitors of an hour cannot be added up.
2. A minute without a click is a zero, not a gap.
3. A few clicks with a wrong clock (from 1970, say) must not squeeze all others into one point. If
   there are too many minutes, and leaving out at most a thousandth of the clicks at either end
   makes the time ten times shorter, these clicks are left out and counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

MINUTE_S: Final = 60
POINTS_MAX: Final = 1_500
HOUR, DAY = 60, 1_440
STEPS: Final = (1, 2, 5, 10, 15, 30, *(HOUR * n for n in (1, 2, 3, 6, 12)), DAY)
"""Minutes per point. Above a day, whole weeks: 1, 2, 4, 8 and so on."""

LEFT_OUT_SHARE: Final = 0.001
SHORTER_TIMES: Final = 10


@dataclass(frozen=True, slots=True)
class Points:
    """Values by time; all arrays have the same length.

    Attributes:
        starts: start of each point, in minutes since 1970; each is `step` minutes long.
        step: minutes per point.
        values: by column, the mean per minute.
        left_out: number of clicks outside the time shown.
    """

    starts: Integers
    step: int
    values: dict[str, Floats]
    left_out: int = 0

    def __len__(self) -> int:
        """Number of points."""
        return len(self.starts)


def points_of(minutes: pa.Table, columns: list[str], points_max: int = POINTS_MAX) -> Points:
    """The minutes as points.

    Args:
        minutes: a row per minute: `minute` (a timestamp in UTC), `clicks`, and `columns`.
        columns: the columns to show.
        points_max: maximum number of points.
    """
    at = minutes["minute"].cast(pa.int64()).to_numpy() // _unit(minutes) if len(minutes) else None
    if at is None:
        return Points(np.empty(0, np.int64), 1, {name: np.empty(0) for name in columns})
    clicks = minutes["clicks"].to_numpy()
    first, last = window(at, clicks, points_max)
    inside = (at >= first) & (at <= last)
    step = step_of(last - first + 1, points_max)
    begin = first // step * step
    starts = np.arange(begin, last + 1, step)
    # The first and the last point may lie only partly within the time shown.
    lengths = np.minimum(starts + step, last + 1) - np.maximum(starts, first)
    places = (at[inside] - begin) // step
    values = {
        name: np.bincount(places, minutes[name].to_numpy()[inside], len(starts)) / lengths
        for name in columns
    }
    return Points(starts, step, values, int(clicks[~inside].sum()))


def _unit(minutes: pa.Table) -> int:
    """The length of a minute in the unit of the column."""
    per_second = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
    return MINUTE_S * per_second[minutes.schema.field("minute").type.unit]


def window(minutes: Integers, clicks: Integers, points_max: int) -> tuple[int, int]:
    """The first and the last minute to show."""
    first, last = int(minutes.min()), int(minutes.max())
    if last - first < points_max:
        return first, last
    order = np.argsort(minutes)
    running = np.cumsum(clicks[order])
    outside = running[-1] * LEFT_OUT_SHARE
    low = int(minutes[order][np.searchsorted(running, outside, side="right")])
    high = int(minutes[order][np.searchsorted(running, running[-1] - outside, side="left")])
    length = high - low + 1
    if length * SHORTER_TIMES >= last - first + 1:
        return first, last
    # Minutes next to this range, within its own length, belong to it.
    near = minutes[(minutes >= low - length) & (minutes <= high + length)]
    return int(near.min()), int(near.max())


def step_of(minutes: int, points_max: int) -> int:
    """The shortest step that divides `minutes` minutes into at most `points_max` points."""
    if minutes <= points_max:
        return 1
    # One point is reserved: points begin at multiples of the step, which can add one.
    for step in STEPS:
        if minutes <= step * (points_max - 1):
            return step
    step = 7 * DAY
    while minutes > step * (points_max - 1):
        step *= 2
    return step
