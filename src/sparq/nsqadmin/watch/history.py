"""The last hour of every topic, channel and node, and of the cluster, in memory.

1. A step is taken every 10 seconds and kept for an hour. It is one float32 array of three figures
   by number (`names`): 12 bytes per name and step, 4,320 bytes per name and hour. 1,000 topics with
   10 channels each are 11,000 names, 48 MB.
2. `BYTES_MAX` is kept for any number of names: with more than 24,000 names, steps are taken every
   20 seconds, 30 seconds and so on.
3. Growth compares steps of the same nodes: the backlog of a node that comes back is no growth. A
   series has an unknown figure where steps are missing, so that no line is drawn over the time in
   which this process stood still, and unknown figures for a node while it is gone.
4. The figures are the waiting messages, a rate (published to a topic, finished on a channel) and
   the lag. An unknown figure is nan. In a series, unknown figures are None.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sparq.nsqadmin.watch.names import NONE, NameNumbers
from sparq.nsqadmin.watch.node_stats import Counts, Figures
from sparq.nsqadmin.watch.rows import ChannelRow, NodeRow, TopicRow, Totals
from sparq.nsqadmin.watch.tables import ColumnTable, NameOrder

STEP_SECONDS: Final = 10.0
KEPT_SECONDS: Final = 3600.0
BYTES_MAX: Final = 100 << 20
FIGURE_BYTES: Final = 4
DEPTH, RATE, LAG = range(3)
SPARK_POINTS: Final = 24
GAP_STEPS: Final = 3.0
"""A gap of more than this many intervals is shown as one."""

SLACK_SECONDS: Final = 1.0
"""A step may be early by this much, because rounds are not on time to the second."""

GROWTH_SECONDS: Final = 60.0
"""Growth is measured over the last minute, or over a shorter history of at least
`GROWTH_SECONDS_MIN`.
"""
GROWTH_SECONDS_MIN: Final = 20.0

Values: TypeAlias = list[float | None]
Subject: TypeAlias = Literal["cluster"] | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """Figures over time.

    Attributes:
        times: seconds since 1970, ascending.
        values: by the figure's name, each as long as `times`; None: unknown.
    """

    times: list[float]
    values: dict[str, Values]

    def document(self) -> dict[str, Values]:
        """Convert to JSON values: `time`, and the figures by name."""
        return {"time": [*self.times], **self.values}


@dataclass(frozen=True, slots=True)
class _HistoryStep:
    time: float
    figures: NDArray[np.float32]
    nodes: Mapping[str, tuple[float | None, ...]]
    total: tuple[float | None, ...]


_NODE = ("depth", "in_rate", "out_rate")
_TOTAL = ("depth", "in_flight", "in_rate", "out_rate", "requeue_rate", "lag_seconds")


class History:
    """Takes steps and returns series; both may happen on different threads.

    Attributes:
        size_bytes: memory that the figures of all steps take.
    """

    def __init__(self, names: NameNumbers, bytes_max: int = BYTES_MAX) -> None:
        self._names = names
        self._bytes_max = bytes_max
        self._steps: deque[_HistoryStep] = deque()
        self.size_bytes = 0

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self._steps)

    def step_seconds(self, size: int) -> float:
        """Time between two steps, for this number of names."""
        hour = 3 * FIGURE_BYTES * max(size, 1) * KEPT_SECONDS / STEP_SECONDS
        return STEP_SECONDS * math.ceil(hour / self._bytes_max)

    def is_due(self, time: float, size: int) -> bool:
        """Whether a step is due; `time` in seconds since 1970."""
        if not self._steps or time < self._steps[-1].time:
            return True
        return time - self._steps[-1].time >= self.step_seconds(size) - SLACK_SECONDS

    def add(
        self,
        time: float,
        order: NameOrder,
        topics: ColumnTable[TopicRow],
        channels: ColumnTable[ChannelRow],
        *,
        nodes: Sequence[NodeRow],
        totals: Totals,
    ) -> None:
        """Add a step with the current figures.

        Args:
            time: seconds since 1970.
            order: the order of the tables' rows.
        """
        figures = np.full((3, len(self._names)), np.nan, np.float32)
        for row, column in ((DEPTH, "waiting"), (RATE, "in_rate"), (LAG, "lag_seconds")):
            figures[row, order.topics] = topics.columns[column]
        for row, column in ((DEPTH, "depth"), (RATE, "out_rate"), (LAG, "lag_seconds")):
            figures[row, order.channels] = channels.columns[column]
        there = {
            node.address: (node.waiting, node.in_rate, node.out_rate)
            for node in nodes
            if node.state != "gone"
        }
        total = (totals.waiting, *(getattr(totals, name) for name in _TOTAL[1:]))
        steps = self._steps
        steps.append(_HistoryStep(time, figures, there, total))
        self.size_bytes += figures.nbytes
        # After the clock was set back, steps have times in the future: drop them, too.
        while len(steps) > 1 and (
            not time - KEPT_SECONDS <= steps[0].time <= time or self.size_bytes > self._bytes_max
        ):
            self.size_bytes -= steps.popleft().figures.nbytes

    def growth(self, time: float, depth: Counts, counted: frozenset[str]) -> Figures:
        """Recent growth of each depth, in messages per second; nan if not known yet.

        Args:
            time: the current time, seconds since 1970.
            depth: the current depths, by number.
            counted: the addresses of the nodes that they are the sums of. Only steps since this set
                last changed are compared.
        """
        growth, base = np.full(len(depth), np.nan), None
        for step in reversed(self._steps):
            if step.nodes.keys() != counted:
                break
            base = step
            if step.time <= time - GROWTH_SECONDS:
                break
        if base is not None and time - base.time >= GROWTH_SECONDS_MIN:
            size = min(len(depth), base.figures.shape[1])
            growth[:size] = (depth[:size] - base.figures[DEPTH, :size]) / (time - base.time)
        return growth

    def series(self, of: Subject) -> Series:
        """The last hour of a subject; empty if a topic or channel is unknown.

        - `"cluster"`: `depth`, `in_flight`, `in_rate`, `out_rate`, `requeue_rate`, `lag_seconds`
        - `("topic", T)`: `depth` including its channels, `in_rate`, `lag_seconds`
        - `("channel", T, C)`: `depth`, `in_rate` (its topic's), `out_rate`, `lag_seconds`
        - `("node", N)`: `depth`, `in_rate`, `out_rate`
        """
        # A copy, because the other thread may add a step meanwhile, and a deque must not change
        # while it is iterated.
        steps = tuple(self._steps)
        if of == "cluster":
            return _series(steps, _TOTAL, [step.total for step in steps])
        if of[0] == "node":
            unknown = (None,) * len(_NODE)
            return _series(steps, _NODE, [step.nodes.get(of[1], unknown) for step in steps])
        number = self._names.number(*of[1:])
        if number == NONE:
            return Series([], {})
        rows = [_figures(step, number) for step in steps]
        if of[0] == "topic":
            return _series(steps, ("depth", "in_rate", "lag_seconds"), rows)
        topic = self._names.number(of[1])
        rows = [(*row, _figures(step, topic)[RATE]) for row, step in zip(rows, steps, strict=True)]
        return _series(steps, ("depth", "out_rate", "lag_seconds", "in_rate"), rows)

    def spark(self, of: tuple[str, ...], points: int = SPARK_POINTS) -> Series:
        """A topic's or channel's `depth` at some steps of the last hour, including the last one."""
        number, steps = self._names.number(*of[1:]), tuple(self._steps)
        return _series(steps, ("depth",), [_figures(step, number) for step in steps], points)


def _figures(step: _HistoryStep, number: int) -> tuple[float, ...]:
    if not 0 <= number < step.figures.shape[1]:
        return (math.nan,) * len(step.figures)
    return tuple(step.figures[:, number].tolist())


def _series(
    steps: Sequence[_HistoryStep],
    names: Sequence[str],
    rows: Sequence[Sequence[float | None]],
    points: int = 0,
) -> Series:
    """The rows, or some `points` of them, with unknown figures where steps are missing."""
    every = -(-len(steps) // points) or 1 if points else 1
    found = Series([], {name: [] for name in names})
    for place, (step, row) in enumerate(zip(steps, rows, strict=True)):
        if found.times and _is_after_gap(steps, place):
            before = steps[place - 1].time
            found.times.append((before + step.time) / 2)
            for values in found.values.values():
                values.append(None)
        if (len(steps) - 1 - place) % every == 0:
            found.times.append(step.time)
            for name, value in zip(names, row, strict=False):
                # Rounded to the digits of float32.
                is_known = value is not None and math.isfinite(value)
                found.values[name].append(float(f"{value:.7g}") if is_known else None)
    return found


def _is_after_gap(steps: Sequence[_HistoryStep], place: int) -> bool:
    """Whether a step comes so late that this process must have stood still."""
    times = [step.time for step in steps[max(0, place - 2) : place + 2]]
    at = min(place, 2)
    # A step is at most as late as a round.
    before = times[at - 1] - times[at - 2] if at > 1 else STEP_SECONDS
    after = times[at + 1] - times[at] if len(times) > at + 1 else STEP_SECONDS
    return times[at] - times[at - 1] > GAP_STEPS * max(STEP_SECONDS, min(before, after))
