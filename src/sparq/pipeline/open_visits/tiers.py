"""The two tiers in which a bucket keeps its visits: `hot`, read in each batch, and `base`.

A compaction puts the visits, pages and names of all visitors into `base`, but those of busy ones
(see `limits.BUSY_PAGES`), which become the first element of `hot`. Each batch until the next one
appends an element to `hot`, and the names of its visitors to the part `names`. So an ordinary
batch reads and writes some kilobytes, however many visits are open.

An element of `hot` is one line of JSON (`Meta`), filled up with spaces to a multiple of 64 bytes,
and the tables HOT as `packing.to_blob` writes them; `base` is the tables BASE.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa

from sparq.pipeline import packing
from sparq.pipeline.low_mark import LowMarkBooks
from sparq.pipeline.open_visits.findings import FINDINGS
from sparq.pipeline.open_visits.folding import FOLDS, WINDOWS
from sparq.pipeline.open_visits.parts import State
from sparq.pipeline.open_visits.rows import (
    NAMES,
    PAGES,
    TEXTS,
    VISITS,
    Ints,
    Pages,
    Visits,
    concat,
    empty,
    from_table,
    joined,
    to_table,
)

HOT = (VISITS, PAGES, TEXTS, FOLDS, WINDOWS, FINDINGS)
BASE = (VISITS, PAGES, NAMES)
LINE_BYTES = 64  # so that the tables behind it are aligned


@dataclass(frozen=True, slots=True)
class Meta:
    """The figures of an element of `hot`; those of the last element are the bucket's.

    Attributes:
        batches: batches of the query so far, this one counted.
        before_s: low mark before the batch of this element; 0 in that of a compaction.
        low_mark: books of the low mark after it.
        due_s: no visit is over before the low mark has come to this time; None: there is none.
        hot_bytes: size of the elements since the last compaction, this one counted.
        has_base: whether anything lies in `base`.
    """

    batches: int
    before_s: int
    low_mark: LowMarkBooks
    due_s: int | None
    hot_bytes: int
    has_base: bool


@dataclass(frozen=True, slots=True)
class Element:
    """One element of `hot`."""

    meta: Meta
    visits: pa.Table
    pages: pa.Table
    texts: pa.Table
    folds: pa.Table
    windows: pa.Table
    findings: pa.Table

    @classmethod
    def read(cls, data: bytes) -> Element:
        """Of the bytes that `bytes` made."""
        end = data.index(b"\n") + 1
        return cls(Meta(**json.loads(data[:end])), *packing.from_blob(data[end:], HOT))

    def bytes(self) -> bytes:
        """The same for the same element."""
        line = json.dumps(asdict(self.meta), sort_keys=True).encode()
        fill = b" " * (-(len(line) + 1) % LINE_BYTES)
        tables = (
            self.visits, self.pages, self.texts, self.folds, self.windows, self.findings,
        )  # fmt: skip
        return line + fill + b"\n" + packing.to_blob(tables)


class Hot:
    """The part `hot` of a bucket: what has come since the last compaction, and who is busy."""

    def __init__(self, state: State) -> None:
        elements = [Element.read(data) for data in state.hot.get()]
        self.elements = sorted(elements, key=lambda element: element.meta.batches)
        self.pages = concat(Pages, [from_table(Pages, one.pages) for one in self.elements])
        self.windows = joined(WINDOWS, [one.windows for one in self.elements])

    @property
    def meta(self) -> Meta | None:
        """The newest figures; None before the first batch."""
        return self.elements[-1].meta if self.elements else None

    def busy(self) -> Ints | None:
        """The visitors of whom nothing lies in `base`; None: nothing at all lies there."""
        if not self.elements or not self.elements[-1].meta.has_base:
            return None
        visitors: Ints = np.unique(self.elements[0].visits["visitor"].to_numpy())
        return visitors

    def visits(self) -> tuple[Visits, Ints]:
        """Parts of visits, and for each the low mark before its batch."""
        parts = [from_table(Visits, one.visits) for one in self.elements]
        lows = [np.full(len(one.visits), one.meta.before_s) for one in self.elements]
        return concat(Visits, parts), np.concatenate([*lows, np.empty(0, np.int64)])

    def lows(self) -> list[int]:
        """The low mark after each batch since the last compaction."""
        marks = [one.meta.low_mark["low_s"] for one in self.elements]
        return marks[1:] if self._begins_with_compaction() else marks

    def findings(self) -> pa.Table:
        """What was looked up since the compaction before the last one, the newest last."""
        return joined(FINDINGS, [one.findings for one in self.elements])

    def findings_in_use(self) -> pa.Table:
        """What was looked up since the last compaction."""
        since = self.elements[1:] if self._begins_with_compaction() else self.elements
        return joined(FINDINGS, [one.findings for one in since])

    def texts(self) -> dict[int, str]:
        """The texts of pages that a rule may name."""
        table = joined(TEXTS, [one.texts for one in self.elements])
        return dict(zip(table["page"].to_pylist(), table["text"].to_pylist(), strict=True))

    def folds(self) -> pa.Table:
        """The folds, which a compaction alone makes."""
        return joined(FOLDS, [one.folds for one in self.elements])

    def _begins_with_compaction(self) -> bool:
        return bool(self.elements) and self.elements[0].meta.has_base


@dataclass(frozen=True, slots=True)
class Base:
    """The part `base`, or what of it a batch has."""

    visits: Visits
    pages: Pages
    names: pa.Table

    @classmethod
    def read(cls, state: State) -> Base:
        """The part `base` of a bucket."""
        held = state.base.get()
        tables = packing.from_blob(held[0], BASE) if held else [empty(one) for one in BASE]
        return cls(from_table(Visits, tables[0]), from_table(Pages, tables[1]), tables[2])

    def bytes(self) -> bytes:
        """The same for the same base."""
        return packing.to_blob([to_table(self.visits), to_table(self.pages), self.names])


def read_names(state: State) -> list[pa.Table]:
    """The part `names`: a table for each batch since the last compaction."""
    return [packing.from_blob(data, (NAMES,))[0] for data in state.names.get()]


def read_findings(state: State) -> pa.Table:
    """The part `findings`."""
    held = state.findings.get()
    return packing.from_blob(held[0], (FINDINGS,))[0] if held else empty(FINDINGS)
