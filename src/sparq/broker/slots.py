"""Storage for a channel's messages in flight: dense ones in pages, sparse ones in `MessageMap`.

`in_flight` keeps neighboring indexes in pages of 4,096 slots, which cost 80 KiB even for a single
message (`Page`). When most of a page is finished, the rest moves to `MessageMap`, at about 180
bytes per message, wherever their indexes are: a dictionary maps an index to a row, and the columns
of the rows are arrays. Invariants of `MessageMap`:

1. `owner[row] == 0` exactly for free rows: those listed in `free`, and all from `used` on.
2. `deadline_min` is never above the earliest deadline of its messages.
3. Memory is released once more than half of the rows are free.

Messages from pages and from `MessageMap` are both returned as `Rows`: a copy, ascending by
index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from sparq.broker.options import NEVER

Indexes = NDArray[np.int64]
Item = TypeVar("Item", bound=np.generic)

DEAD_LETTERS: Final = 1
"""Owner of messages on their way to or from a dead-letter topic: no session."""

ROWS_MIN: Final = 256
"""A smaller number of rows is never released or reallocated."""


def ranges_of(indexes: Indexes) -> tuple[list[int], list[int]]:
    """Convert ascending indexes without duplicates to ranges: (starts, ends)."""
    if not len(indexes):
        return [], []
    breaks = np.flatnonzero(indexes[1:] - indexes[:-1] != 1)
    starts = [int(indexes[0]), *indexes[breaks + 1].tolist()]
    ends = [*(indexes[breaks] + 1).tolist(), int(indexes[-1]) + 1]
    return starts, ends


def ranges_of_few(indexes: list[int]) -> tuple[list[int], list[int]]:
    """Do what `ranges_of` does, without numpy."""
    # For a few indexes, each call of numpy costs more than this loop.
    starts: list[int] = []
    ends: list[int] = []
    for index in indexes:
        if ends and ends[-1] == index:
            ends[-1] += 1
        else:
            starts.append(index)
            ends.append(index + 1)
    return starts, ends


class Rows(NamedTuple):
    """Messages as columns, each of shape (n,); `published` is None if it was not requested."""

    indexes: Indexes
    owners: NDArray[np.uint32]
    deadlines: Indexes
    delivered_at: Indexes
    attempts: NDArray[np.uint16]
    published: Indexes | None


class MessageMap:
    """Messages in flight by index; `len` is their number."""

    def __init__(self) -> None:
        self.clear()

    def __len__(self) -> int:
        return len(self._rows)

    def clear(self) -> None:
        """Remove all messages."""
        # Columns beside a dictionary, not one object per message: timeouts and the messages of one
        # owner are found by one comparison of a column.
        self._rows: dict[int, int] = {}
        self._free: list[int] = []
        self._used = 0
        self._index = np.empty(0, np.int64)
        self._owner = np.empty(0, np.uint32)
        self._deadline = np.empty(0, np.int64)
        self._delivered_at = np.empty(0, np.int64)
        self._attempts = np.empty(0, np.uint16)
        self._published: Indexes | None = None
        self.deadline_min = NEVER

    # Adding

    def add(self, added: Rows) -> None:
        """Add messages; none of them may be in this map already."""
        indexes = added.indexes.tolist()
        if not indexes:
            return
        rows = self._take_rows(len(indexes))
        self._rows.update(zip(indexes, rows, strict=True))
        self._index[rows] = added.indexes
        self._owner[rows] = added.owners
        self._deadline[rows] = added.deadlines
        self._delivered_at[rows] = added.delivered_at
        self._attempts[rows] = added.attempts
        if added.published is not None:
            self._published_column()[rows] = added.published
        elif self._published is not None:
            self._published[rows] = 0
        self.deadline_min = min(self.deadline_min, int(added.deadlines.min()))

    def add_run(
        self,
        indexes: Indexes,
        attempts: NDArray[np.integer],
        owner: int,
        *,
        now_ns: int,
        deadline_ns: int,
    ) -> None:
        """Add messages delivered to one owner at one time; none may be in this map already."""
        count = len(indexes)
        self.add(
            Rows(
                indexes,
                np.full(count, owner, np.uint32),
                np.full(count, deadline_ns, np.int64),
                np.full(count, now_ns, np.int64),
                attempts.astype(np.uint16),
                None,
            )
        )

    def _take_rows(self, count: int) -> list[int]:
        """Allocate free rows for `count` messages."""
        free = self._free
        kept = max(0, len(free) - count)
        rows = free[kept:]
        del free[kept:]
        end = self._used + count - len(rows)
        if end > len(self._owner):
            # By a quarter, so that adding n messages one by one copies O(n) rows in all.
            self._grow(max(ROWS_MIN, end * 5 // 4))
        rows += range(self._used, end)
        self._used = end
        return rows

    def _grow(self, larger: int) -> None:
        """Extend the columns to `larger` rows."""
        self._index = _resized(self._index, larger)
        self._owner = _resized(self._owner, larger)
        self._deadline = _resized(self._deadline, larger)
        self._delivered_at = _resized(self._delivered_at, larger)
        self._attempts = _resized(self._attempts, larger)
        if self._published is not None:
            self._published = _resized(self._published, larger)

    def _published_column(self) -> Indexes:
        if self._published is None:
            self._published = np.zeros(len(self._owner), np.int64)
        return self._published

    def note_published(self, indexes: Iterable[int], wall_ns: Iterable[int]) -> None:
        """Store when messages were published; messages that are not in this map are ignored."""
        column = self._published_column()
        for index, published_ns in zip(indexes, wall_ns, strict=True):
            row = self._rows.get(index)
            if row is not None:
                column[row] = published_ns

    # One message

    def owner_of(self, index: int) -> int:
        """The owner of a message; 0: the message is not in this map."""
        row = self._rows.get(index)
        # `item` returns a Python int; indexing would create a numpy scalar first.
        return 0 if row is None else self._owner.item(row)

    def remove(self, index: int) -> int:
        """Remove a message, which must be in this map; returns its deliveries so far."""
        row = self._rows.pop(index)
        self._owner[row] = 0
        self._free.append(row)
        attempts = self._attempts.item(row)
        self._shrink()
        return attempts

    def touch(self, index: int, deadline_ns: int, cap_ns: int) -> None:
        """Move the deadline of a message of this map, to at most delivery + `cap_ns`."""
        row = self._rows[index]
        deadline = min(deadline_ns, self._delivered_at.item(row) + cap_ns)
        self._deadline[row] = deadline
        self.deadline_min = min(self.deadline_min, deadline)

    # Many messages

    def owners(self, indexes: Indexes) -> NDArray[np.uint32]:
        """The owner of each message; 0 for messages that are not here."""
        rows = self._rows_of(indexes)
        found = rows >= 0
        owners = np.zeros(len(indexes), np.uint32)
        owners[found] = self._owner[rows[found]]
        return owners

    def rows(self, indexes: Indexes) -> Rows:
        """The columns of these messages, which must be in this map, without the publish times."""
        rows = self._rows_of(indexes)
        return Rows(
            indexes,
            self._owner[rows],
            self._deadline[rows],
            self._delivered_at[rows],
            self._attempts[rows],
            None,
        )

    def published(self, indexes: Indexes) -> Indexes:
        """The publish times of these messages, which must be in this map."""
        return self._published_column()[self._rows_of(indexes)]

    def remove_many(self, indexes: Indexes) -> None:
        """Remove messages, which must be in this map."""
        rows = list(map(self._rows.pop, indexes.tolist()))
        self._owner[rows] = 0
        self._free += rows
        self._shrink()

    def due(self, now_ns: int) -> Indexes:
        """The messages whose deadline has passed, ascending; `deadline_min` becomes exact."""
        taken = self._owner != 0
        due = taken & (self._deadline <= now_ns)
        later = self._deadline[taken & ~due]
        self.deadline_min = int(later.min()) if len(later) else NEVER
        return np.sort(self._index[due])

    def of_owner(self, owner: int) -> Indexes:
        """The messages of one owner, ascending."""
        return np.sort(self._index[self._owner == owner])

    def indexes(self) -> Indexes:
        """The indexes of all messages, ascending."""
        return np.sort(self._index[self._owner != 0])

    def attempts(self, indexes: Indexes) -> NDArray[np.uint16]:
        """The deliveries so far of these messages, which must be in this map."""
        return self._attempts[self._rows_of(indexes)]

    def _rows_of(self, indexes: Indexes) -> NDArray[np.int64]:
        """The row of each message; -1 for messages that are not here."""
        found = self._rows.get
        return np.array([found(index, -1) for index in indexes.tolist()], np.int64)

    def _shrink(self) -> None:
        """Release the memory of free rows when most rows are free."""
        if self._used <= 2 * max(len(self._rows), ROWS_MIN):
            return
        rows = np.flatnonzero(self._owner)
        published = self._published
        kept = Rows(
            self._index[rows],
            self._owner[rows],
            self._deadline[rows],
            self._delivered_at[rows],
            self._attempts[rows],
            None if published is None else published[rows],
        )
        self.clear()
        self.add(kept)


def _resized(column: NDArray[Item], size: int) -> NDArray[Item]:
    """Copy a column to this number of rows; new rows are 0."""
    larger = np.zeros(size, column.dtype)
    larger[: len(column)] = column
    return larger


PAGE_BITS: Final = 12
PAGE_SIZE: Final = 1 << PAGE_BITS
PAGE_MASK: Final = PAGE_SIZE - 1


class Page:
    """The state of 4,096 neighboring indexes; `attempts` None: all are at their first delivery."""

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
        # Only the owners are zeroed: the other columns count only where an owner is set.
        self.owner = np.zeros(PAGE_SIZE, np.uint32)
        self.deadline = np.empty(PAGE_SIZE, np.int64)
        self.delivered_at = np.empty(PAGE_SIZE, np.int64)
        # Made when a message needs them: first deliveries all have 1, and few channels are timed.
        self.attempts: NDArray[np.uint16] | None = None
        self.published: Indexes | None = None
        self.count = 0
        self.deadline_min = NEVER

    def rows(self, key: int, offsets: NDArray[np.int64]) -> Rows:
        """The messages at these offsets; `key` is the page's key."""
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


def rows_from(pages: Mapping[int, Page], scattered: MessageMap, first: int, count: int) -> Rows:
    """The first `count` messages at or after an index; fewer if there are no more."""
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


def rows_of(pages: Mapping[int, Page], scattered: MessageMap, indexes: Indexes) -> Rows:
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
    """Join several results into one, ascending; at most `count` rows, without publish times."""
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
