"""All that a bucket holds, at a compaction and at the end of a run, and how it is judged then.

`lows` are the low marks after each batch since the last compaction, so that visits are judged in
the order in which they were over, as if each batch had judged its own: what is told of a visitor
does not depend on when the state is compacted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparq.pipeline.open_visits import judge
from sparq.pipeline.open_visits.findings import Findings
from sparq.pipeline.open_visits.folding import Fold, Window, folds_of, windows_from
from sparq.pipeline.open_visits.intervals import merged, visit_of
from sparq.pipeline.open_visits.names import Names
from sparq.pipeline.open_visits.rows import (
    Ints,
    Marks,
    Pages,
    Visits,
    concat,
    spans_of,
    take,
)
from sparq.pipeline.open_visits.tiers import Base, Hot
from sparq.pipeline.visits import PAGE, REPEAT_CLICKS, ROBOTS_TXT, VISIT_GAP_S


@dataclass(frozen=True, slots=True)
class Whole:
    """All visits of a bucket.

    Attributes:
        visits: in order of visitor and time.
        pages: in any order.
        visit: for each page the index of its visit.
        folds, windows: by the index of their visit.
        names: of all visitors.
        texts: of the pages that a rule may name, by hash.
    """

    visits: Visits
    pages: Pages
    visit: Ints
    folds: dict[int, Fold]
    windows: dict[int, list[Window]]
    names: Names
    texts: dict[int, str]

    @classmethod
    def of(
        cls,
        base: Base,
        hot: Hot,
        new: tuple[Visits, Pages],
        *,
        before_s: int,
        names: Names,
        texts: dict[int, str],
    ) -> Whole:
        """All tiers together, and what is new.

        Args:
            base, hot: the tiers.
            new: clicks of this batch that are on time.
            before_s: low mark before this batch.
            names: of all visitors.
            texts: of pages, by hash.
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
            findings: take the evidence.
            lows: the low marks after each batch, this one the last.
            touched: visitors who clicked in this batch.

        Returns:
            What the batches before this one had to tell.
        """
        over_in = self.over_in(lows)
        newest = len(lows) - 1
        told: list[dict[str, Any]] = []
        for batch in np.unique(over_in[over_in < newest]).tolist():
            self._judge_visits(findings, over_in == batch)
            told += findings.tell()
        self._judge_visitors(findings, over_in >= newest, touched)
        self._judge_visits(findings, over_in == newest)
        return told

    def over_in(self, lows: Sequence[int]) -> Ints:
        """The index of the batch in which each visit was over; len(lows) if it is not."""
        return np.searchsorted(np.array(lows, np.int64), self.visits.last_s + VISIT_GAP_S)

    def _judge_visitors(self, findings: Findings, open_visits: Marks, touched: Ints) -> None:
        """The rules that hold at once, for those who clicked and are worth a look."""
        held = np.flatnonzero(open_visits[self.visit])
        visitor = self.pages.visitor[held]
        known, rank, counts = np.unique(visitor, return_inverse=True, return_counts=True)
        asked = np.bincount(rank, self.pages.kind[held] == ROBOTS_TXT, len(known)) > 0
        windows = self._windows_by_visitor(open_visits)
        folded = np.fromiter(windows, np.int64, len(windows))
        look = np.union1d(known[(counts >= REPEAT_CLICKS) | asked], folded)
        look = look[np.isin(look, touched)]
        pages = _sorted(take(self.pages, held[np.isin(visitor, look)]))
        by_visitor = {int(pages.visitor[a]): (a, z) for a, z in spans_of(pages.visitor)}
        for one in look.tolist():
            name = self.names.of(one)
            mine = take(pages, slice(*by_visitor.get(one, (0, 0))))
            for evidence in judge.at_once(
                mine, windows.get(one, []), self.texts, declared=name.declared
            ):
                findings.hold(one, name, evidence)

    def _windows_by_visitor(self, open_visits: Marks) -> dict[int, list[Window]]:
        held = [one for at, some in self.windows.items() if open_visits[at] for one in some]
        return grouped([one.visitor for one in held], held)

    def _judge_visits(self, findings: Findings, over: Marks) -> None:
        """The rules about whole visits, for the marked ones."""
        over = over & judge.worth_judging(self.visits.pages, self.visits.resources)
        at = np.flatnonzero(over)
        at = at[~self.names.declared(self.visits.visitor[at])]
        rows = np.flatnonzero(np.isin(self.visit, at) & (self.pages.kind == PAGE))
        order = np.lexsort((self.pages.id[rows], self.pages.second[rows], self.visit[rows]))
        rows = rows[order]
        pages, visit = take(self.pages, rows), self.visit[rows]
        by_visit = {int(visit[a]): (a, z) for a, z in spans_of(visit)}
        for one in at.tolist():
            mine = take(pages, slice(*by_visit.get(one, (0, 0))))
            visitor = int(self.visits.visitor[one])
            resources = int(self.visits.resources[one])
            for evidence in judge.of_visit(mine, resources, self.folds.get(one)):
                findings.hold(visitor, self.names.of(visitor), evidence)

    def only(self, kept: Marks) -> Whole:
        """The visits that are marked, with all that belongs to them."""
        index = np.cumsum(kept) - 1
        rows = kept[self.visit]
        folds = {int(index[at]): one for at, one in self.folds.items() if kept[at]}
        windows = {int(index[at]): some for at, some in self.windows.items() if kept[at]}
        return Whole(
            take(self.visits, kept),
            take(self.pages, rows),
            index[self.visit[rows]],
            folds,
            windows,
            self.names,
            self.texts,
        )


def _sorted(pages: Pages) -> Pages:
    """In order of visitor, time and id."""
    return take(pages, np.lexsort((pages.id, pages.second, pages.visitor)))


def _visits(visits: Visits, rows: Sequence[Fold] | Sequence[Window]) -> list[int]:
    """The index of the visit of each fold or window."""
    visitor = np.array([row.visitor for row in rows], np.int64)
    first_s = np.array([row.first_s for row in rows], np.int64)
    indices: list[int] = visit_of(visits, visitor, first_s).tolist()
    return indices


def grouped(keys: Sequence[int], windows: Sequence[Window]) -> dict[int, list[Window]]:
    """Windows by their keys."""
    groups: dict[int, list[Window]] = {}
    for key, window in zip(keys, windows, strict=True):
        groups.setdefault(key, []).append(window)
    return groups
