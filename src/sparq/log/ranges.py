"""Sets of indexes as ranges [first, end)."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

VECTOR_MIN: Final = 16
"""Below so many ranges plain Python is faster than arrays."""

Indexes = Sequence[int] | NDArray[np.int64]


def merge_ranges(firsts: Indexes, ends: Indexes) -> list[tuple[int, int]]:
    """The same set of indexes as ranges that ascend and neither overlap nor touch.

    Args:
        firsts, ends: ranges in any order; empty ones count for nothing.
    """
    if len(firsts) < VECTOR_MIN:
        return merge_ranges_scalar(firsts, ends)
    starts, stops = np.asarray(firsts, np.int64), np.asarray(ends, np.int64)
    full = stops > starts
    starts, stops = starts[full], stops[full]
    if not len(starts):
        return []
    order = np.argsort(starts, kind="stable")
    starts, stops = starts[order], np.maximum.accumulate(stops[order])
    begins = np.flatnonzero(np.concatenate(([True], starts[1:] > stops[:-1])))
    lasts = np.append(begins[1:] - 1, len(starts) - 1)
    return list(zip(starts[begins].tolist(), stops[lasts].tolist(), strict=True))


def merge_ranges_scalar(firsts: Indexes, ends: Indexes) -> list[tuple[int, int]]:
    """What `merge_ranges` does, range by range."""
    merged: list[tuple[int, int]] = []
    for first, end in sorted(zip(firsts, ends, strict=True)):
        if end <= first:
            continue
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], int(end)))
        else:
            merged.append((int(first), int(end)))
    return merged
