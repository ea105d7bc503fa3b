"""Merges the figures of all nodes into columns for the cluster, by number (`names`).

1. A rate is the growth of a counter between two answers of one nsqd, divided by the time between
   them. An nsqd that was restarted in between, or has been looked at only once, adds nothing. If no
   nsqd adds anything, the rate is unknown: nan.
2. Lags and states are those of `cluster.figures`, here computed for all channels at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from sparq.cluster.figures import STATES, state_rules
from sparq.nsqadmin.watch.node_stats import (
    AT,
    COUNTERS,
    COUNTS,
    Counts,
    EarlierCounts,
    Figures,
    NodeStats,
)
from sparq.nsqadmin.watch.rows import Reader

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ClusterColumns:
    """Figures of all topics and channels; arrays are indexed by number, shape (..., n).

    Attributes:
        nodes: number of nodes that have the topic or channel; 0: it does not exist.
        counts: rows of `COUNTS`, summed over nodes.
        rates: rows of `COUNTERS`, per second; nan: unknown.
        lag: seconds; nan: unknown.
        is_exact: whether all nodes reported the age of the oldest waiting message.
        says_ready: whether all nodes report their clients' RDY.
        readers: range readers, by number of the channel.
    """

    nodes: NDArray[np.int32]
    counts: Counts
    rates: Figures
    lag: Figures
    is_exact: Flags
    says_ready: Flags
    readers: dict[int, Reader]

    def count(self, name: str) -> Counts:
        """The counts of one of `COUNTS`, shape (n,)."""
        found: Counts = self.counts[AT[name]]
        return found

    def rate(self, name: str) -> Figures:
        """The rates of one of `COUNTERS`, per second, shape (n,)."""
        found: Figures = self.rates[AT[name]]
        return found


def rates_of(stats: NodeStats, base: EarlierCounts | None) -> Figures | None:
    """The rates between two answers, shape (len(COUNTERS), n), nan for new names; None: unknown."""
    if base is None or base.start_time != stats.start_time or base.at_seconds >= stats.at_seconds:
        return None
    now = stats.counts[: len(COUNTERS)]
    seconds = stats.at_seconds - base.at_seconds
    # The usual case, without the sort that intersect1d needs. A counter that shrinks belongs to a
    # topic or channel that was deleted and created again: its rate counts as 0.
    if np.array_equal(base.numbers, stats.numbers):
        return cast(Figures, np.maximum(0, now - base.counts) / seconds)
    grown = np.full(now.shape, np.nan)
    _, here, there = np.intersect1d(stats.numbers, base.numbers, True, return_indices=True)
    grown[:, here] = np.maximum(0, now[:, here] - base.counts[:, there]) / seconds
    return grown


def merge(answers: Iterable[tuple[NodeStats, EarlierCounts | None]], size: int) -> ClusterColumns:
    """Merge answers into columns of numbers below `size`; each comes with the base of its rates."""
    nodes = np.zeros(size, np.int32)
    counts = np.zeros((len(COUNTS), size), np.int64)
    rates = np.zeros((len(COUNTERS), size))
    is_known = np.zeros(size, np.bool_)
    oldest = np.zeros(size)
    says_ready = np.ones(size, np.bool_)
    readers: dict[int, Reader] = {}
    for stats, base in answers:
        at = stats.numbers
        nodes[at] += 1
        counts[:, at] += stats.counts
        oldest[at] = np.maximum(oldest[at], stats.oldest)  # nan stays: a node does not report it
        readers.update(stats.readers)
        if stats.sparq_version is None:
            says_ready[at] = False
        grown = rates_of(stats, base)
        if grown is not None:
            known = ~np.isnan(grown[0])
            is_known[at] |= known
            rates[:, at] += grown if known.all() else np.where(known, grown, 0.0)
    rates[:, ~is_known] = np.nan
    lag = _lag(counts, rates, oldest)
    return ClusterColumns(nodes, counts, rates, lag, ~np.isnan(oldest), says_ready, readers)


def _unfinished(counts: Counts) -> Counts:
    """Messages waiting or in flight."""
    found: Counts = counts[AT["depth"]] + counts[AT["in_flight"]]
    return found


def _lag(counts: Counts, rates: Figures, oldest: Figures) -> Figures:
    """Compute the lags, as `figures.lag_of` does for one channel."""
    unfinished, rate = _unfinished(counts), rates[AT["finished"]]
    estimated = np.full(len(oldest), np.nan)
    np.divide(unfinished, rate, out=estimated, where=rate > 0)
    estimated[unfinished == 0] = 0.0
    return np.where(np.isnan(oldest), estimated, oldest)


def clear_seconds(columns: ClusterColumns) -> Figures:
    """Seconds until no message waits if rates stay the same; inf: never, nan: unknown."""
    unfinished = _unfinished(columns.counts)
    shrinking = columns.rate("finished") - columns.rate("messages")
    with np.errstate(divide="ignore", invalid="ignore"):
        left = np.where(shrinking > 0, unfinished / shrinking, np.inf)
    left[np.isnan(shrinking)] = np.nan
    # What is in flight does not wait: a channel whose consumers keep up is clear.
    left[columns.count("depth") == 0] = 0.0
    return left


def channel_states(columns: ClusterColumns, idle: Figures) -> NDArray[np.int8]:
    """Compute each channel's state (`figures.state_rules`), as its place in `STATES`.

    Args:
        columns: figures of the cluster.
        idle: seconds that messages have been unfinished without one being finished, by number.
    """
    readers = np.zeros(len(columns.nodes), np.int8)
    readers[list(columns.readers)] = 1
    rules = state_rules(
        paused=columns.count("paused") > 0,
        clients=columns.count("clients"),
        readers=readers,
        unfinished=_unfinished(columns.counts),
        idle_seconds=idle,
        lag_seconds=columns.lag,
    )
    places = [STATES.index(state) for state in rules]
    return np.select([*rules.values()], places, STATES.index("ok")).astype(np.int8)


class StallClock:
    """Measures how long messages of each channel have been unfinished without one being finished.

    It stores the time of the last progress by number; times are seconds of the monotonic clock.
    """

    def __init__(self) -> None:
        self._finished: Figures = np.zeros(0)
        self._moved_at: Figures = np.zeros(0)

    def update(self, columns: ClusterColumns, now: float) -> Figures:
        """Take the current figures; returns how long nothing was finished, in seconds, by number.

        Any change of the counter counts as progress, even an nsqd's restart.
        """
        size = len(columns.nodes)
        finished = columns.count("finished").astype(np.float64)
        # nan differs from every number, so a new name counts as having moved just now.
        before = np.full(size, np.nan)
        before[: len(self._finished)] = self._finished[:size]
        moved_at = np.full(size, now)
        moved_at[: len(self._moved_at)] = self._moved_at[:size]
        has_moved = (finished != before) | (_unfinished(columns.counts) == 0)
        moved_at[has_moved] = now
        self._finished, self._moved_at = finished, moved_at
        return now - moved_at
