"""Replaces old pages of long visits by a few figures instead of one row each.

A page older than WINDOW_OVER_S before the low mark cannot share a window with a click that is still
to come. So everything that the rules will need from it is known:

    Fold    the pages of one visit, for the rules about a whole visit
    Window  the strongest burst or repetition that began with an old page; clicks on robots.txt

1. Folded pages are the first ones of their visit: later clicks that are on time are newer.
2. Findings with folds are the same as without them, with one exception: if a visit has more than
   `VisitsLimits.pages_max` pages, newer ones are folded whose windows might still have grown; these
   are counted as evicted clicks.
3. Declared robots are judged only by their bursts: their pages give windows, but no fold.
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
        visitor: the visitor.
        count: number of pages.
        first_s, last_s: times of the first and the last click.
        squares: sum of the squared gaps between the clicks, in s^2.
        ids: ids of the first messages, at most IDS_KEPT.
        pages: hashes of distinct pages, at most CLOCK_PAGES.
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
        """The fold of one or more pages of one visit, ordered by time and id."""
        at_s = int(pages.second[0])
        first = cls(int(pages.visitor[0]), 0, at_s, at_s, 0, [], [])
        return first.plus(pages)

    def plus(self, pages: Pages) -> Fold:
        """This fold extended by the pages that follow, ordered by time and id."""
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
        """The evidence of the rules about a whole visit, given the number of its resources."""
        return [*self._bare(resources), *self._clockwork()]

    def _bare(self, resources: int) -> Iterator[Evidence]:
        if self.count >= BARE_PAGES and not resources:
            yield self._as(BARE, pages=self.count, resources=0)

    def _clockwork(self) -> Iterator[Evidence]:
        if self.count <= CLOCK_GAPS:
            return
        gaps = self.count - 1
        mean = (self.last_s - self.first_s) / gaps
        # The gaps themselves are gone: their variance from their sums, in integers up to the
        # division, so that nothing is lost by cancellation.
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
class FoldedPages:
    """The result of a rule that applies at once, for the old pages of one visit.

    Attributes:
        visitor: the visitor.
        reason: BURST, REPEATS or UNDECLARED (clicks on robots.txt).
        amount, first_s, last_s: as in `Evidence`.
        page: for REPEATS the text of the page, else empty.
    """

    visitor: int
    reason: str
    amount: int
    first_s: int
    last_s: int
    page: str = ""

    def order(self) -> tuple[int, str]:
        """A sort key: the evidence that the rule prefers comes first."""
        return (-self.amount, self.page)

    def evidence(self) -> Evidence:
        """The evidence of the rule; the message ids are in the finding that it led to."""
        details: dict[str, dict[str, Any]] = {
            BURST: {"within_s": BURST_S},
            REPEATS: {"page": self.page, "within_s": REPEAT_S},
            UNDECLARED: {"sign": "asked for robots.txt"},
        }
        times = (self.first_s, self.last_s)
        return Evidence(self.reason, self.amount, *times, (), details[self.reason])


def windows_of(
    pages: Pages, old: int, texts: dict[int, str], *, declared: bool
) -> list[FoldedPages]:
    """The windows that begin with one of the first `old` pages of a visit.

    Args:
        pages: all pages of one visit, ordered by time and id, including those after the old ones.
        old: number of old pages.
        texts: texts of pages, by hash.
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
    repeats: list[FoldedPages] = []
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
        found.append(FoldedPages(visitor, UNDECLARED, len(robots_s), *times))
    return [*found, *sorted(repeats, key=FoldedPages.order)[:1]]


def _strongest(
    seconds: Ints, old_s: int, *, visitor: int, reason: str, span_s: int, least: int, page: str = ""
) -> list[FoldedPages]:
    """A rule's window with the most clicks, among those that begin by `old_s`."""
    ends = np.searchsorted(seconds, seconds + span_s, side="right")
    counts = (ends - np.arange(len(seconds)))[: np.searchsorted(seconds, old_s, side="right")]
    if not len(counts) or counts.max() < least:
        return []
    at = int(np.argmax(counts))
    amount = int(counts[at])
    times = (int(seconds[at]), int(seconds[at + amount - 1]))
    return [FoldedPages(visitor, reason, amount, *times, page)]


def merged_windows(windows: Sequence[FoldedPages]) -> list[FoldedPages]:
    """Merge windows of one visit, in order of time, to one per reason."""
    found: dict[str, FoldedPages] = {}
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
    """Encode folds as a table of FOLDS."""
    return pa.Table.from_pylist([asdict(fold) for fold in folds], FOLDS) if folds else empty(FOLDS)


def windows_table(windows: Sequence[FoldedPages]) -> pa.Table:
    """Encode windows as a table of WINDOWS."""
    rows = [asdict(window) for window in windows]
    return pa.Table.from_pylist(rows, WINDOWS) if rows else empty(WINDOWS)


def folds_of(table: pa.Table) -> list[Fold]:
    """Decode a table of FOLDS."""
    return [Fold(**row) for row in table.to_pylist()]


def windows_from(table: pa.Table) -> list[FoldedPages]:
    """Decode a table of WINDOWS."""
    return [FoldedPages(**row) for row in table.to_pylist()]
