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
from sparq.nsqadmin.watch.node_stats import Figures
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
    counted: frozenset[str]


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

    def take(
        self,
        time: float,
        size: int,
        order: NameOrder,
        tables: tuple[ColumnTable[TopicRow], ColumnTable[ChannelRow]],
        nodes: tuple[Sequence[NodeRow], Totals],
    ) -> None:
        """Add a step with the current figures.

        Args:
            time: seconds since 1970.
            size: the number of names.
            order: the order of the tables' rows.
            tables: topics and channels.
            nodes: the nodes and their totals.
        """
        (topics, channels), (each, totals) = tables, nodes
        figures = np.full((3, size), np.nan, np.float32)
        figures[DEPTH, order.topics] = topics.columns["waiting"]
        figures[RATE, order.topics] = topics.columns["in_rate"]
        figures[LAG, order.topics] = topics.columns["lag_seconds"]
        figures[DEPTH, order.channels] = channels.columns["depth"]
        figures[RATE, order.channels] = channels.columns["out_rate"]
        figures[LAG, order.channels] = channels.columns["lag_seconds"]
        of_nodes = {
            node.address: (node.waiting, node.in_rate, node.out_rate)
            for node in each
            if node.state != "gone"
        }
        total = (totals.waiting, *(getattr(totals, name) for name in _TOTAL[1:]))
        self._steps.append(_HistoryStep(time, figures, of_nodes, total, frozenset(of_nodes)))
        self.size_bytes += figures.nbytes
        self._drop(time)

    def _drop(self, time: float) -> None:
        steps = self._steps
        # After the clock was set back, steps have times in the future: drop them, too.
        while (
            steps[0].time < time - KEPT_SECONDS
            or steps[0].time > time
            or self.size_bytes > self._bytes_max
        ):
            if len(steps) == 1:
                break
            self.size_bytes -= steps.popleft().figures.nbytes

    def growth(self, time: float, depth: Figures, counted: frozenset[str]) -> Figures:
        """Recent growth of each depth, in messages per second; nan if not known yet.

        Args:
            time: the current time, seconds since 1970.
            depth: the current depths, by number.
            counted: the addresses of the nodes that they are the sums of.
        """
        growth = np.full(len(depth), np.nan)
        step = self._before(time - GROWTH_SECONDS, counted)
        if step is not None and time - step.time >= GROWTH_SECONDS_MIN:
            size = min(len(depth), step.figures.shape[1])
            grown = depth[:size] - step.figures[DEPTH, :size]
            growth[:size] = grown / (time - step.time)
        return growth

    def _before(self, time: float, counted: frozenset[str]) -> _HistoryStep | None:
        """The last step at or before this time; if there is none, the first step.

        Only steps since the set of nodes last changed are considered.
        """
        first = None
        for step in reversed(self._steps):
            if step.counted != counted:
                return first
            if step.time <= time:
                return step
            first = step
        return first

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
        figures = [_figures(step, number) for step in steps]
        if of[0] == "topic":
            return _series(steps, ("depth", "in_rate", "lag_seconds"), figures)
        topic = self._names.number(of[1])
        rates = [_figures(step, topic)[RATE] for step in steps]
        rows = [(*own, rate) for own, rate in zip(figures, rates, strict=True)]
        return _series(steps, ("depth", "out_rate", "lag_seconds", "in_rate"), rows)

    def spark(self, of: tuple[str, ...], points: int = SPARK_POINTS) -> Series:
        """A topic's or channel's `depth` at some steps of the last hour, including the last one."""
        number = self._names.number(*of[1:])
        steps = tuple(self._steps)
        every, last = max(1, -(-len(steps) // points)), len(steps) - 1
        found = Series([], {"depth": []})
        for place, step in enumerate(steps):
            _leave_gap(found, steps, place)
            if (last - place) % every == 0:
                found.times.append(step.time)
                found.values["depth"].append(_known(_figures(step, number)[DEPTH]))
        return found


def _figures(step: _HistoryStep, number: int) -> tuple[float, ...]:
    if not 0 <= number < step.figures.shape[1]:
        return (math.nan,) * len(step.figures)
    return tuple(step.figures[:, number].tolist())


def _series(
    steps: Sequence[_HistoryStep], names: Sequence[str], rows: Sequence[Sequence[float | None]]
) -> Series:
    found = Series([], {name: [] for name in names})
    for place, (step, row) in enumerate(zip(steps, rows, strict=True)):
        _leave_gap(found, steps, place)
        found.times.append(step.time)
        for at, name in enumerate(names):
            found.values[name].append(_known(row[at]))
    return found


def _leave_gap(series: Series, steps: Sequence[_HistoryStep], place: int) -> None:
    """Add unknown figures if the step comes so late that this process must have stood still."""
    if not place or not series.times:
        return
    before, after = steps[place - 1].time, steps[place].time
    # A step is at most as late as a round.
    if after - before > GAP_STEPS * _interval(steps, place):
        series.times.append((before + after) / 2)
        for values in series.values.values():
            values.append(None)


def _interval(steps: Sequence[_HistoryStep], place: int) -> float:
    """Usual time between two steps around a place."""
    before = steps[place - 1].time - steps[place - 2].time if place > 1 else STEP_SECONDS
    after = steps[place + 1].time - steps[place].time if place + 1 < len(steps) else STEP_SECONDS
    return max(STEP_SECONDS, min(before, after))


def _known(value: float | None) -> float | None:
    """Round a figure to the digits of float32; None if it is unknown."""
    return float(f"{value:.7g}") if value is not None and math.isfinite(value) else None
