"""The last hour of every topic, channel and node, and of the cluster, in memory.

1. A step is taken every 10 seconds and kept for an hour. It is one float32 array of three figures
   by number (`names`): 12 bytes a name and step, 4,320 bytes a name and hour. 1,000 topics with 10
   channels each are 11,000 names, 48 MB.
2. `BYTES_MAX` holds at any number of names: beyond 24,000 steps are farther apart, 20 seconds, 30
   seconds and so on.
3. Figures: what waits, a rate (published to a topic, finished of a channel), the lag. What is
   unknown is nan, in a series None; so is a lag without end.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sparq.nsqadmin.watch.look import Figures
from sparq.nsqadmin.watch.rows import Channel, Node, Topic, Totals
from sparq.nsqadmin.watch.table import Table
from sparq.nsqadmin.watch.tables import Order

STEP_SECONDS: Final = 10.0
KEPT_SECONDS: Final = 3600.0
BYTES_MAX: Final = 100 << 20
FIGURE_BYTES: Final = 4
WAITING, RATE, LAG = range(3)

SLACK_SECONDS: Final = 1.0
"""A step may be this early: rounds do not come to the second."""

GROWTH_SECONDS: Final = 60.0
"""Growth is told over the last minute; of a shorter history over what there is, if not less than
`GROWTH_SECONDS_MIN`.
"""
GROWTH_SECONDS_MIN: Final = 20.0

Values: TypeAlias = list[float | None]


@dataclass(frozen=True, slots=True)
class Series:
    """Figures over time.

    Attributes:
        times: seconds since 1970, ascending.
        values: by the figure's name, each as long as `times`; None: unknown.
    """

    times: list[float]
    values: dict[str, Values]


@dataclass(frozen=True, slots=True)
class _Step:
    time: float
    figures: NDArray[np.float32]
    nodes: dict[str, tuple[float | None, ...]]
    total: tuple[float | None, ...]


_NODE = ("waiting", "in_rate", "out_rate")
_TOTAL = ("waiting", "in_flight", "in_rate", "out_rate", "requeue_rate", "lag_seconds")


class History:
    """Takes steps, and tells of them."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._steps: deque[_Step] = deque()
        self._bytes = 0

    @property
    def size_bytes(self) -> int:
        """What the figures by number take."""
        return self._bytes

    def step_seconds(self, size: int) -> float:
        """How far steps of this many names are apart."""
        hour = 3 * FIGURE_BYTES * max(size, 1) * KEPT_SECONDS / STEP_SECONDS
        return STEP_SECONDS * math.ceil(hour / self._bytes_max)

    def is_due(self, time: float, size: int) -> bool:
        """Whether a step is to be taken now; `time` in seconds since 1970."""
        if not self._steps or time < self._steps[-1].time:
            return True
        return time - self._steps[-1].time >= self.step_seconds(size) - SLACK_SECONDS

    def take(
        self,
        time: float,
        size: int,
        order: Order,
        tables: tuple[Table[Topic], Table[Channel]],
        nodes: tuple[Sequence[Node], Totals],
    ) -> None:
        """Keep what is now.

        Args:
            time: seconds since 1970.
            size: the number of names.
            order: of the tables' rows.
            tables: of topics and channels.
            nodes: the nodes and their totals.
        """
        (topics, channels), (each, totals) = tables, nodes
        figures = np.full((3, size), np.nan, np.float32)
        figures[WAITING, order.topics] = topics.columns["waiting"]
        figures[RATE, order.topics] = topics.columns["in_rate"]
        figures[LAG, order.topics] = topics.columns["lag_seconds"]
        figures[WAITING, order.channels] = channels.columns["depth"]
        figures[RATE, order.channels] = channels.columns["out_rate"]
        figures[LAG, order.channels] = channels.columns["lag_seconds"]
        of_nodes = {node.address: tuple(getattr(node, name) for name in _NODE) for node in each}
        total = tuple(getattr(totals, name) for name in _TOTAL)
        self._steps.append(_Step(time, figures, of_nodes, total))
        self._bytes += figures.nbytes
        self._drop(time)

    def _drop(self, time: float) -> None:
        steps = self._steps
        # A clock that was set back leaves steps of a time to come: they go, too.
        while (
            steps[0].time < time - KEPT_SECONDS
            or steps[0].time > time
            or self._bytes > self._bytes_max
        ):
            if len(steps) == 1:
                break
            self._bytes -= steps.popleft().figures.nbytes

    def growth(self, time: float, depth: Figures) -> Figures:
        """By how many messages a second each depth has grown lately; nan: not known yet.

        Args:
            time: now, seconds since 1970.
            depth: now, by number.
        """
        growth = np.full(len(depth), np.nan)
        step = self._before(time - GROWTH_SECONDS)
        if step is not None and time - step.time >= GROWTH_SECONDS_MIN:
            size = min(len(depth), step.figures.shape[1])
            grown = depth[:size] - step.figures[WAITING, :size]
            growth[:size] = grown / (time - step.time)
        return growth

    def _before(self, time: float) -> _Step | None:
        """The step at this time or the last one before it; else the first one."""
        for step in reversed(self._steps):
            if step.time <= time:
                return step
        return self._steps[0] if self._steps else None

    def topic(self, number: int, channels: Sequence[int]) -> Series:
        """A topic's `waiting`, `in_rate`, `out_rate` of its channels, and `lag_seconds`."""
        found = {
            "waiting": self._figure(WAITING, number),
            "in_rate": self._figure(RATE, number),
            "out_rate": self._sums(RATE, channels),
            "lag_seconds": self._figure(LAG, number),
        }
        return self._series(found)

    def channel(self, number: int, topic: int) -> Series:
        """A channel's `waiting`, `in_rate` (its topic's), `out_rate` and `lag_seconds`."""
        found = {
            "waiting": self._figure(WAITING, number),
            "in_rate": self._figure(RATE, topic),
            "out_rate": self._figure(RATE, number),
            "lag_seconds": self._figure(LAG, number),
        }
        return self._series(found)

    def node(self, address: str) -> Series:
        """A node's `waiting`, `in_rate` and `out_rate`."""
        unknown = (None,) * len(_NODE)
        rows = [step.nodes.get(address, unknown) for step in self._steps]
        return self._series({name: [row[at] for row in rows] for at, name in enumerate(_NODE)})

    def total(self) -> Series:
        """The cluster's `waiting`, `in_flight`, rates and `lag_seconds`."""
        rows = [step.total for step in self._steps]
        return self._series({name: [row[at] for row in rows] for at, name in enumerate(_TOTAL)})

    def _figure(self, figure: int, number: int) -> list[float]:
        return [
            float(step.figures[figure, number]) if 0 <= number < step.figures.shape[1] else math.nan
            for step in self._steps
        ]

    def _sums(self, figure: int, numbers: Sequence[int]) -> list[float]:
        wanted = np.array(numbers, np.intp)
        sums = []
        for step in self._steps:
            found = step.figures[figure, wanted[wanted < step.figures.shape[1]]]
            is_known = not np.isnan(found).all()
            sums.append(float(np.nansum(found)) if is_known else math.nan)
        return sums

    def _series(self, found: Mapping[str, Sequence[float | None]]) -> Series:
        times = [step.time for step in self._steps]
        return Series(times, {name: [_known(value) for value in found[name]] for name in found})


def _known(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
