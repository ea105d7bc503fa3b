"""What one batch brings to one bucket, and what the low mark makes of it.

In which partition a click was does not show: rows that belong together are added up, and texts and
names stand here once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sparq.pipeline.low_mark import LowMark
from sparq.pipeline.open_visits.intervals import merged
from sparq.pipeline.open_visits.pack import BLOB, first_of_each
from sparq.pipeline.open_visits.rows import (
    FIRSTS,
    NAMES,
    TEXTS,
    Names,
    Pages,
    Visits,
    concat,
    from_table,
    joined,
    starts_of,
    take,
    texts_in,
)
from sparq.pipeline.open_visits.tiers import Meta
from sparq.pipeline.packing import Ints, Received, from_blob
from sparq.pipeline.visits import IDS_KEPT, VISIT_GAP_S


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The clicks of one bucket and batch.

    Attributes:
        seconds: a row for each partition, visitor and second in which it clicked, the late too.
        pages: clicks on pages and on robots.txt, the late too.
        texts, names: pages and visitors with their texts; the same one may come twice.
        firsts: of each visitor that declares to be a robot its first clicks in each partition.
    """

    seconds: Visits
    pages: Pages
    texts: pa.Table
    names: pa.Table
    firsts: pa.Table

    @classmethod
    def read(cls, received: Received) -> Arrivals:
        """Of what `packing.receive` returns."""
        blobs = [from_blob(blob, BLOB) for blob in received.blobs]
        return cls(
            concat(Visits, [from_table(Visits, tables[0]) for tables in blobs]),
            concat(Pages, [from_table(Pages, tables[1]) for tables in blobs]),
            joined(TEXTS, [tables[2] for tables in blobs]),
            joined(NAMES, [tables[3] for tables in blobs]),
            joined(FIRSTS, [tables[4] for tables in blobs]),
        )

    def on_time(self, low_s: int) -> tuple[Visits, Pages]:
        """What is not too late for a low mark."""
        newer = low_s - VISIT_GAP_S
        return (
            take(self.seconds, self.seconds.last_s > newer),
            take(self.pages, self.pages.second > newer),
        )


@dataclass(frozen=True, slots=True)
class RobotClicks:
    """All clicks of one declared robot in one batch, the late too; some of their ids."""

    visitor: int
    clicks: int
    first_s: int
    last_s: int
    ids: list[int]


def robot_clicks(arrivals: Arrivals) -> list[RobotClicks]:
    """The clicks of each declared robot."""
    if not len(arrivals.firsts):
        return []
    visitor, second, ids = (arrivals.firsts[name].to_numpy() for name in FIRSTS.names)
    rows = first_of_each(np.lexsort((ids, second, visitor)), visitor, IDS_KEPT)
    robots, clicks = np.unique(visitor), arrivals.seconds
    theirs = take(clicks, np.isin(clicks.visitor, robots))
    theirs = take(theirs, np.argsort(theirs.visitor, kind="stable"))
    starts = starts_of(theirs.visitor)
    columns: tuple[list[Any], ...] = (
        robots.tolist(),
        np.add.reduceat(theirs.clicks, starts).tolist(),
        np.minimum.reduceat(theirs.first_s, starts).tolist(),
        np.maximum.reduceat(theirs.last_s, starts).tolist(),
        [some.tolist() for some in np.split(ids[rows], starts_of(visitor[rows])[1:])],
    )
    return list(map(RobotClicks, *columns))


def touched(on_time: Visits) -> Ints:
    """The visitors who clicked."""
    return np.unique(on_time.visitor)


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch.

    Attributes:
        arrivals: all clicks.
        seconds, pages: those that are on time.
        names: of the visitors who clicked.
        texts: of the pages that were clicked.
        before_s, low_mark: the low mark before and after the batch.
    """

    arrivals: Arrivals
    seconds: Visits
    pages: Pages
    names: Names
    texts: dict[int, str]
    before_s: int
    low_mark: LowMark

    @classmethod
    def of(cls, received: Received, meta: Meta | None) -> Batch:
        """What `packing.receive` returns, after a state with these figures."""
        arrivals = Arrivals.read(received)
        low_mark = LowMark(**meta.low_mark) if meta else LowMark()
        before_s = low_mark.low_s
        low_mark.advance(received.header.marks, received.header.batch_ms)
        seconds, pages = arrivals.on_time(before_s)
        seconds = merged(seconds, np.zeros(len(seconds.visitor), np.int64))
        names, texts = Names([arrivals.names]), texts_in([arrivals.texts])
        return cls(arrivals, seconds, pages, names, texts, before_s, low_mark)
