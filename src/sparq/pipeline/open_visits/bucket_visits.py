"""All data of a bucket, at a compaction and at the end of a run: judges it and limits its size.

1. `lows` are the low marks after each batch since the last compaction. With them, visits are judged
   in the order in which they were over, as if each batch had judged its own: the findings about
   a visitor do not depend on when the state is compacted.
2. A bucket stays within its limits: old pages are folded, which loses nothing that a rule still
   needs, and the oldest visits are dropped and counted (`findings.Evicted`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sparq.pipeline.open_visits import judge
from sparq.pipeline.open_visits.findings import Evicted, Findings
from sparq.pipeline.open_visits.folding import (
    Fold,
    FoldedPages,
    folds_of,
    merged_windows,
    windows_from,
    windows_of,
)
from sparq.pipeline.open_visits.intervals import merged, visit_of
from sparq.pipeline.open_visits.rows import (
    Pages,
    VisitorNames,
    Visits,
    concat,
    slices_of,
    take,
    to_table,
)
from sparq.pipeline.open_visits.tiers import WINDOW_OVER_S, BasePart, HotPart, VisitsLimits
from sparq.pipeline.packing import Ints, Marks
from sparq.pipeline.visits import PAGE, REPEAT_CLICKS, VISIT_GAP_S

ROOM_LEFT = 0.9  # share of the limit that is kept, so that not every compaction has to drop


@dataclass(frozen=True, slots=True)
class BucketVisits:
    """All visits of a bucket.

    Attributes:
        visits: ordered by visitor and time.
        pages: in any order.
        visit: for each page, the index of its visit.
        folds, windows: by the index of their visit.
        names: the names of all visitors.
        texts: the texts of pages that a rule may name, by hash.
    """

    visits: Visits
    pages: Pages
    visit: Ints
    folds: dict[int, Fold]
    windows: dict[int, list[FoldedPages]]
    names: VisitorNames
    texts: dict[int, str]

    @classmethod
    def of(
        cls,
        base: BasePart,
        hot: HotPart,
        new: tuple[Visits, Pages],
        *,
        before_s: int,
        names: VisitorNames,
        texts: dict[int, str],
    ) -> BucketVisits:
        """Combine all tiers and the new clicks.

        Args:
            base, hot: the tiers.
            new: clicks of this batch that are on time.
            before_s: low mark before this batch.
            names: the names of all visitors.
            texts: texts of pages, by hash.
        """
        hot_visits, hot_low_s = hot.visits()
        parts = concat(Visits, [base.visits, hot_visits, new[0]])
        rest = len(parts.visitor) - len(hot_low_s) - len(new[0].visitor)
        low_s = np.concatenate(
            [np.zeros(rest, np.int64), hot_low_s, np.full(len(new[0].visitor), before_s)]
        )
        visits = merged(parts, low_s)
        pages = concat(Pages, [base.pages, hot.pages, new[1]])
        visit = visit_of(visits, pages.visitor, pages.second)
        assert (visit >= 0).all(), "a page outside of all visits"
        folds = folds_of(hot.folds())
        windows = windows_from(hot.windows)
        return cls(
            visits,
            pages,
            visit,
            dict(zip(_visits(visits, folds), folds, strict=True)),
            grouped(_visits(visits, windows), windows),
            names,
            texts,
        )

    def judge(self, findings: Findings, lows: Sequence[int], touched: Ints) -> list[dict[str, Any]]:
        """Apply all rules.

        Args:
            findings: collects the evidence.
            lows: the low mark after each batch; this batch is the last one.
            touched: visitors who clicked in this batch.

        Returns:
            The rows that the batches before this one had to report.
        """
        over_in = self.over_in(lows)
        newest = len(lows) - 1
        report: list[dict[str, Any]] = []
        for batch in np.unique(over_in[over_in < newest]).tolist():
            self._judge_visits(findings, over_in == batch)
            report += findings.report()
        self._judge_visitors(findings, over_in >= newest, touched)
        self._judge_visits(findings, over_in == newest)
        return report

    def over_in(self, lows: Sequence[int]) -> Ints:
        """The index of the batch in which each visit was over; len(lows) if it is still open."""
        return np.searchsorted(np.array(lows, np.int64), self.visits.last_s + VISIT_GAP_S)

    def _judge_visitors(self, findings: Findings, open_visits: Marks, touched: Ints) -> None:
        """Judge visitors who clicked and may be suspect, by the rules that apply at once."""
        held = np.flatnonzero(open_visits[self.visit])
        visitor, kind = self.pages.visitor[held], self.pages.kind[held]
        open_windows = [one for at, some in self.windows.items() if open_visits[at] for one in some]
        windows = grouped([one.visitor for one in open_windows], open_windows)
        suspects = judge.suspect_visitors(visitor, kind, REPEAT_CLICKS, windows)
        suspects = suspects[np.isin(suspects, touched)]
        pages = by_time(take(self.pages, held[np.isin(visitor, suspects)]))
        by_visitor = slices_of(pages.visitor)
        for one in suspects.tolist():
            name = self.names.of(one)
            mine = take(pages, by_visitor.get(one, slice(0)))
            for evidence in judge.at_once(
                mine, windows.get(one, []), self.texts, declared=name.declared
            ):
                findings.add(one, name, evidence)

    def _judge_visits(self, findings: Findings, over: Marks) -> None:
        """Apply the rules about whole visits to the marked visits."""
        over = over & judge.worth_judging(self.visits.pages, self.visits.resources)
        at = np.flatnonzero(over)
        at = at[~self.names.declared(self.visits.visitor[at])]
        rows = np.flatnonzero(np.isin(self.visit, at) & (self.pages.kind == PAGE))
        order = np.lexsort((self.pages.id[rows], self.pages.second[rows], self.visit[rows]))
        rows = rows[order]
        pages, visit = take(self.pages, rows), self.visit[rows]
        by_visit = slices_of(visit)
        for one in at.tolist():
            mine = take(pages, by_visit.get(one, slice(0)))
            visitor = int(self.visits.visitor[one])
            resources = int(self.visits.resources[one])
            for evidence in judge.of_visit(mine, resources, self.folds.get(one)):
                findings.add(visitor, self.names.of(visitor), evidence)

    def only(self, kept: Marks) -> BucketVisits:
        """The marked visits, with everything that belongs to them."""
        index = np.cumsum(kept) - 1
        rows = kept[self.visit]
        folds = {int(index[at]): one for at, one in self.folds.items() if kept[at]}
        windows = {int(index[at]): some for at, some in self.windows.items() if kept[at]}
        visits, pages = take(self.visits, kept), take(self.pages, rows)
        visit = index[self.visit[rows]]
        return replace(self, visits=visits, pages=pages, visit=visit, folds=folds, windows=windows)

    def folded(self, low_s: int, limits: VisitsLimits, evicted: Evicted) -> BucketVisits:
        """These open visits, with the old pages of long visits folded.

        Args:
            low_s: the low mark.
            limits: define which visits are long.
            evicted: counts the pages that had to be folded although they are not old.
        """
        over_s = low_s - WINDOW_OVER_S
        count = np.bincount(self.visit, minlength=len(self.visits.visitor))
        old = np.bincount(self.visit, self.pages.second <= over_s, len(count))
        long = ((count > limits.fold_pages) & (old > 0)) | (count > limits.pages_max)
        if not long.any():
            return self
        whole = replace(self, folds=dict(self.folds), windows=dict(self.windows))
        rows = np.flatnonzero(long[self.visit])
        rows = rows[np.lexsort((self.pages.id[rows], self.pages.second[rows], self.visit[rows]))]
        gone = [
            whole._fold_one(rows[mine], over_s, limits, evicted)
            for mine in slices_of(self.visit[rows]).values()
        ]
        kept = np.ones(len(self.visit), bool)
        kept[np.concatenate(gone)] = False
        return replace(whole, pages=take(self.pages, kept), visit=self.visit[kept])

    def _fold_one(self, rows: Ints, over_s: int, limits: VisitsLimits, evicted: Evicted) -> Ints:
        """Add a visit's old pages to its folds and windows; returns the rows of these pages."""
        visit, pages = int(self.visit[rows[0]]), take(self.pages, rows)
        old = int(np.searchsorted(pages.second, over_s, side="right"))
        if len(rows) - old > limits.pages_max:
            newer = len(rows) - old - int(limits.pages_max * ROOM_LEFT)
            evicted.clicks += newer
            old += newer
        if not old:
            return rows[:0]
        declared = bool(self.names.declared(pages.visitor[:1])[0])
        windows = windows_of(pages, old, self.texts, declared=declared)
        windows = merged_windows([*self.windows.get(visit, []), *windows])
        if windows:
            self.windows[visit] = windows
        asked = take(pages, np.flatnonzero(pages.kind[:old] == PAGE))
        if len(asked.second) and not declared:
            before = self.folds.get(visit)
            self.folds[visit] = before.plus(asked) if before else Fold.of(asked)
        return rows[:old]

    def bounded(self, limits: VisitsLimits, evicted: Evicted) -> BucketVisits:
        """These open visits without the oldest, if they exceed the size limit of a bucket.

        Args:
            limits: the limits of a bucket.
            evicted: counts what is dropped.
        """
        size = to_table(self.visits).nbytes + to_table(self.pages).nbytes
        if size + self.names.table.nbytes <= limits.state_bytes_max:
            return self
        size += self.names.only(self.visits.visitor).nbytes  # smaller than above: each agent once
        if size <= limits.state_bytes_max:
            return self
        count = len(self.visits.visitor)
        room = int(count * ROOM_LEFT * limits.state_bytes_max / size)
        order = np.lexsort((self.visits.visitor, self.visits.last_s))
        kept: Marks = np.zeros(count, bool)
        kept[order[count - room :]] = True
        evicted.visits += count - room
        evicted.clicks += int(self.visits.clicks[~kept].sum())
        return self.only(kept)

    def all_windows(self) -> list[FoldedPages]:
        """All windows, ordered by their visits."""
        return [window for _, some in sorted(self.windows.items()) for window in some]

    def all_folds(self) -> list[Fold]:
        """All folds, ordered by their visits."""
        return [fold for _, fold in sorted(self.folds.items())]


def by_time(pages: Pages) -> Pages:
    """The pages ordered by visitor, time and id."""
    return take(pages, np.lexsort((pages.id, pages.second, pages.visitor)))


def _visits(visits: Visits, rows: Sequence[Fold] | Sequence[FoldedPages]) -> list[int]:
    """The index of the visit of each fold or window."""
    visitor = np.array([row.visitor for row in rows], np.int64)
    first_s = np.array([row.first_s for row in rows], np.int64)
    indices: list[int] = visit_of(visits, visitor, first_s).tolist()
    return indices


def grouped(keys: Sequence[int], windows: Sequence[FoldedPages]) -> dict[int, list[FoldedPages]]:
    """Group windows by their keys."""
    groups: dict[int, list[FoldedPages]] = {}
    for key, window in zip(keys, windows, strict=True):
        groups.setdefault(key, []).append(window)
    return groups
