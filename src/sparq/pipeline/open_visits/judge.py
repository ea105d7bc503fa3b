"""Applies the rules of `sparq.pipeline.visits` to the data of a bucket.

The rules take clicks with texts, while a bucket holds hashes. So pages are passed as numbers here,
in the order of their texts wherever a rule may choose between two pages (`_numbered`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sparq.pipeline import visits as rules
from sparq.pipeline.open_visits.folding import Fold, FoldedPages
from sparq.pipeline.open_visits.rows import Pages, take
from sparq.pipeline.packing import Ints
from sparq.pipeline.visits import (
    BURST_PAGES,
    BURST_S,
    CLOCK_GAPS,
    PAGE,
    PAGES_MIN,
    REPEAT_CLICKS,
    REPEATS,
    ROBOTS_TXT,
    UNDECLARED,
    Clicks,
    Evidence,
)

Texts = Mapping[int, str]  # of pages, by hash


def at_once(
    pages: Pages, windows: Sequence[FoldedPages], texts: Texts, *, declared: bool
) -> list[Evidence]:
    """Evidence about one visitor that further clicks cannot refute.

    Args:
        pages: all stored pages of the visitor, ordered by time and id.
        windows: the results for pages that are no longer stored one by one.
        texts: at least those of pages that the visitor requested REPEAT_CLICKS times.
        declared: whether the visitor declares to be a robot.
    """
    clicks, names = _clicks(pages, texts)
    found = {one.reason: one for one in rules.at_once(clicks, declared=declared)}
    found = {reason: _worded(one, names) for reason, one in found.items()}
    # From the latest to the earliest: of two equal windows the rules prefer the earlier one.
    for window in sorted(windows, key=lambda one: one.first_s, reverse=True):
        found[window.reason] = _stronger(window, found.get(window.reason))
    return list(found.values())


def of_visit(pages: Pages, resources: int, fold: Fold | None) -> list[Evidence]:
    """Evidence from a whole visit of a visitor that does not declare to be a robot.

    Args:
        pages: the stored pages of the visit, ordered by time and id.
        resources: number of resources loaded with the pages.
        fold: the pages that are no longer stored one by one.
    """
    asked = take(pages, pages.kind == PAGE)
    if fold is not None:
        return fold.plus(asked).evidence(resources)
    visit, names = _clicks(asked, {})
    bare = [] if resources else list(rules.no_resources(visit))
    return [_worded(one, names) for one in (*bare, *rules.clockwork(visit))]


def worth_judging(pages: Ints, resources: Ints) -> Any:
    """Which visits may give evidence, given the number of their pages and resources."""
    return (pages >= PAGES_MIN) & ((resources == 0) | (pages > CLOCK_GAPS))


def suspect_visitors(visitor: Ints, kind: Any, count: int, windows: Iterable[int]) -> Ints:
    """Visitors for whom a rule that applies at once may give evidence.

    Args:
        visitor, kind: of each stored page.
        count: the number of pages that is enough for a rule.
        windows: visitors that have windows.
    """
    known, rank, counts = np.unique(visitor, return_inverse=True, return_counts=True)
    asked = np.bincount(rank, kind == ROBOTS_TXT, len(known)) > 0
    return np.union1d(known[(counts >= count) | asked], np.array([*windows], np.int64))


def may_prove(pages: Pages, unseen: int) -> bool:
    """Whether these pages of one visitor, with some that are stored elsewhere, may prove something.

    Args:
        pages: ordered by time and id.
        unseen: maximum number of clicks stored elsewhere, on one page and within BURST_S.
    """
    asked = take(pages, pages.kind == PAGE)
    if not len(asked.second):
        return False
    same = int(np.unique(asked.page, return_counts=True)[1].max())
    ends = np.searchsorted(asked.second, asked.second + BURST_S, side="right")
    quick = int((ends - np.arange(len(ends))).max())
    return same + unseen >= REPEAT_CLICKS or quick + unseen >= BURST_PAGES


def texts_of(pages: Pages, texts: Texts) -> dict[int, str]:
    """The texts of pages that a visitor requested often enough for a rule to name them."""
    often = np.unique(pages.page[_repeated(pages, REPEAT_CLICKS)])
    return {page: texts[page] for page in often.tolist() if page in texts}


def busy(pages: Pages, count: int) -> Ints:
    """Visitors with `count` clicks on one page, or on any pages within BURST_S."""
    _, rank, counts = np.unique(pages.visitor, return_inverse=True, return_counts=True)
    some = take(pages, (counts >= count)[rank])
    order = np.lexsort((some.second, some.visitor))
    visitor, second = some.visitor[order], some.second[order]
    apart = count - 1
    hurried = (visitor[apart:] == visitor[:-apart]) & (second[apart:] - second[:-apart] <= BURST_S)
    return np.union1d(visitor[apart:][hurried], some.visitor[_repeated(some, count)])


def _repeated(pages: Pages, count: int) -> Ints:
    """At least one row of each visitor and page with `count` clicks or more."""
    order = np.lexsort((pages.page, pages.visitor))
    visitor, page = pages.visitor[order], pages.page[order]
    apart = count - 1  # rows of the same visitor and page are neighbours
    same = (visitor[apart:] == visitor[:-apart]) & (page[apart:] == page[:-apart])
    rows: Ints = order[apart:][same]
    return rows


def _clicks(pages: Pages, texts: Texts) -> tuple[Clicks, list[str]]:
    """Return the clicks as the rules expect them, and the texts of the pages that a rule may name.

    The texts are in order of the pages' numbers (0, 1, 2 ...).
    """
    numbers, names = _numbered(pages.page, texts)
    columns: list[Any] = [pages.second, pages.kind, numbers, pages.id]
    return Clicks(*columns), names


def _numbered(pages: Ints, texts: Texts) -> tuple[Ints, list[str]]:
    """A number for each page: 0, 1, 2 ... in order of text for those that a rule may name."""
    hashes, codes, counts = np.unique(pages, return_inverse=True, return_counts=True)
    often = np.flatnonzero(counts >= REPEAT_CLICKS).tolist()
    named = sorted((texts.get(int(hashes[code]), "-"), code) for code in often)
    numbers = np.arange(len(named), len(named) + len(hashes))
    numbers[[code for _, code in named]] = np.arange(len(named))
    return numbers[codes], [text for text, _ in named]


def _worded(evidence: Evidence, names: Sequence[str]) -> Evidence:
    """Replace ids and page numbers in evidence by texts."""
    details = evidence.details
    if evidence.reason == REPEATS:
        details = {**details, "page": names[int(details["page"])]}
    ids = tuple(f"{int(one):016x}" for one in evidence.ids)
    return replace(evidence, ids=ids, details=details)


def _stronger(window: FoldedPages, found: Evidence | None) -> Evidence:
    """The result of the rules as if the window's clicks were still stored one by one."""
    if found is None:
        return window.evidence()
    if window.reason == UNDECLARED:  # counts all clicks, so the amounts add up
        amount, first_s = window.amount + found.amount, min(window.first_s, found.first_s)
        return replace(found, amount=amount, first_s=first_s)
    order = (-found.amount, found.details.get("page", ""))
    return window.evidence() if window.order() <= order else found
