"""The state of a bucket: the parts in which Spark keeps it, what they hold, and how much.

    hot       list   what ordinary batches read: an element for each batch since the last
                     compaction; the first one has what the compaction left hot
    names     list   the visitors of these batches, by name: read by a compaction only
    base      value  what the last compaction put away: read by a compaction only
    findings  value  all findings: read when one is looked up that is not in `hot`

A list is a Spark ListState, a value a ValueState, each with one binary column.

A compaction puts the visits, pages and names of all visitors into `base`, but those of busy ones
(see BUSY_PAGES), which become the first element of `hot`. Each batch until the next one appends an
element to `hot`, and the names of its visitors to `names`. So an ordinary batch reads and writes
some kilobytes, however many visits are open.

An element of `hot` is one line of JSON (`Meta`), filled up with spaces to a multiple of 64 bytes,
and the tables HOT as `packing.to_blob` writes them; `base` is the tables BASE.
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

# A visitor who asked for one page so often, or for so many pages within BURST_S, is busy, and lies
# in `hot`. The others lie in `base`, which ordinary batches do not read: what they have there is no
# burst and no repetition without as many new clicks again, which are seen in `hot`.
BUSY_PAGES = 8
assert 2 * BUSY_PAGES - 1 <= REPEAT_CLICKS <= BURST_PAGES

# A window that begins with an older page click can get no more clicks: what is so late is ignored.
WINDOW_OVER_S = VISIT_GAP_S + max(BURST_S, REPEAT_S)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one bucket.

    Attributes:
        batches_max: batches between two compactions.
        hot_bytes_max: bytes of the batches since the last compaction; more lead to the next one.
        overdue_s: event time by which a visit may be over before it is judged.
        fold_pages: page clicks of a visit that are kept one by one however old they are.
        pages_max: page clicks of a visit that are kept one by one however new they are.
        state_bytes_max: bytes of all visits; beyond it, the oldest visits are dropped and counted.
        findings_max: findings; beyond it, the older half is dropped and counted.
    """

    batches_max: int = 16
    hot_bytes_max: int = 1 << 20
    overdue_s: int = 60
    fold_pages: int = 64
    pages_max: int = 2_000
    # Visits of half an hour at 5,000 clicks/s take 8 MB in each of 16 buckets.
    state_bytes_max: int = 16 << 20
    findings_max: int = 12_500


DEFAULT_LIMITS = Limits()


class Part(Protocol):
    """One state variable of a bucket."""

    def get(self) -> list[bytes]:
        """All its values, in order of writing; a value state has one at most."""

    def append(self, value: bytes) -> None:
        """Add a value; of lists only."""

    def put(self, value: bytes) -> None:
        """Have this one value from now on."""

    def clear(self) -> None:
        """Have no value from now on."""


@dataclass(frozen=True, slots=True)
class State:
    """The state of one bucket."""

    hot: Part
    names: Part
    base: Part
    findings: Part


class HeldPart:
    """A part in memory: for the end of a run, where Spark's state is read as rows, and for tests.

    Attributes:
        values: what it holds.
        calls: the methods called so far, by name.
    """

    def __init__(self, values: Iterable[bytes] = ()) -> None:
        self.values = list(values)
        self.calls: list[str] = []

    def get(self) -> list[bytes]:
        """All values."""
        self.calls.append("get")
        return list(self.values)

    def append(self, value: bytes) -> None:
        """Add a value."""
        self.calls.append("append")
        self.values.append(value)

    def put(self, value: bytes) -> None:
        """Have this one value."""
        self.calls.append("put")
        self.values = [value]

    def clear(self) -> None:
        """Have no value."""
        self.calls.append("clear")
        self.values = []


def held_state(
    hot: Iterable[bytes] = (),
    names: Iterable[bytes] = (),
    base: Iterable[bytes] = (),
    findings: Iterable[bytes] = (),
) -> State:
    """A state in memory with the values of each part."""
    return State(HeldPart(hot), HeldPart(names), HeldPart(base), HeldPart(findings))


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
    low_mark: dict[str, Any]
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
        return texts_in([one.texts for one in self.elements])

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
