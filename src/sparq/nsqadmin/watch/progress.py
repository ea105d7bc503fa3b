"""For how long each channel's consumers have finished nothing although messages wait."""

from __future__ import annotations

import numpy as np

from sparq.nsqadmin.watch.look import Figures
from sparq.nsqadmin.watch.merge import Columns


class Progress:
    """When each channel got on last, by number; times are seconds of the monotonic clock."""

    def __init__(self) -> None:
        self._finished: Figures = np.zeros(0)
        self._moved_at: Figures = np.zeros(0)

    def update(self, columns: Columns, now: float) -> Figures:
        """Take what the cluster is like now; returns for how long nothing was finished, seconds.

        A counter that has changed in any way counts as progress, an nsqd's restart too.
        """
        size = len(columns.nodes)
        finished = columns.count("finished").astype(np.float64)
        before = np.full(size, np.nan)
        before[: len(self._finished)] = self._finished[:size]
        moved_at = np.full(size, now)
        moved_at[: len(self._moved_at)] = self._moved_at[:size]
        waiting = columns.count("depth") + columns.count("in_flight")
        has_moved = (finished != before) | (waiting == 0)
        moved_at[has_moved] = now
        self._finished, self._moved_at = finished, moved_at
        return now - moved_at
