"""Builds visits from clicks: a visitor's intervals in which no gap exceeds VISIT_GAP_S.

1. Joining two intervals with a small enough gap is associative and commutative: neither the order
   of clicks nor their division into batches matters.
2. However, a visit is over once the low mark is VISIT_GAP_S after its last click. A click that
   arrives later begins another visit, even if it is close enough to the first one. `merged` follows
   this rule also when it merges several batches at once: each row comes with `low_s`, the low mark
   before its batch.
3. So visits of one visitor never overlap: a click that is on time (second > low mark -
   VISIT_GAP_S) is after all visits that were over when it arrived.
"""

from __future__ import annotations

from itertools import groupby

import numpy as np

from sparq.pipeline.open_visits.rows import Visits, concat, starts_of, take
from sparq.pipeline.packing import Ints, Marks
from sparq.pipeline.visits import VISIT_GAP_S

Row = tuple[int, ...]  # first_s, last_s, clicks, resources, pages


def merged(parts: Visits, low_s: Ints) -> Visits:
    """Merge parts of visits into whole visits.

    Args:
        parts: parts in any order.
        low_s: for each part the low mark before the batch in which it arrived.

    Returns:
        Visits ordered by visitor and time.
    """
    order = np.lexsort((parts.first_s, parts.visitor))
    parts, low_s = take(parts, order), low_s[order]
    begins, too_late = _boundaries(parts, low_s)
    if not too_late.any():
        return _summed(parts, begins)
    apart = np.isin(parts.visitor, parts.visitor[too_late])
    rest = take(parts, ~apart)
    whole = [_summed(rest, begins[~apart]), _by_arrival(take(parts, apart), low_s[apart])]
    visits = concat(Visits, whole)
    return take(visits, np.lexsort((visits.first_s, visits.visitor)))


def _boundaries(parts: Visits, low_s: Ints) -> tuple[Marks, Marks]:
    """Which parts begin a visit, and which would join one that was over when they arrived.

    Gaps alone determine the visits of a visitor without parts of the second kind. For the other
    visitors, who are rare, the order of arrival matters.
    """
    new = np.zeros(len(parts.visitor), bool)
    new[starts_of(parts.visitor)] = True
    reach_s = _reach(parts.last_s, new)
    # The element that rolls over from the end does not matter: the first part always begins a
    # visit.
    over_s = np.roll(reach_s, 1) + VISIT_GAP_S
    joins = ~new & (parts.first_s <= over_s)
    return ~joins, joins & (low_s >= over_s)


def _reach(last_s: Ints, new: Marks) -> Ints:
    """For each part, the latest last click among its visitor's parts so far."""
    if not len(last_s):
        return last_s
    # Shift each visitor's times above those of all visitors before, for one running maximum.
    lift = np.cumsum(new) * (int(last_s.max()) - int(last_s.min()) + 1)
    reach: Ints = np.maximum.accumulate(last_s + lift) - lift
    return reach


def _summed(parts: Visits, begins: Marks) -> Visits:
    at = np.flatnonzero(begins)
    if not len(at):
        return parts
    counts = (np.add.reduceat(one, at) for one in (parts.clicks, parts.resources, parts.pages))
    last_s = np.maximum.reduceat(parts.last_s, at)
    return Visits(parts.visitor[at], parts.first_s[at], last_s, *counts)


def _by_arrival(parts: Visits, low_s: Ints) -> Visits:
    """Merge parts like `_summed`, but one after the other in the order of their arrival."""
    columns = (parts.first_s, parts.last_s, parts.clicks, parts.resources, parts.pages)
    rows = list(zip(low_s.tolist(), *(column.tolist() for column in columns), strict=True))
    visits: list[Row] = []
    starts = starts_of(parts.visitor).tolist()
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        visitor = int(parts.visitor[start])
        visits += [(visitor, *visit) for visit in _visits_of_one(sorted(rows[start:end]))]
    return Visits(*(np.array(column, np.int64) for column in zip(*visits, strict=True)))


def _visits_of_one(arrivals: list[Row]) -> list[Row]:
    over: list[Row] = []
    held: list[Row] = []
    for low_s, group in groupby(arrivals, key=lambda row: row[0]):
        over += [visit for visit in held if visit[1] + VISIT_GAP_S <= low_s]
        held = [visit for visit in held if visit[1] + VISIT_GAP_S > low_s]
        held = _joined(sorted([*held, *(row[1:] for row in group)]))
    return over + held


def _joined(rows: list[Row]) -> list[Row]:
    visits = rows[:1]
    for row in rows[1:]:
        first_s, last_s, *counts = visits[-1]
        if row[0] > last_s + VISIT_GAP_S:
            visits.append(row)
            continue
        sums = (old + new for old, new in zip(counts, row[2:], strict=True))
        visits[-1] = (first_s, max(last_s, row[1]), *sums)
    return visits


def visit_of(visits: Visits, visitor: Ints, second: Ints) -> Ints:
    """The index of the visit to which each click belongs; -1 if there is none.

    Args:
        visits: ordered by visitor and time, without overlaps, as `merged` returns them.
        visitor, second: the clicks, in any order.
    """
    nowhere = np.full(len(visitor), -1, np.int64)
    if not len(visits.visitor) or not len(visitor):
        return nowhere
    starts = starts_of(visits.visitor)
    known = visits.visitor[starts]
    rank = np.minimum(np.searchsorted(known, visitor), len(known) - 1)
    begin_s, end_s = int(visits.first_s.min()), int(visits.last_s.max())
    # Visitor and time as one ascending key: a single search finds the visits of all clicks. Times
    # are clamped, so that no click reaches the keys of the next visitor.
    span_s = end_s - begin_s + 2
    ranks = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(visits.visitor))))
    keys = ranks * span_s + (visits.first_s - begin_s)
    clamped = np.clip(second, begin_s - 1, end_s) - begin_s
    at = np.maximum(np.searchsorted(keys, rank * span_s + clamped, side="right") - 1, 0)
    inside = (visits.visitor[at] == visitor) & (visits.first_s[at] <= second)
    return np.where(inside & (second <= visits.last_s[at]), at, nowhere)
