"""The state of 4,096 neighbouring indexes by slot: where `in_flight` keeps dense messages."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sparq.broker.options import NEVER
from sparq.broker.scattered import Rows

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
