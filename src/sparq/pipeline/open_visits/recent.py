"""Judges an ordinary batch by the rules that apply at once, with the data in `hot`.

The result is exact. If `hot` is not enough (a suspect may have pages in `base`, or visits that are
over and wait for a compaction), the batch becomes a compaction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparq.pipeline.open_visits import judge
from sparq.pipeline.open_visits.batch import VisitsBatch, touched
from sparq.pipeline.open_visits.bucket_visits import by_time, grouped
from sparq.pipeline.open_visits.findings import Findings
from sparq.pipeline.open_visits.folding import FoldedPages, windows_from
from sparq.pipeline.open_visits.intervals import merged, visit_of
from sparq.pipeline.open_visits.rows import Pages, Visits, concat, only, slices_of, take
from sparq.pipeline.open_visits.tiers import BUSY_PAGES, HotPart
from sparq.pipeline.packing import Ints
from sparq.pipeline.visits import CLOCK_GAPS, UNDECLARED, VISIT_GAP_S, Evidence


@dataclass(frozen=True, slots=True)
class Judged:
    """The evidence about the visitors who clicked in a batch.

    Attributes:
        evidence: pairs of visitor and evidence.
        texts: texts of the pages that the rules may name, as far as the batch has them.
    """

    evidence: list[tuple[int, Evidence]]
    texts: dict[int, str]


@dataclass(frozen=True, slots=True)
class _Suspect:
    """A visitor to be judged: pages ordered by time and id, and visits, from `hot`."""

    visitor: int
    pages: Pages
    visits: Visits
    windows: list[FoldedPages]
    complete: bool  # whether `base` has nothing about the visitor
    declared: bool


def judged(hot: HotPart, batch: VisitsBatch, findings: Findings) -> Judged | None:
    """Judge the visitors who clicked.

    Args:
        hot: the state before the batch.
        batch: the batch with their clicks.
        findings: the findings so far; not changed.

    Returns:
        The evidence; None if `hot` is not enough to tell.
    """
    visitors = touched(batch.seconds)
    pages = _of(concat(Pages, [hot.pages, batch.pages]), visitors)
    windows = windows_from(only(hot.windows, np.isin(hot.windows["visitor"].to_numpy(), visitors)))
    # No rule needs fewer than 2 * BUSY_PAGES - 1 pages, and `base` may hold BUSY_PAGES - 1 of them.
    folded = [window.visitor for window in windows]
    suspects = judge.suspect_visitors(pages.visitor, pages.kind, BUSY_PAGES, folded)
    if not len(suspects):
        return Judged([], {})
    pages = _of(pages, suspects)
    texts = {**hot.texts(), **batch.texts}
    evidence: list[tuple[int, Evidence]] = []
    for suspect in _suspects(hot, batch, suspects, pages, windows):
        if not suspect.complete and _is_unclear(suspect, batch.low_mark.low_s):
            return None
        held = _held(suspect, batch.before_s)
        for one in judge.at_once(held, suspect.windows, texts, declared=suspect.declared):
            if _must_wait(suspect, one, batch.low_mark.low_s, findings):
                return None
            evidence.append((suspect.visitor, one))
    return Judged(evidence, judge.texts_of(pages, batch.texts))


def _of(pages: Pages, visitors: Ints) -> Pages:
    return take(pages, np.isin(pages.visitor, visitors))


def _suspects(
    hot: HotPart, batch: VisitsBatch, suspects: Ints, pages: Pages, windows: list[FoldedPages]
) -> list[_Suspect]:
    hot_visits, hot_low_s = hot.visits()
    parts = concat(Visits, [hot_visits, batch.seconds])
    low_s = np.append(hot_low_s, np.full(len(batch.seconds.visitor), batch.before_s))
    theirs = np.isin(parts.visitor, suspects)
    visits = merged(take(parts, theirs), low_s[theirs])
    pages = by_time(pages)
    pages_at, visits_at = slices_of(pages.visitor), slices_of(visits.visitor)
    by_visitor = grouped([window.visitor for window in windows], windows)
    busy = hot.busy()
    complete = np.ones(len(suspects), bool) if busy is None else np.isin(suspects, busy)
    return [
        _Suspect(
            one,
            take(pages, pages_at.get(one, slice(0))),
            take(visits, visits_at.get(one, slice(0))),
            by_visitor.get(one, []),
            whole,
            robot,
        )
        for one, whole, robot in zip(
            suspects.tolist(),
            complete.tolist(),
            batch.names.declared(suspects).tolist(),
            strict=True,
        )
    ]


def _is_unclear(suspect: _Suspect, low_s: int) -> bool:
    """Whether pages or visits in `base` may change the evidence about a suspect.

    A visitor in `base` is not busy: `base` has fewer than BUSY_PAGES clicks of the visitor on one
    page, and fewer than BUSY_PAGES on pages within BURST_S, none on robots.txt, and no visit that
    has more than CLOCK_GAPS pages without those here.
    """
    may_be_over = bool((suspect.pages.second <= low_s - VISIT_GAP_S).any())
    return may_be_over or judge.may_prove(suspect.pages, BUSY_PAGES - 1)


def _held(suspect: _Suspect, before_s: int) -> Pages:
    """The pages of visits that were not over before the batch."""
    at = visit_of(suspect.visits, suspect.pages.visitor, suspect.pages.second)
    return take(suspect.pages, suspect.visits.last_s[at] > before_s - VISIT_GAP_S)


def _must_wait(suspect: _Suspect, evidence: Evidence, low_s: int, findings: Findings) -> bool:
    """Whether a visit that is over must be judged first, since it may change the same finding."""
    if evidence.reason != UNDECLARED:
        return False
    over = suspect.visits.last_s <= low_s - VISIT_GAP_S
    if not (over & (suspect.visits.pages > CLOCK_GAPS)).any():
        return False
    finding = findings.get(suspect.visitor, UNDECLARED)
    return finding is None or finding.would_change(evidence)
