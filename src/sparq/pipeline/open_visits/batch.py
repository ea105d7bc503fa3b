"""The input of one bucket in one batch, and the clicks that are on time.

The result does not depend on the partition in which a click was: rows that belong together are
summed, and each text and name occurs once.
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
    Pages,
    VisitorNames,
    Visits,
    concat,
    from_table,
    joined,
    starts_of,
    take,
    texts_in,
)
from sparq.pipeline.open_visits.tiers import VisitsMeta
from sparq.pipeline.packing import BucketInput, Ints, from_blob
from sparq.pipeline.visits import IDS_KEPT, VISIT_GAP_S


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The clicks of one bucket and batch.

    Attributes:
        seconds: a row for each partition, visitor and second with a click, including late ones.
        pages: clicks on pages and on robots.txt, including late ones.
        texts, names: texts of the pages, names of the visitors; may contain duplicates.
        firsts: the first clicks of each declared robot in each partition.
    """

    seconds: Visits
    pages: Pages
    texts: pa.Table
    names: pa.Table
    firsts: pa.Table

    @classmethod
    def read(cls, received: BucketInput) -> Arrivals:
        """Decode the result of `packing.receive`."""
        blobs = [from_blob(blob, BLOB) for blob in received.blobs]
        return cls(
            concat(Visits, [from_table(Visits, tables[0]) for tables in blobs]),
            concat(Pages, [from_table(Pages, tables[1]) for tables in blobs]),
            joined(TEXTS, [tables[2] for tables in blobs]),
            joined(NAMES, [tables[3] for tables in blobs]),
            joined(FIRSTS, [tables[4] for tables in blobs]),
        )

    def on_time(self, low_s: int) -> tuple[Visits, Pages]:
        """The clicks that are not too late, given a low mark."""
        newer = low_s - VISIT_GAP_S
        return (
            take(self.seconds, self.seconds.last_s > newer),
            take(self.pages, self.pages.second > newer),
        )


@dataclass(frozen=True, slots=True)
class RobotClicks:
    """All clicks of one declared robot in one batch, including late ones, and some of their ids."""

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
    """The visitors with a click on time."""
    return np.unique(on_time.visitor)


@dataclass(frozen=True, slots=True)
class VisitsBatch:
    """One batch.

    Attributes:
        arrivals: all clicks.
        seconds, pages: the clicks that are on time.
        names: the visitors who clicked.
        texts: the pages that were clicked.
        before_s, low_mark: the low mark before and after the batch.
    """

    arrivals: Arrivals
    seconds: Visits
    pages: Pages
    names: VisitorNames
    texts: dict[int, str]
    before_s: int
    low_mark: LowMark

    @classmethod
    def of(cls, received: BucketInput, meta: VisitsMeta | None) -> VisitsBatch:
        """Decode the result of `packing.receive`; `meta` is that of the state before the batch."""
        arrivals = Arrivals.read(received)
        low_mark = LowMark(**meta.low_mark) if meta else LowMark()
        before_s = low_mark.low_s
        low_mark.advance(received.header.marks, received.header.batch_ms)
        seconds, pages = arrivals.on_time(before_s)
        seconds = merged(seconds, np.zeros(len(seconds.visitor), np.int64))
        names, texts = VisitorNames([arrivals.names]), texts_in([arrivals.texts])
        return cls(arrivals, seconds, pages, names, texts, before_s, low_mark)
