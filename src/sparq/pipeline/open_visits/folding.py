"""Old pages of long visits, as a few figures instead of one row each.

A page that is older than WINDOW_OVER_S before the low mark can be in no window with a click that
is still to come. So all that the rules will ever want of it is known:

    Fold    the pages of one visit, for the rules about a whole visit
    Window  the strongest burst or repetition that began with an old page; clicks on robots.txt

1. Folded pages are a prefix of their visit: later clicks that are on time are newer.
2. What is said with folds is what would be said without them. Only where a visit has more than
   `Limits.pages_max` pages are newer ones folded, whose windows may have been about to grow;
   these are counted as evicted clicks.
3. Declared robots are judged by their bursts alone: their pages leave windows, but no fold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from sparq.pipeline.open_visits.rows import Pages, empty, take
from sparq.pipeline.packing import Ints
from sparq.pipeline.visits import (
    BARE,
    BARE_PAGES,
    BURST,
    BURST_PAGES,
    BURST_S,
    CLOCK_GAP_S,
    CLOCK_GAPS,
    CLOCK_PAGES,
    CLOCK_SPREAD,
    IDS_KEPT,
    PAGE,
    REPEAT_CLICKS,
    REPEAT_S,
    REPEATS,
    ROBOTS_TXT,
    UNDECLARED,
    Evidence,
)

FOLDS = pa.schema(
    [
        ("visitor", pa.int64()),
        ("count", pa.int64()),
        ("first_s", pa.int64()),
        ("last_s", pa.int64()),
        ("squares", pa.int64()),
        ("ids", pa.list_(pa.uint64())),
        ("pages", pa.list_(pa.int64())),
    ]
)
WINDOWS = pa.schema(
    [
        ("visitor", pa.int64()),
        ("reason", pa.string()),
        ("amount", pa.int64()),
        ("first_s", pa.int64()),
        ("last_s", pa.int64()),
        ("page", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Fold:
    """The first pages of one visit.

    Attributes:
        visitor: whose visit.
        count: how many pages.
        first_s, last_s: when the first and the last was clicked.
        squares: sum of the squared gaps between them, in s^2.
        ids: of the first messages, IDS_KEPT at most.
        pages: hashes of different ones, CLOCK_PAGES at most.
    """

    visitor: int
    count: int
    first_s: int
    last_s: int
    squares: int
    ids: list[int]
    pages: list[int]

    @classmethod
    def of(cls, pages: Pages) -> Fold:
        """The fold of pages of one visit, one or more, in order of time and id."""
        at_s = int(pages.second[0])
        first = cls(int(pages.visitor[0]), 0, at_s, at_s, 0, [], [])
        return first.plus(pages)

    def plus(self, pages: Pages) -> Fold:
        """With the pages that follow, in order of time and id."""
        if not len(pages.second):
            return self
        gaps = np.diff(pages.second, prepend=self.last_s)
        different = dict.fromkeys([*self.pages, *np.unique(pages.page)[:CLOCK_PAGES].tolist()])
        return replace(
            self,
            count=self.count + len(gaps),
            last_s=max(self.last_s, int(pages.second[-1])),
            squares=self.squares + int((gaps * gaps).sum()),
            ids=[*self.ids, *pages.id[:IDS_KEPT].tolist()][:IDS_KEPT],
            pages=list(different)[:CLOCK_PAGES],
        )

    def evidence(self, resources: int) -> list[Evidence]:
        """What the rules about a whole visit say of one with these pages and resources."""
        return [*self._bare(resources), *self._clockwork()]

    def _bare(self, resources: int) -> Iterator[Evidence]:
        if self.count >= BARE_PAGES and not resources:
            yield self._as(BARE, pages=self.count, resources=0)

    def _clockwork(self) -> Iterator[Evidence]:
        if self.count <= CLOCK_GAPS:
            return
        gaps = self.count - 1
        mean = (self.last_s - self.first_s) / gaps
        variance = (gaps * self.squares - (self.last_s - self.first_s) ** 2) / gaps**2
        spread = max(variance - 1 / 6, 0.0) ** 0.5  # as in the rule `clockwork`
        regular = mean >= CLOCK_GAP_S and spread <= CLOCK_SPREAD * mean
        if regular and len(self.pages) >= CLOCK_PAGES:
            sign = "pages at the pace of a clock"
            yield self._as(UNDECLARED, sign=sign, gap_s=round(mean, 1))

    def _as(self, reason: str, **details: Any) -> Evidence:
        ids = tuple(f"{one:016x}" for one in self.ids)
        return Evidence(reason, self.count, self.first_s, self.last_s, ids, details)


@dataclass(frozen=True, slots=True)
class Window:
    """What old pages of one visit of a visitor say for a rule that holds at once.

    Attributes:
        visitor: whose pages.
        reason: BURST, REPEATS or UNDECLARED (clicks on robots.txt).
        amount, first_s, last_s: as in `Evidence`.
        page: of REPEATS its text, else empty.
    """

    visitor: int
    reason: str
    amount: int
    first_s: int
    last_s: int
    page: str = ""

    def order(self) -> tuple[int, str]:
        """Sorts the evidence that the rule prefers to the front."""
        return (-self.amount, self.page)

    def evidence(self) -> Evidence:
        """As the rule says it; the ids are in the finding that it raised."""
        details: dict[str, dict[str, Any]] = {
            BURST: {"within_s": BURST_S},
            REPEATS: {"page": self.page, "within_s": REPEAT_S},
            UNDECLARED: {"sign": "asked for robots.txt"},
        }
        times = (self.first_s, self.last_s)
        return Evidence(self.reason, self.amount, *times, (), details[self.reason])


def windows_of(pages: Pages, old: int, texts: dict[int, str], *, declared: bool) -> list[Window]:
    """The windows that begin with one of the first `old` pages of a visit.

    Args:
        pages: of one visit, in order of time and id, those that follow the old ones too.
        old: how many are old.
        texts: of pages, by hash.
        declared: whether the visitor declares to be a robot.
    """
    visitor, asked = int(pages.visitor[0]), take(pages, pages.kind == PAGE)
    old_s = int(pages.second[old - 1])
    found = _strongest(
        asked.second, old_s, visitor=visitor, reason=BURST, span_s=BURST_S, least=BURST_PAGES
    )
    if declared:
        return found
    hashes, codes, counts = np.unique(asked.page, return_inverse=True, return_counts=True)
    repeats: list[Window] = []
    for code in np.flatnonzero(counts >= REPEAT_CLICKS).tolist():
        repeats += _strongest(
            asked.second[codes == code],
            old_s,
            visitor=visitor,
            reason=REPEATS,
            span_s=REPEAT_S,
            least=REPEAT_CLICKS,
            page=texts.get(int(hashes[code]), "-"),
        )
    robots_s = pages.second[:old][pages.kind[:old] == ROBOTS_TXT]
    if len(robots_s):
        times = (int(robots_s[0]), int(robots_s[-1]))
        found.append(Window(visitor, UNDECLARED, len(robots_s), *times))
    return [*found, *sorted(repeats, key=Window.order)[:1]]


def _strongest(
    seconds: Ints, old_s: int, *, visitor: int, reason: str, span_s: int, least: int, page: str = ""
) -> list[Window]:
    """The window of a rule that has most clicks, among those that begin until `old_s`."""
    ends = np.searchsorted(seconds, seconds + span_s, side="right")
    counts = (ends - np.arange(len(seconds)))[: np.searchsorted(seconds, old_s, side="right")]
    if not len(counts) or counts.max() < least:
        return []
    at = int(np.argmax(counts))
    amount = int(counts[at])
    times = (int(seconds[at]), int(seconds[at + amount - 1]))
    return [Window(visitor, reason, amount, *times, page)]


def merged_windows(windows: Sequence[Window]) -> list[Window]:
    """Windows of one visit, in order of time, as one for each reason."""
    found: dict[str, Window] = {}
    for window in windows:
        before = found.get(window.reason)
        if before is None:
            found[window.reason] = window
        elif window.reason == UNDECLARED:
            amount, first_s = before.amount + window.amount, min(before.first_s, window.first_s)
            last_s = max(before.last_s, window.last_s)
            found[UNDECLARED] = replace(window, amount=amount, first_s=first_s, last_s=last_s)
        elif window.order() < before.order():
            found[window.reason] = window
    return list(found.values())


def folds_table(folds: Sequence[Fold]) -> pa.Table:
    """As FOLDS."""
    return pa.Table.from_pylist([asdict(fold) for fold in folds], FOLDS) if folds else empty(FOLDS)


def windows_table(windows: Sequence[Window]) -> pa.Table:
    """As WINDOWS."""
    rows = [asdict(window) for window in windows]
    return pa.Table.from_pylist(rows, WINDOWS) if rows else empty(WINDOWS)


def folds_of(table: pa.Table) -> list[Fold]:
    """The rows of FOLDS."""
    return [Fold(**row) for row in table.to_pylist()]


def windows_from(table: pa.Table) -> list[Window]:
    """The rows of WINDOWS."""
    return [Window(**row) for row in table.to_pylist()]
