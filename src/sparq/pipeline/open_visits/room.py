"""A bucket stays within its bounds: old pages are folded, and the oldest visits are dropped.

Folding loses nothing that a rule still asks for; what is dropped is counted (`output.Evicted`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sparq.pipeline.open_visits.folding import Fold, Window, merged_windows, windows_of
from sparq.pipeline.open_visits.limits import WINDOW_OVER_S, Limits
from sparq.pipeline.open_visits.output import Evicted
from sparq.pipeline.open_visits.rows import Ints, Marks, spans_of, take, to_table
from sparq.pipeline.open_visits.whole import Whole
from sparq.pipeline.visits import PAGE

ROOM_LEFT = 0.9  # of what is allowed stays, so that not every compaction has to drop


def folded(whole: Whole, low_s: int, limits: Limits, evicted: Evicted) -> Whole:
    """With the old pages of long visits folded.

    Args:
        whole: open visits.
        low_s: the low mark.
        limits: which visits are long.
        evicted: counts the pages that had to be folded though they are not old.
    """
    over_s = low_s - WINDOW_OVER_S
    count = np.bincount(whole.visit, minlength=len(whole.visits.visitor))
    old = np.bincount(whole.visit, whole.pages.second <= over_s, len(count))
    long = ((count > limits.fold_pages) & (old > 0)) | (count > limits.pages_max)
    if not long.any():
        return whole
    whole = replace(whole, folds=dict(whole.folds), windows=dict(whole.windows))
    rows = np.flatnonzero(long[whole.visit])
    keys = (whole.pages.id[rows], whole.pages.second[rows], whole.visit[rows])
    rows = rows[np.lexsort(keys)]
    gone = [
        _fold_one(whole, rows[start:end], over_s, limits, evicted)
        for start, end in spans_of(whole.visit[rows])
    ]
    kept = np.ones(len(whole.visit), bool)
    kept[np.concatenate(gone)] = False
    return replace(whole, pages=take(whole.pages, kept), visit=whole.visit[kept])


def _fold_one(whole: Whole, rows: Ints, over_s: int, limits: Limits, evicted: Evicted) -> Ints:
    """Note the folds and windows of the old ones of a visit's pages; returns their rows."""
    visit, pages = int(whole.visit[rows[0]]), take(whole.pages, rows)
    old = int(np.searchsorted(pages.second, over_s, side="right"))
    if len(rows) - old > limits.pages_max:
        newer = len(rows) - old - int(limits.pages_max * ROOM_LEFT)
        evicted.clicks += newer
        old += newer
    if not old:
        return rows[:0]
    declared = bool(whole.names.declared(pages.visitor[:1])[0])
    windows = windows_of(pages, old, whole.texts, declared=declared)
    windows = merged_windows([*whole.windows.get(visit, []), *windows])
    if windows:
        whole.windows[visit] = windows
    asked = take(pages, np.flatnonzero(pages.kind[:old] == PAGE))
    if len(asked.second) and not declared:
        before = whole.folds.get(visit)
        whole.folds[visit] = before.plus(asked) if before else Fold.of(asked)
    return rows[:old]


def bounded(whole: Whole, limits: Limits, evicted: Evicted) -> Whole:
    """Without the oldest visits, if there are more than a bucket may hold.

    Args:
        whole: open visits.
        limits: what a bucket may hold.
        evicted: counts what is dropped.
    """
    size = to_table(whole.visits).nbytes + to_table(whole.pages).nbytes
    if size + whole.names.table.nbytes <= limits.state_bytes_max:
        return whole
    size += whole.names.only(whole.visits.visitor).nbytes  # less: each agent once
    if size <= limits.state_bytes_max:
        return whole
    count = len(whole.visits.visitor)
    room = int(count * ROOM_LEFT * limits.state_bytes_max / size)
    order = np.lexsort((whole.visits.visitor, whole.visits.last_s))
    kept: Marks = np.zeros(count, bool)
    kept[order[count - room :]] = True
    evicted.visits += count - room
    evicted.clicks += int(whole.visits.clicks[~kept].sum())
    return whole.only(kept)


def windows_in(whole: Whole) -> list[Window]:
    """All windows, in order of their visits."""
    return [window for _, some in sorted(whole.windows.items()) for window in some]


def folds_in(whole: Whole) -> list[Fold]:
    """All folds, in order of their visits."""
    return [fold for _, fold in sorted(whole.folds.items())]
