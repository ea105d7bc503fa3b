"""The state of 4,096 neighbouring indexes by slot: where `in_flight` keeps dense messages.

Those in flight are told as rows, from pages and from `scattered` alike: a copy, ascending by index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sparq.broker.options import NEVER
from sparq.broker.scattered import Rows, Scattered

Indexes = NDArray[np.int64]

PAGE_BITS: Final = 12
PAGE_SIZE: Final = 1 << PAGE_BITS
PAGE_MASK: Final = PAGE_SIZE - 1


class Page:
    """The state of 4,096 neighbouring indexes; without `attempts` all are at their first."""

    __slots__ = (
        "attempts",
        "count",
        "deadline",
        "deadline_min",
        "delivered_at",
        "owner",
        "published",
    )

    def __init__(self) -> None:
        self.owner = np.zeros(PAGE_SIZE, np.uint32)
        self.deadline = np.empty(PAGE_SIZE, np.int64)
        self.delivered_at = np.empty(PAGE_SIZE, np.int64)
        self.attempts: NDArray[np.uint16] | None = None
        self.published: Indexes | None = None
        self.count = 0
        self.deadline_min = NEVER

    def rows(self, key: int, offsets: NDArray[np.int64]) -> Rows:
        """The messages at these offsets; `key` is the page's."""
        return Rows(
            offsets + (key << PAGE_BITS),
            self.owner[offsets],
            self.deadline[offsets],
            self.delivered_at[offsets],
            self.attempts_at(offsets),
            None if self.published is None else self.published[offsets],
        )

    def attempts_at(self, offsets: NDArray[np.int64]) -> NDArray[np.uint16]:
        """Deliveries so far of the messages at these offsets."""
        if self.attempts is None:
            return np.ones(len(offsets), np.uint16)
        return self.attempts[offsets]


def page_groups(indexes: Indexes) -> Iterator[tuple[int, int, int]]:
    """(page key, from, to) for each page that a run of ascending indexes touches."""
    keys = indexes >> PAGE_BITS
    bounds = [0, *(np.flatnonzero(keys[1:] != keys[:-1]) + 1).tolist(), len(indexes)]
    for low, high in pairwise(bounds):
        yield int(keys[low]), low, high


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
