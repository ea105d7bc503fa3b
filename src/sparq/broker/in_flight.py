"""A channel's messages in flight, with owner and deadline, as rows of tables.

A page is a table of 4,096 neighboring indexes and exists only while one of them is in flight, so
memory depends on the messages in flight and not on the backlog. A page takes 90 KiB, and 32 KiB
more with publish times: where only a few of its messages are in flight, they are in one table of
scattered messages instead, at less than 300 bytes each. Owners are numbers that the channel assigns
to its sessions; 0 means no owner. Invariants:

1. `owner[row] != 0` exactly for messages in flight. A message is in one table at most.
2. `deadline_min` of a table is never above the earliest deadline of its messages. Finishing does
   not raise it, so a table may be checked too early but never too late.
3. An index that is in no table is simply not in flight: callers need not check indexes.
4. Beyond `pages_kept` pages, pages hold `PAGE_MESSAGES_MIN` messages on average.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparq.broker.options import NEVER
from sparq.protocol.frames import Run

Indexes = NDArray[np.int64]

PAGE_BITS: Final = 12
PAGE_SIZE: Final = 1 << PAGE_BITS
PAGE_MASK: Final = PAGE_SIZE - 1
SPARE_PAGES_MAX: Final = 16
PAGES_KEPT: Final = 16
"""This many pages are kept however few messages they hold: 1.4 MiB."""
PAGE_MESSAGES_MIN: Final = 448
"""A page with this many messages costs 200 bytes each."""
RUN_FOR_PAGE: Final = 64
"""A group of redeliveries smaller than this gets no new page."""
SCATTERED_KEPT: Final = 1024
"""The table of scattered messages is kept if it has this many rows at most, even if it is empty."""

DEAD_LETTERS: Final = 1
"""Owner of messages on their way to or from a dead-letter topic: no session."""

NOT_IN_FLIGHT: Final = 0
NOT_OWNED: Final = -1


class Freed(NamedTuple):
    """The result of finishing a run of messages.

    Attributes:
        starts, ends: the finished indexes as ranges [start, end), ascending.
        freed: number of finished indexes.
        failures: (position in the run, NOT_IN_FLIGHT or NOT_OWNED), ascending.
    """

    starts: Sequence[int]
    ends: Sequence[int]
    freed: int
    failures: list[tuple[int, int]]


class Rows(NamedTuple):
    """Messages in flight as columns, each of shape (n,), ascending by index; a copy."""

    indexes: Indexes
    owners: NDArray[np.uint32]
    deadlines: Indexes
    delivered_at: Indexes
    attempts: NDArray[np.uint16]


class Table:
    """Messages in flight by columns.

    Attributes:
        published: None until a publish time is noted.
        first: in a page, the index of the first row.
        index: in the table of scattered messages, the index of each row.
    """

    def __init__(self, size: int, *, is_page: bool = True) -> None:
        # Only the owners are zeroed: the other columns count only where an owner is set.
        self.owner = np.zeros(size, np.uint32)
        self.deadline = np.empty(size, np.int64)
        self.delivered_at = np.empty(size, np.int64)
        self.attempts = np.empty(size, np.uint16)
        self.published: Indexes | None = None
        self.first = 0
        self.index = None if is_page else np.empty(size, np.int64)
        self.count = 0
        self.deadline_min = NEVER

    def put(
        self,
        rows: slice | Indexes,
        count: int,
        *,
        owner: int | NDArray[np.uint32],
        deadline_ns: int | Indexes,
        now_ns: int | Indexes,
        attempts: int | NDArray[np.integer],
    ) -> None:
        """Fill this number of free rows."""
        self.owner[rows] = owner
        self.deadline[rows] = deadline_ns
        self.delivered_at[rows] = now_ns
        self.attempts[rows] = attempts
        self.count += count
        earliest_ns = deadline_ns if isinstance(deadline_ns, int) else int(deadline_ns.min())
        self.deadline_min = min(self.deadline_min, earliest_ns)

    def note_published(self, rows: Indexes, wall_ns: Indexes) -> None:
        """Store when the messages in these rows were published."""
        if self.published is None:
            self.published = np.zeros(len(self.owner), np.int64)
        self.published[rows] = wall_ns

    def rows(self, at: Indexes) -> Rows:
        """The messages in these rows."""
        return Rows(
            at + self.first if self.index is None else self.index[at],
            self.owner[at],
            self.deadline[at],
            self.delivered_at[at],
            self.attempts[at],
        )


_SPARE_PAGES: Final[list[Table]] = []
"""Empty pages, shared by all channels: a channel that keeps up empties its page in every turn, and
needs one in the next."""

_NO_ROWS: Final = Table(0).rows(np.empty(0, np.int64))


class InFlight:
    """The messages that a channel has delivered and that are not finished or requeued."""

    def __init__(self, pages_kept: int = PAGES_KEPT) -> None:
        self.count = 0
        self._pages: dict[int, Table] = {}
        self._pages_kept = pages_kept
        self._scattered = Table(0, is_page=False)
        self._scattered_rows: dict[int, int] = {}
        self._free_rows: list[int] = []

    # Delivering

    def note_run(
        self,
        first: int,
        end: int,
        owner: int | NDArray[np.uint32],
        *,
        now_ns: int,
        deadline_ns: int | Indexes,
    ) -> None:
        """Note the first delivery of all messages [first, end).

        Owner and deadline are one number for all of them or, within one page, one for each.
        """
        self.count += end - first
        while first < end:
            low = first & PAGE_MASK
            count = min(end - first, PAGE_SIZE - low)
            page = self._page(first >> PAGE_BITS)
            page.put(
                slice(low, low + count),
                count,
                owner=owner,
                deadline_ns=deadline_ns,
                now_ns=now_ns,
                attempts=1,
            )
            first += count
        self._thin_out()

    def note_many(
        self,
        indexes: Indexes,
        attempts: NDArray[np.integer],
        owner: int,
        *,
        now_ns: int,
        deadline_ns: int,
    ) -> None:
        """Note deliveries of ascending indexes, each with its own number of attempts."""
        self.count += len(indexes)
        for key, low, high in page_groups(indexes):
            # Redeliveries are scattered: 5,500 of them in as many pages took 432 MiB.
            if key not in self._pages and high - low < RUN_FOR_PAGE:
                rows = self._new_rows(indexes[low:high])
                table = self._scattered
            else:
                rows = indexes[low:high] & PAGE_MASK
                table = self._page(key)
            table.put(
                rows,
                high - low,
                owner=owner,
                deadline_ns=deadline_ns,
                now_ns=now_ns,
                attempts=attempts[low:high],
            )
        self._thin_out()

    def note_published(self, indexes: Indexes, wall_ns: Indexes) -> None:
        """Store when messages were published; ignored for messages that are not in flight."""
        for table, rows, at in self._located(indexes):
            table.note_published(rows, wall_ns[at])

    def published(self, indexes: Run | list[int], owner: int) -> Indexes:
        """Publish times of those messages that this owner has; duplicates count once."""
        # As in `finish`, where an id that occurs twice succeeds once.
        ascending = np.unique(np.asarray(indexes, np.int64))
        found = [np.empty(0, np.int64)]
        for table, rows, _ in self._located(ascending):
            if table.published is not None:
                found.append(table.published[rows[table.owner[rows] == owner]])
        return np.concatenate(found)

    def _page(self, key: int) -> Table:
        page = self._pages.get(key)
        if page is None:
            page = self._pages[key] = _SPARE_PAGES.pop() if _SPARE_PAGES else Table(PAGE_SIZE)
            page.first = key << PAGE_BITS
        return page

    def _new_rows(self, indexes: Indexes) -> Indexes:
        """Give these messages rows in the table of scattered messages."""
        size, missing = len(self._scattered.owner), len(indexes) - len(self._free_rows)
        if missing > 0:
            # Doubled, so that a message is copied once on average.
            before, grown = self._scattered, Table(2 * size + missing, is_page=False)
            for column in ("owner", "deadline", "delivered_at", "attempts", "index"):
                getattr(grown, column)[:size] = getattr(before, column)
            if before.published is not None:
                grown.note_published(np.arange(size), before.published)
            grown.count, grown.deadline_min = before.count, before.deadline_min
            self._scattered = grown
            self._free_rows += range(size, len(grown.owner))
        rows = self._free_rows[-len(indexes) :]
        del self._free_rows[-len(indexes) :]
        self._scattered_rows.update(zip(indexes.tolist(), rows, strict=True))
        assert self._scattered.index is not None
        self._scattered.index[rows] = indexes
        return np.array(rows, np.int64)

    def _thin_out(self) -> None:
        """Move the messages of sparse pages to `_scattered` if there are too many pages."""
        beyond = len(self._pages) - self._pages_kept
        if beyond <= 0 or beyond * PAGE_MESSAGES_MIN <= self.count - self._scattered.count:
            return
        for page in [page for page in self._pages.values() if page.count < PAGE_MESSAGES_MIN]:
            at = np.flatnonzero(page.owner)
            moved, rows = page.rows(at), self._new_rows(at + page.first)
            self._scattered.put(
                rows,
                len(at),
                owner=moved.owners,
                deadline_ns=moved.deadlines,
                now_ns=moved.delivered_at,
                attempts=moved.attempts,
            )
            if page.published is not None:
                self._scattered.note_published(rows, page.published[at])
            self._free(page, at, len(at))
            self.count += len(at)

    # Taking back

    def finish(self, indexes: Run | list[int], owner: int) -> Freed:
        """Free a run of messages; an index that occurs twice is freed once and fails once."""
        if isinstance(indexes, list):
            freed = self._finish_few(indexes, owner)
        elif isinstance(indexes, range):
            if self._finish_range(indexes.start, indexes.stop, owner):
                freed = Freed([indexes.start], [indexes.stop], len(indexes), [])
            else:
                freed = self._finish_many(np.arange(indexes.start, indexes.stop), owner)
        else:
            freed = self._finish_many(indexes, owner)
        if len(self._pages) > self._pages_kept:
            self._thin_out()
        return freed

    def _finish_range(self, first: int, end: int, owner: int) -> bool:
        """Free the messages [first, end) if all are in pages and have this owner."""
        # Compared as bytes, a page at a time: nearly always the whole run is one session's. With
        # `_finish_many` a FIN took 8 % more CPU at RDY 200.
        one = np.uint32(owner).tobytes()
        parts: list[tuple[Table, slice]] = []
        at = first
        while at < end:
            low = at & PAGE_MASK
            page, high = self._pages.get(at >> PAGE_BITS), min(low + end - at, PAGE_SIZE)
            if page is None or page.owner[low:high].tobytes() != one * (high - low):
                return False
            parts.append((page, slice(low, high)))
            at += high - low
        for page, part in parts:
            page.owner[part] = 0
            self._shrink(page, part.stop - part.start)
        return True

    def _finish_few(self, indexes: list[int], owner: int) -> Freed:
        # Without arrays, whose calls cost more for a few indexes than this loop.
        freed: list[int] = []
        failures: list[tuple[int, int]] = []
        for position, index in enumerate(indexes):
            table, row, found = self._find(index)
            if found == owner:
                self._free(table, row, 1)
                freed.append(index)
            else:
                failures.append((position, NOT_OWNED if found else NOT_IN_FLIGHT))
        if len(freed) == 1:
            return Freed(freed, [freed[0] + 1], 1, failures)
        starts: list[int] = []
        ends: list[int] = []
        for index in sorted(freed):
            if ends and ends[-1] == index:
                ends[-1] += 1
            else:
                starts.append(index)
                ends.append(index + 1)
        return Freed(starts, ends, len(freed), failures)

    def _finish_many(self, indexes: Indexes, owner: int) -> Freed:
        # Stable: of an id that occurs twice, the first FIN succeeds.
        order = np.argsort(indexes, kind="stable")
        ascending = indexes[order]
        owners = np.zeros(len(indexes), np.uint32)
        for table, rows, at in self._located(ascending):
            owners[at] = table.owner[rows]
        mine = owners == owner
        mine[1:] &= ascending[1:] != ascending[:-1]
        freed = ascending[mine]
        self._free_all(freed)
        failures = [
            (int(order[at]), NOT_OWNED if owners[at] not in (0, owner) else NOT_IN_FLIGHT)
            for at in np.flatnonzero(~mine).tolist()
        ]
        return Freed(*ranges_of(freed), len(freed), sorted(failures))

    def _find(self, index: int) -> tuple[Table, int, int]:
        """The table and the row of a message, and its owner; 0: it is not in flight."""
        page = self._pages.get(index >> PAGE_BITS)
        # `item` returns a Python int; indexing would create a numpy scalar first.
        if page is not None and (owner := page.owner.item(index & PAGE_MASK)):
            return page, index & PAGE_MASK, owner
        row = self._scattered_rows.get(index, -1)
        return self._scattered, row, 0 if row < 0 else self._scattered.owner.item(row)

    def _located(self, ascending: Indexes) -> Iterator[tuple[Table, Indexes, Indexes]]:
        """Of messages in flight: a table, rows in it, and their positions among the indexes."""
        for key, low, high in page_groups(ascending):
            page = self._pages.get(key)
            if page is not None:
                rows = ascending[low:high] & PAGE_MASK
                here = np.flatnonzero(page.owner[rows])
                yield page, rows[here], here + low
        if self._scattered_rows:
            rows = np.array([self._scattered_rows.get(i, -1) for i in ascending.tolist()], np.int64)
            here = np.flatnonzero(rows >= 0)
            yield self._scattered, rows[here], here

    def _free(self, table: Table, rows: int | Indexes, count: int) -> None:
        """Free rows of messages in flight."""
        table.owner[rows] = 0
        if table.index is not None:
            self._free_rows += np.atleast_1d(rows).tolist()
            for index in np.atleast_1d(table.index[rows]).tolist():
                del self._scattered_rows[index]
        self._shrink(table, count)

    def _shrink(self, table: Table, count: int) -> None:
        self.count -= count
        table.count -= count
        if table.count:
            return
        table.deadline_min = NEVER
        if table.index is not None:
            if len(table.owner) > SCATTERED_KEPT:
                self._scattered, self._free_rows = Table(0, is_page=False), []
            return
        del self._pages[table.first >> PAGE_BITS]
        if len(_SPARE_PAGES) < SPARE_PAGES_MAX:
            # All owners are 0 now; the other columns count only where an owner is set.
            table.published = None
            _SPARE_PAGES.append(table)

    def _free_all(self, ascending: Indexes) -> None:
        """Free those of these messages that are in flight."""
        for table, rows, _ in self._located(ascending):
            self._free(table, rows, len(rows))

    def release(self, index: int, owner: int) -> int:
        """Take one message back; returns its deliveries so far, NOT_IN_FLIGHT or NOT_OWNED."""
        table, row, found = self._find(index)
        if found != owner:
            return NOT_OWNED if found else NOT_IN_FLIGHT
        attempts = table.attempts.item(row)
        self._free(table, row, 1)
        return attempts

    def touch(self, index: int, owner: int, deadline_ns: int, cap_ns: int) -> int:
        """Set a deadline, to delivery + `cap_ns` at most; returns 1, NOT_IN_FLIGHT or NOT_OWNED."""
        table, row, found = self._find(index)
        if found != owner:
            return NOT_OWNED if found else NOT_IN_FLIGHT
        deadline_ns = min(deadline_ns, table.delivered_at.item(row) + cap_ns)
        table.deadline[row] = deadline_ns
        table.deadline_min = min(table.deadline_min, deadline_ns)
        return 1

    def expire(self, now_ns: int) -> Rows:
        """Take back all messages whose deadline has passed."""
        found: list[Rows] = []
        for table in self._tables():
            if table.deadline_min <= now_ns:
                taken = table.owner != 0
                due = taken & (table.deadline <= now_ns)
                # Exact again: finished messages leave the minimum too low (invariant 2).
                later = table.deadline[taken & ~due]
                table.deadline_min = int(later.min()) if len(later) else NEVER
                found.append(table.rows(np.flatnonzero(due)))
        return self._take(joined(found))

    def release_owner(self, owner: int) -> Rows:
        """Take back all messages of one owner."""
        found = [table.rows(np.flatnonzero(table.owner == owner)) for table in self._tables()]
        return self._take(joined(found))

    def take(self, indexes: Indexes) -> Rows:
        """Take back those of these ascending indexes that are in flight, from any owner."""
        return self._take(self.rows_of(indexes))

    def _take(self, rows: Rows) -> Rows:
        self._free_all(rows.indexes)
        self._thin_out()
        return rows

    # Inspecting

    def _tables(self) -> list[Table]:
        return [*self._pages.values(), self._scattered]

    def next_deadline_ns(self) -> int:
        """A lower bound of the earliest deadline; NEVER: no message is in flight."""
        return min(table.deadline_min for table in self._tables())

    def rows(self) -> Rows:
        """All messages in flight."""
        return joined([table.rows(np.flatnonzero(table.owner)) for table in self._tables()])

    def rows_of(self, indexes: Indexes) -> Rows:
        """Those of these ascending indexes that are in flight."""
        return joined([table.rows(rows) for table, rows, _ in self._located(indexes)])

    def indexes(self) -> Indexes:
        """The indexes of all messages in flight, ascending."""
        return self.rows().indexes


def joined(found: Sequence[Rows]) -> Rows:
    """Join several results into one, ascending."""
    columns = [np.concatenate(parts) for parts in zip(_NO_ROWS, *found, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return Rows(*(column[order] for column in columns))


def page_groups(indexes: Indexes) -> Iterator[tuple[int, int, int]]:
    """(page key, from, to) for each page that a run of ascending indexes touches."""
    if len(indexes):
        keys = indexes >> PAGE_BITS
        bounds = [0, *(np.flatnonzero(keys[1:] != keys[:-1]) + 1).tolist(), len(indexes)]
        for low, high in pairwise(bounds):
            yield int(keys[low]), low, high


def ranges_of(indexes: Indexes) -> tuple[list[int], list[int]]:
    """Convert ascending indexes without duplicates to ranges: (starts, ends)."""
    if not len(indexes):
        return [], []
    breaks = np.flatnonzero(indexes[1:] - indexes[:-1] != 1)
    starts = [int(indexes[0]), *indexes[breaks + 1].tolist()]
    ends = [*(indexes[breaks] + 1).tolist(), int(indexes[-1]) + 1]
    return starts, ends
