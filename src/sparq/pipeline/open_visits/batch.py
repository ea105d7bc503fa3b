"""What one batch brings to one bucket, and what the low mark makes of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparq.pipeline.low_mark import LowMark
from sparq.pipeline.open_visits.arrivals import Arrivals
from sparq.pipeline.open_visits.intervals import merged
from sparq.pipeline.open_visits.names import Names
from sparq.pipeline.open_visits.rows import Pages, Visits
from sparq.pipeline.open_visits.tiers import Meta
from sparq.pipeline.packing import Received


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
        low_mark = LowMark(meta.low_mark if meta else None)
        before_s = low_mark.low_s
        low_mark.advance(received.header.marks, received.header.batch_ms)
        seconds, pages = arrivals.on_time(before_s)
        seconds = merged(seconds, np.zeros(len(seconds.visitor), np.int64))
        texts = arrivals.texts
        by_hash = dict(zip(texts["page"].to_pylist(), texts["text"].to_pylist(), strict=True))
        names = Names([arrivals.names])
        return cls(arrivals, seconds, pages, names, by_hash, before_s, low_mark)
