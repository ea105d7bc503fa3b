"""Messages in flight as rows, for whoever looks at them: from pages and from `scattered` alike.

What is told is a copy, ascending by index; nothing is taken.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from sparq.broker.page import PAGE_BITS, PAGE_MASK, Page, page_groups
from sparq.broker.scattered import Rows, Scattered

Indexes = NDArray[np.int64]


def rows_from(pages: Mapping[int, Page], scattered: Scattered, first: int, count: int) -> Rows:
    """The first `count` messages at or behind an index; fewer where there are no more."""
    found: list[Rows] = []
    taken = 0
    for key in sorted(key for key in pages if key >= first >> PAGE_BITS):
        page = pages[key]
        offsets = np.flatnonzero(page.owner)
        offsets = offsets[offsets + (key << PAGE_BITS) >= first]
        found.append(page.rows(key, offsets))
        taken += len(offsets)
        if taken >= count:
            break
    if len(scattered):
        apart = scattered.indexes()
        apart = apart[np.searchsorted(apart, first) :]
        found.append(scattered.rows(apart[:count]))
    return _ascending(found, count)


def rows_of(pages: Mapping[int, Page], scattered: Scattered, indexes: Indexes) -> Rows:
    """Those of these ascending indexes that are in flight."""
    found: list[Rows] = []
    for key, low, high in page_groups(indexes) if len(indexes) else ():
        page = pages.get(key)
        if page is not None:
            offsets = indexes[low:high] & PAGE_MASK
            found.append(page.rows(key, offsets[page.owner[offsets] != 0]))
    if len(scattered):
        found.append(scattered.rows(indexes[scattered.owners(indexes) != 0]))
    return _ascending(found, len(indexes))


def _ascending(found: list[Rows], count: int) -> Rows:
    """One of several, without the times of publishing; at most `count` rows."""
    if not found:
        none = np.empty(0, np.int64)
        return Rows(none, none.astype(np.uint32), none, none, none.astype(np.uint16), None)
    indexes = np.concatenate([rows.indexes for rows in found])
    order = np.argsort(indexes, kind="stable")[:count]
    return Rows(
        indexes[order],
        np.concatenate([rows.owners for rows in found])[order],
        np.concatenate([rows.deadlines for rows in found])[order],
        np.concatenate([rows.delivered_at for rows in found])[order],
        np.concatenate([rows.attempts for rows in found])[order],
        None,
    )
