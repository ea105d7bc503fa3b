"""The state of a bucket: the parts in which Spark stores it, their content, and their limits.

    hot       list   read by ordinary batches: an element for each batch since the last
                     compaction; the first one has what the compaction left in `hot`
    names     list   names of the visitors of these batches: read only by a compaction
    base      value  everything else from the last compaction: read only by a compaction
    findings  value  all findings: read when one is looked up that is not in `hot`

A list is a Spark ListState, a value a ValueState, each with one binary column.

A compaction puts visits, pages and names of all visitors into `base`, except those of busy visitors
(see BUSY_PAGES), which become the first element of `hot`. Each batch until the next compaction
appends an element to `hot`, and the names of its visitors to `names`. So an ordinary batch reads
and writes some kilobytes, however many visits are open.

An element of `hot` is one line of JSON (`VisitsMeta`), padded with spaces to a multiple of 64
bytes, and the tables HOT in the form of `packing.to_blob`; `base` is the tables BASE.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from sparq.pipeline import packing
from sparq.pipeline.open_visits.findings import FINDINGS
from sparq.pipeline.open_visits.folding import FOLDS, WINDOWS
from sparq.pipeline.open_visits.rows import (
    NAMES,
    PAGES,
    TEXTS,
    VISITS,
    Pages,
    Visits,
    concat,
    empty,
    from_table,
    joined,
    texts_in,
    to_table,
)
from sparq.pipeline.packing import Ints
from sparq.pipeline.visits import BURST_PAGES, BURST_S, REPEAT_CLICKS, REPEAT_S, VISIT_GAP_S

# A visitor with this many clicks on one page, or on any pages within BURST_S, is busy and stored in
# `hot`. The others are in `base`, which ordinary batches do not read: their clicks in `base` make
# no burst and no repetition without at least as many new clicks, which are in `hot`.
BUSY_PAGES = 8
assert 2 * BUSY_PAGES - 1 <= REPEAT_CLICKS <= BURST_PAGES

# A window that begins with an older page click can get no more clicks: later ones are ignored.
WINDOW_OVER_S = VISIT_GAP_S + max(BURST_S, REPEAT_S)


@dataclass(frozen=True, slots=True)
class VisitsLimits:
    """The limits of one bucket.

    Attributes:
        batches_max: batches between two compactions.
        hot_bytes_max: bytes of the batches since the last compaction, above which the next one
            runs.
        overdue_s: event time that may pass after the end of a visit before it is judged.
        fold_pages: page clicks of a visit that are stored one by one, however old they are.
        pages_max: page clicks of a visit that are stored one by one, however new they are.
        state_bytes_max: bytes of all visits; above it, the oldest visits are dropped and counted.
        findings_max: number of findings; above it, the older half is dropped and counted.
    """

    batches_max: int = 16
    hot_bytes_max: int = 1 << 20
    overdue_s: int = 60
    fold_pages: int = 64
    pages_max: int = 2_000
    # Visits of half an hour at 5,000 clicks/s take 8 MB in each of 16 buckets.
    state_bytes_max: int = 16 << 20
    findings_max: int = 12_500


DEFAULT_LIMITS = VisitsLimits()


class StatePart(Protocol):
    """One state variable of a bucket."""

    def get(self) -> list[bytes]:
        """All its values, in order of writing; at most one for a value state."""

    def append(self, value: bytes) -> None:
        """Add a value; only for lists."""

    def put(self, value: bytes) -> None:
        """Replace all values by this one."""

    def clear(self) -> None:
        """Remove all values."""


@dataclass(frozen=True, slots=True)
class VisitsState:
    """The state of one bucket."""

    hot: StatePart
    names: StatePart
    base: StatePart
    findings: StatePart


class HeldPart:
    """A part in memory: for the end of a run, where Spark's state is read as rows, and for tests.

    Attributes:
        values: its values.
        calls: the names of the methods called so far.
    """

    def __init__(self, values: Iterable[bytes] = ()) -> None:
        self.values = list(values)
        self.calls: list[str] = []

    def get(self) -> list[bytes]:
        """Return all values."""
        self.calls.append("get")
        return list(self.values)

    def append(self, value: bytes) -> None:
        """Add a value."""
        self.calls.append("append")
        self.values.append(value)

    def put(self, value: bytes) -> None:
        """Replace all values by this one."""
        self.calls.append("put")
        self.values = [value]

    def clear(self) -> None:
        """Remove all values."""
        self.calls.append("clear")
        self.values = []


def held_state(
    hot: Iterable[bytes] = (),
    names: Iterable[bytes] = (),
    base: Iterable[bytes] = (),
    findings: Iterable[bytes] = (),
) -> VisitsState:
    """A state in memory with the values of each part."""
    return VisitsState(HeldPart(hot), HeldPart(names), HeldPart(base), HeldPart(findings))


HOT = (VISITS, PAGES, TEXTS, FOLDS, WINDOWS, FINDINGS)
BASE = (VISITS, PAGES, NAMES)
LINE_BYTES = 64  # aligns the tables that follow


@dataclass(frozen=True, slots=True)
class VisitsMeta:
    """The figures of an element of `hot`; those of the last element are the bucket's.

    Attributes:
        batches: batches of the query so far, including this one.
        before_s: low mark before the batch of this element; 0 for a compaction's element.
        low_mark: fields of the low mark after the batch.
        due_s: low mark from which on a visit may be over; None: there is no visit.
        hot_bytes: bytes of the elements since the last compaction, including this one.
        has_base: whether there has been a compaction, so that `base` may have data.
    """

    batches: int
    before_s: int
    low_mark: dict[str, Any]
    due_s: int | None
    hot_bytes: int
    has_base: bool


@dataclass(frozen=True, slots=True)
class Element:
    """One element of `hot`."""

    meta: VisitsMeta
    visits: pa.Table
    pages: pa.Table
    texts: pa.Table
    folds: pa.Table
    windows: pa.Table
    findings: pa.Table

    @classmethod
    def read(cls, data: bytes) -> Element:
        """Decode the result of the method `bytes`."""
        end = data.index(b"\n") + 1
        return cls(VisitsMeta(**json.loads(data[:end])), *packing.from_blob(data[end:], HOT))

    def bytes(self) -> bytes:
        """Encode the element; equal elements give equal bytes."""
        line = json.dumps(asdict(self.meta), sort_keys=True).encode()
        fill = b" " * (-(len(line) + 1) % LINE_BYTES)
        tables = (
            self.visits, self.pages, self.texts, self.folds, self.windows, self.findings,
        )  # fmt: skip
        return line + fill + b"\n" + packing.to_blob(tables)


class HotPart:
    """The part `hot` of a bucket: batches since the last compaction, and the busy visitors."""

    def __init__(self, state: VisitsState) -> None:
        elements = [Element.read(data) for data in state.hot.get()]
        self.elements = sorted(elements, key=lambda element: element.meta.batches)
        self.pages = concat(Pages, [from_table(Pages, one.pages) for one in self.elements])
        self.windows = joined(WINDOWS, [one.windows for one in self.elements])

    @property
    def meta(self) -> VisitsMeta | None:
        """The newest figures; None before the first batch."""
        return self.elements[-1].meta if self.elements else None

    def busy(self) -> Ints | None:
        """The visitors about whom `base` has nothing; None if `base` is empty."""
        if not self.elements or not self.elements[-1].meta.has_base:
            return None
        visitors: Ints = np.unique(self.elements[0].visits["visitor"].to_numpy())
        return visitors

    def visits(self) -> tuple[Visits, Ints]:
        """Parts of visits, and the low mark before the batch of each."""
        parts = [from_table(Visits, one.visits) for one in self.elements]
        lows = [np.full(len(one.visits), one.meta.before_s) for one in self.elements]
        return concat(Visits, parts), np.concatenate([*lows, np.empty(0, np.int64)])

    def lows(self) -> list[int]:
        """The low mark after each batch since the last compaction."""
        marks = [one.meta.low_mark["low_s"] for one in self.elements]
        return marks[1:] if self._begins_with_compaction() else marks

    def findings(self) -> pa.Table:
        """Findings looked up since the compaction before the last one, the newest last."""
        return joined(FINDINGS, [one.findings for one in self.elements])

    def findings_in_use(self) -> pa.Table:
        """Findings looked up since the last compaction."""
        since = self.elements[1:] if self._begins_with_compaction() else self.elements
        return joined(FINDINGS, [one.findings for one in since])

    def texts(self) -> dict[int, str]:
        """The texts of pages that a rule may name."""
        return texts_in([one.texts for one in self.elements])

    def folds(self) -> pa.Table:
        """The folds, which only a compaction makes."""
        return joined(FOLDS, [one.folds for one in self.elements])

    def _begins_with_compaction(self) -> bool:
        return bool(self.elements) and self.elements[0].meta.has_base


@dataclass(frozen=True, slots=True)
class BasePart:
    """The content of the part `base`."""

    visits: Visits
    pages: Pages
    names: pa.Table

    @classmethod
    def read(cls, state: VisitsState) -> BasePart:
        """Read the part `base` of a bucket."""
        held = state.base.get()
        tables = packing.from_blob(held[0], BASE) if held else [empty(one) for one in BASE]
        return cls(from_table(Visits, tables[0]), from_table(Pages, tables[1]), tables[2])

    def bytes(self) -> bytes:
        """Encode the part; equal content gives equal bytes."""
        return packing.to_blob([to_table(self.visits), to_table(self.pages), self.names])


def read_names(state: VisitsState) -> list[pa.Table]:
    """Read the part `names`: a table for each batch since the last compaction."""
    return [packing.from_blob(data, (NAMES,))[0] for data in state.names.get()]


def read_findings(state: VisitsState) -> pa.Table:
    """Read the part `findings`."""
    held = state.findings.get()
    return packing.from_blob(held[0], (FINDINGS,))[0] if held else empty(FINDINGS)
