"""The last hour of every topic, channel and node, and of the cluster, in memory.

1. A step is taken every 10 seconds and kept for an hour. Each topic and channel has one array of
   three float32 for each step: 12 bytes per name and step, 4,320 bytes per name and hour. 1,000
   topics with 10 channels each are 11,000 names, 48 MB.
2. `BYTES_MAX` is kept for any number of names: with more than 24,000 names, steps are taken every
   20 seconds, 30 seconds and so on.
3. Growth compares steps of the same nodes: the backlog of a node that comes back is no growth. A
   series has an unknown figure where steps are missing, so that no line is drawn over the time in
   which this process stood still, and unknown figures for a node while it is gone.
4. The figures are the waiting messages, a rate (published to a topic, finished on a channel) and
   the lag. An unknown figure is nan. In a series, unknown figures are None. A name without any
   known figure is forgotten.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from sparq.cluster.rows import ChannelRow, Key, RowTable, TopicRow
from sparq.nsqadmin.watch.rows import NodeRow, Totals

STEP_SECONDS: Final = 10.0
KEPT_SECONDS: Final = 3600.0
BYTES_MAX: Final = 100 << 20
FIGURES: Final = 3
FIGURE_BYTES: Final = 4
UNKNOWN: Final = (math.nan,) * FIGURES
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


@dataclass(frozen=True, slots=True)
class Series:
    """Figures over time.

    Attributes:
        times: seconds since 1970, ascending.
        values: by the figure's name, each as long as `times`; None: unknown.
    """

    times: list[float]
    values: dict[str, Values]


class _HistoryStep(NamedTuple):
    """A step without its topics and channels."""

    time: float
    nodes: Mapping[str, tuple[float | None, ...]]
    total: tuple[float | None, ...]


_NODE = ("depth", "in_rate", "out_rate")
_TOTAL = ("depth", "in_flight", "in_rate", "out_rate", "requeue_rate", "lag_seconds")


class History:
    """Takes steps and returns series; both may happen on different threads."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        # Replaced together: the other thread may read them meanwhile.
        self._kept: tuple[list[_HistoryStep], dict[Key, array[float]]] = ([], {})

    @property
    def size_bytes(self) -> int:
        """Memory that the figures of all steps take."""
        steps, past = self._kept
        return FIGURES * FIGURE_BYTES * len(past) * len(steps)

    def step_seconds(self, names: int) -> float:
        """Time between two steps, for this number of names."""
        hour = FIGURES * FIGURE_BYTES * max(names, 1) * KEPT_SECONDS / STEP_SECONDS
        return STEP_SECONDS * math.ceil(hour / self._bytes_max)

    def add(
        self,
        time: float,
        topics: RowTable[TopicRow],
        channels: RowTable[ChannelRow],
        nodes: Sequence[NodeRow],
        totals: Totals,
    ) -> None:
        """Add a step with the current figures, if one is due; `time` in seconds since 1970."""
        steps, past = self._kept
        every = self.step_seconds(len(topics) + len(channels)) - SLACK_SECONDS
        if steps and 0 <= time - steps[-1].time < every:
            return
        now: dict[Key, tuple[float | None, ...]] = {
            (row.topic, ""): (row.waiting, row.in_rate, row.lag_seconds) for row in topics
        }
        for row in channels:
            now[row.topic, row.channel] = row.depth, row.out_rate, row.lag_seconds
        for key in now.keys() - past.keys():
            past[key] = array("f", UNKNOWN * len(steps))
        for key, figures in past.items():
            told = now.get(key, UNKNOWN)
            figures.extend(math.nan if figure is None else figure for figure in told)
        there = {
            node.address: (node.waiting, node.in_rate, node.out_rate)
            for node in nodes
            if node.state != "gone"
        }
        total = (totals.waiting, *(getattr(totals, name) for name in _TOTAL[1:]))
        steps.append(_HistoryStep(time, there, total))
        # After the clock was set back, steps have times in the future: drop them, too.
        most = self._bytes_max // (FIGURES * FIGURE_BYTES * max(1, len(past)))
        old = sum(not time - KEPT_SECONDS <= step.time <= time for step in steps)
        old = min(len(steps) - 1, max(old, len(steps) - most))
        if old:
            kept = {key: figures[FIGURES * old :] for key, figures in past.items()}
            known = {
                key: figures
                for key, figures in kept.items()
                if key in now or not all(map(math.isnan, figures))
            }
            self._kept = steps[old:], known

    def base(self, time: float, counted: frozenset[str]) -> tuple[int, float] | None:
        """The step with which growth compares, and the seconds since then; None: too few steps.

        Args:
            time: the current time, seconds since 1970.
            counted: the addresses of the nodes whose messages are summed. Only steps since this set
                last changed are compared.
        """
        found, steps = None, self._kept[0]
        for place in range(len(steps) - 1, -1, -1):
            step = steps[place]
            if step.nodes.keys() != counted:
                break
            found = place, time - step.time
            if step.time <= time - GROWTH_SECONDS:
                break
        return found if found and found[1] >= GROWTH_SECONDS_MIN else None

    def growth(self, key: Key, depth: int, base: tuple[int, float] | None) -> float | None:
        """Growth of a depth since a step, in messages per second; None: unknown."""
        past = self._kept[1].get(key)
        if base is None or past is None:
            return None
        before = past[FIGURES * base[0]]
        return None if math.isnan(before) else (depth - before) / base[1]

    def series(self, kind: str, *of: str) -> Series:
        """The last hour of a subject; empty if a topic or channel is unknown.

        - `("cluster",)`: `depth`, `in_flight`, `in_rate`, `out_rate`, `requeue_rate`, `lag_seconds`
        - `("topic", T)`: `depth` including its channels, `in_rate`, `lag_seconds`
        - `("channel", T, C)`: `depth`, `in_rate` (its topic's), `out_rate`, `lag_seconds`
        - `("node", N)`: `depth`, `in_rate`, `out_rate`
        """
        steps, past = self._kept
        if kind == "cluster":
            return _series(steps, _TOTAL, [step.total for step in steps])
        if kind == "node":
            unknown = (None,) * len(_NODE)
            return _series(steps, _NODE, [step.nodes.get(of[0], unknown) for step in steps])
        topic, channel = of if kind == "channel" else (of[0], "")
        if (topic, channel) not in past:
            return Series([], {})
        rows = _figures(past, (topic, channel), len(steps))
        if kind == "topic":
            return _series(steps, ("depth", "in_rate", "lag_seconds"), rows)
        of_topic = _figures(past, (topic, ""), len(steps))
        rows = [(*row, whole[1]) for row, whole in zip(rows, of_topic, strict=True)]
        return _series(steps, ("depth", "out_rate", "lag_seconds", "in_rate"), rows)

    def spark(self, topic: str, channel: str, points: int = SPARK_POINTS) -> Series:
        """A channel's `depth` at some steps of the last hour, including the last one."""
        steps, past = self._kept
        return _series(steps, ("depth",), _figures(past, (topic, channel), len(steps)), points)


def _figures(past: Mapping[Key, array[float]], key: Key, steps: int) -> list[tuple[float, ...]]:
    """The figures of a topic or channel at each step."""
    figures = past.get(key) or array("f", UNKNOWN * steps)
    return [tuple(figures[at : at + FIGURES]) for at in range(0, FIGURES * steps, FIGURES)]


def _series(
    steps: Sequence[_HistoryStep],
    names: Sequence[str],
    rows: Sequence[Sequence[float | None]],
    points: int = 0,
) -> Series:
    """The rows, or some `points` of them, with unknown figures where steps are missing."""
    every = -(-len(steps) // points) or 1 if points else 1
    found = Series([], {name: [] for name in names})
    # Not strict: the other thread may have added a step since.
    for place, (step, row) in enumerate(zip(steps, rows, strict=False)):
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
