"""Message counts over time: a topic's log as the columns of a chart.

For each stretch, the log's index has the earliest and the latest publish time. A stretch within a
single column is counted there. A stretch that spans several columns is read, as long as the limits
allow; otherwise its messages are spread evenly over these columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sparq.log.disk import DiskError
from sparq.log.inspection import Curve, LogInspection, LogPart, blocks_of
from sparq.log.task import Task, TaskKind

Indexes = NDArray[np.int64]

READ_BYTES_MAX: Final = 8 << 20
"""Maximum bytes of the log that are read."""

PARTS_MAX: Final = 256
"""Maximum number of stretches whose messages are looked at, including those in memory."""


@dataclass(eq=False)
class CurveCount(Task):
    """Work that counts the messages of a curve.

    Attributes:
        edges: where each column begins, and where the last one ends (ns since 1970).
        parts: the stretches whose messages are looked at, by their rows in the curve.
        counts: the number of messages of each column, rounded.
        indexes: an index of each column for a seek: no message before it belongs there.
    """

    inspection: LogInspection
    curve: Curve
    edges: Indexes
    parts: dict[int, LogPart]
    counts: Indexes
    indexes: Indexes
    kind = TaskKind.INSPECT

    def execute(self) -> None:
        """Count the messages."""
        curve, edges, columns = self.curve, self.edges, len(self.edges) - 1

        def column_of(times: Indexes) -> Indexes:
            return np.clip(np.searchsorted(edges, times, "right") - 1, 0, columns - 1)

        # Stretches that are not looked at are points in time, each weighted with a number of
        # messages: one for each column that a stretch spans. `order` is its row, `step` counts
        # from 0.
        rows = np.setdiff1d(np.arange(len(curve.firsts)), np.array([*self.parts], np.int64))
        low = column_of(curve.begins[rows])
        widths = column_of(curve.ends[rows]) - low + 1
        order = np.repeat(np.arange(len(rows)), widths)
        step = np.arange(int(widths.sum())) - np.repeat(np.cumsum(widths) - widths, widths)
        times = [edges[:-1][low[order] + step]]
        weights = [curve.counts[rows][order] / widths[order]]
        firsts = [curve.firsts[rows][order]]
        for part in self.parts.values():
            try:
                blocks = blocks_of(self.inspection.disk, part)
            except DiskError:  # its file was deleted meanwhile, and its messages with it
                continue
            for block in blocks:
                indexes = np.arange(max(block.first, part.first), min(block.end, part.end))
                times.append(block.timestamps(indexes))
                weights.append(np.ones(len(indexes)))
                firsts.append(indexes)
        at = column_of(np.concatenate(times))
        exact = np.bincount(at, np.concatenate(weights), columns)
        # Rounded as running totals, so that the sum does not change.
        self.counts = np.diff(np.rint(np.append(0, np.cumsum(exact)))).astype(np.int64)
        lowest = np.full(columns, np.iinfo(np.int64).max)
        np.minimum.at(lowest, at, np.concatenate(firsts))
        # In an empty column, a seek would find the next message after it.
        self.indexes = np.minimum.accumulate(lowest[::-1])[::-1]


def columns_of(inspection: LogInspection, count: int) -> CurveCount | None:
    """Return work for `count` columns of equal width; None: the log has no message."""
    curve = inspection.curve()
    if not len(curve.firsts):
        return None
    begin, end = int(curve.begins.min()), int(curve.ends.max())
    width = max(1, -(-(end - begin + 1) // count))
    edges = begin + np.arange(count + 1, dtype=np.int64) * width
    # Only stretches whose messages fall into several columns need to be read.
    spans = (curve.ends - begin) // width != (curve.begins - begin) // width
    parts: dict[int, LogPart] = {}
    size = 0
    for row in np.flatnonzero(spans).tolist():
        part = inspection.part(int(curve.firsts[row]))
        # With many files a row is a whole file, and `part` is only its first extent.
        if part is not None and part.end - part.first == curve.counts[row]:
            size += part.size
            if size > READ_BYTES_MAX or len(parts) == PARTS_MAX:
                break
            parts[row] = part
    nothing = np.empty(0, np.int64)
    return CurveCount(inspection, curve, edges, parts, nothing, nothing)
