"""A channel's messages in flight, with owner and deadline: arrays over pages of indexes.

A page covers 4,096 indexes and exists only while one of them is in flight, so memory depends on the
messages in flight and not on the backlog. Where only a few messages of a page are in flight, they
are in a dictionary instead, at about 300 bytes each: a page takes 90 KiB. Owners are numbers that
the channel assigns to its sessions; 0 means no owner. Invariants:

1. `owner[i] != 0` exactly for messages in flight in a page; `count` is the number in flight in
   all. A message is either in a page or in `scattered`, never in both.
2. `deadline_min` of a page is never above the earliest deadline of its messages. Finishing does not
   raise it, so a page may be checked too early but never too late.
3. An index that is in neither place is simply not in flight: callers need not check indexes.
4. Beyond `pages_kept` pages, pages hold `PAGE_MESSAGES_MIN` messages on average.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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


class Flight(NamedTuple):
    """A message in flight outside the pages; times in ns, `published_ns` of the wall clock."""

    owner: int
    deadline_ns: int
    delivered_ns: int
    attempts: int
    published_ns: int = 0


class Page:
    """The state of 4,096 neighboring indexes; `published` is None until a publish time is noted."""

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
        self.attempts = np.empty(PAGE_SIZE, np.uint16)
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
            self.attempts[offsets],
        )


_SPARE_PAGES: Final[list[Page]] = []
"""Empty pages, shared by all channels: a channel that keeps up empties its page in every turn, and
needs one in the next."""


class InFlight:
    """The messages that a channel has delivered and that are not finished or requeued."""

    def __init__(self, pages_kept: int = PAGES_KEPT) -> None:
        self.count = 0
        self._pages: dict[int, Page] = {}
        self._pages_kept = pages_kept
        self._scattered: dict[int, Flight] = {}
        self._scattered_min_ns = NEVER

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
        earliest_ns = deadline_ns if isinstance(deadline_ns, int) else int(deadline_ns.min())
        while first < end:
            page = self._page(first >> PAGE_BITS)
            low = first & PAGE_MASK
            high = min(low + end - first, PAGE_SIZE)
            page.owner[low:high] = owner
            page.deadline[low:high] = deadline_ns
            page.delivered_at[low:high] = now_ns
            page.attempts[low:high] = 1
            page.count += high - low
            page.deadline_min = min(page.deadline_min, earliest_ns)
            first += high - low
        if len(self._pages) > self._pages_kept:
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
                counts = attempts[low:high].tolist()
                for index, count in zip(indexes[low:high].tolist(), counts, strict=True):
                    self._scattered[index] = Flight(owner, deadline_ns, now_ns, count)
                self._scattered_min_ns = min(self._scattered_min_ns, deadline_ns)
                continue
            page = self._page(key)
            offsets = indexes[low:high] & PAGE_MASK
            page.owner[offsets] = owner
            page.deadline[offsets] = deadline_ns
            page.delivered_at[offsets] = now_ns
            page.attempts[offsets] = attempts[low:high]
            page.count += high - low
            page.deadline_min = min(page.deadline_min, deadline_ns)
        if len(self._pages) > self._pages_kept:
            self._thin_out()

    def note_published(self, indexes: Indexes, wall_ns: Indexes) -> None:
        """Store when messages were published; ignored for messages that are not in flight."""
        if self._scattered:
            for index, published_ns in zip(indexes.tolist(), wall_ns.tolist(), strict=True):
                if (flight := self._scattered.get(index)) is not None:
                    self._scattered[index] = flight._replace(published_ns=published_ns)
        for key, low, high in page_groups(indexes):
            page = self._pages.get(key)
            if page is None:
                continue
            if page.published is None:
                page.published = np.zeros(PAGE_SIZE, np.int64)
            page.published[indexes[low:high] & PAGE_MASK] = wall_ns[low:high]

    def published(self, indexes: Run | list[int], owner: int) -> Indexes:
        """Publish times of those messages that this owner has; duplicates count once."""
        # As in `finish`, where an id that occurs twice succeeds once.
        ascending = np.unique(np.asarray(indexes, np.int64))
        found = [np.empty(0, np.int64)]
        for key, low, high in page_groups(ascending):
            page = self._pages.get(key)
            if page is not None and page.published is not None:
                offsets = ascending[low:high] & PAGE_MASK
                found.append(page.published[offsets[page.owner[offsets] == owner]])
        if self._scattered:
            flights = map(self._scattered.get, ascending.tolist())
            times = [f.published_ns for f in flights if f is not None and f.owner == owner]
            found.append(np.array(times, np.int64))
        return np.concatenate(found)

    def _page(self, key: int) -> Page:
        page = self._pages.get(key)
        if page is None:
            page = self._pages[key] = _SPARE_PAGES.pop() if _SPARE_PAGES else Page()
        return page

    def _thin_out(self) -> None:
        """Move the messages of sparsely filled pages to `scattered` if there are too many pages."""
        beyond = len(self._pages) - self._pages_kept
        if beyond * PAGE_MESSAGES_MIN <= self.count - len(self._scattered):
            return
        for key, page in list(self._pages.items()):
            if page.count < PAGE_MESSAGES_MIN:
                offsets = np.flatnonzero(page.owner)
                rows = page.rows(key, offsets)
                times = np.zeros(len(offsets), np.int64)
                if page.published is not None:
                    times = page.published[offsets]
                flights = map(Flight, *(column.tolist() for column in (*rows[1:], times)))
                self._scattered.update(zip(rows.indexes.tolist(), flights, strict=True))
                self._scattered_min_ns = min(self._scattered_min_ns, page.deadline_min)
                page.owner[offsets] = 0
                self._shrink(key, page, len(offsets))

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
        parts: list[tuple[int, Page, slice]] = []
        at = first
        while at < end:
            key, low = at >> PAGE_BITS, at & PAGE_MASK
            page, high = self._pages.get(key), min(low + end - at, PAGE_SIZE)
            if page is None or page.owner[low:high].tobytes() != one * (high - low):
                return False
            parts.append((key, page, slice(low, high)))
            at += high - low
        for key, page, part in parts:
            page.owner[part] = 0
            self._shrink(key, page, part.stop - part.start)
        self.count -= end - first
        return True

    def _finish_few(self, indexes: list[int], owner: int) -> Freed:
        # Without arrays, whose calls cost more for a few indexes than this loop.
        freed: list[int] = []
        failures: list[tuple[int, int]] = []
        for position, index in enumerate(indexes):
            page, found = self._find(index)
            if found == owner:
                self._free(index, page)
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
        for key, low, high in page_groups(ascending):
            page = self._pages.get(key)
            if page is not None:
                owners[low:high] = page.owner[ascending[low:high] & PAGE_MASK]
        if self._scattered:
            for at in np.flatnonzero(owners == 0).tolist():
                if (flight := self._scattered.get(int(ascending[at]))) is not None:
                    owners[at] = flight.owner
        mine = owners == owner
        mine[1:] &= ascending[1:] != ascending[:-1]
        freed = ascending[mine]
        self._free_many(freed)
        failures = [
            (int(order[at]), NOT_OWNED if owners[at] not in (0, owner) else NOT_IN_FLIGHT)
            for at in np.flatnonzero(~mine).tolist()
        ]
        return Freed(*ranges_of(freed), len(freed), sorted(failures))

    def _find(self, index: int) -> tuple[Page | None, int]:
        """The page that has a message, None if none has it, and the message's owner or 0."""
        page = self._pages.get(index >> PAGE_BITS)
        # `item` returns a Python int; indexing would create a numpy scalar first.
        if page is not None and (owner := page.owner.item(index & PAGE_MASK)):
            return page, owner
        flight = self._scattered.get(index)
        return None, 0 if flight is None else flight.owner

    def _free(self, index: int, page: Page | None) -> None:
        """Free a message that is in this page, or in `scattered` (None)."""
        self.count -= 1
        if page is None:
            del self._scattered[index]
        else:
            page.owner[index & PAGE_MASK] = 0
            self._shrink(index >> PAGE_BITS, page, 1)

    def _free_many(self, freed: Indexes) -> None:
        """Free messages that are in flight; `freed` is ascending."""
        self.count -= len(freed)
        for key, low, high in page_groups(freed):
            page = self._pages.get(key)
            apart = freed[low:high]
            if page is not None:
                offsets = apart & PAGE_MASK
                apart = apart[page.owner[offsets] == 0]
                page.owner[offsets] = 0
                self._shrink(key, page, high - low - len(apart))
            for index in apart.tolist():
                del self._scattered[index]

    def _shrink(self, key: int, page: Page, count: int) -> None:
        page.count -= count
        if not page.count:
            del self._pages[key]
            if len(_SPARE_PAGES) < SPARE_PAGES_MAX:
                # All owners are 0 now; the other columns count only where an owner is set.
                page.published = None
                page.deadline_min = NEVER
                _SPARE_PAGES.append(page)

    def release(self, index: int, owner: int) -> int:
        """Take one message back; returns its deliveries so far, NOT_IN_FLIGHT or NOT_OWNED."""
        page, found = self._find(index)
        if found != owner:
            return NOT_OWNED if found else NOT_IN_FLIGHT
        attempts = (
            self._scattered[index].attempts
            if page is None
            else page.attempts.item(index & PAGE_MASK)
        )
        self._free(index, page)
        return attempts

    def touch(self, index: int, owner: int, deadline_ns: int, cap_ns: int) -> int:
        """Set a deadline, to delivery + `cap_ns` at most; returns 1, NOT_IN_FLIGHT or NOT_OWNED."""
        page, found = self._find(index)
        if found != owner:
            return NOT_OWNED if found else NOT_IN_FLIGHT
        if page is None:
            flight = self._scattered[index]
            deadline_ns = min(deadline_ns, flight.delivered_ns + cap_ns)
            self._scattered[index] = flight._replace(deadline_ns=deadline_ns)
            self._scattered_min_ns = min(self._scattered_min_ns, deadline_ns)
        else:
            offset = index & PAGE_MASK
            deadline_ns = min(deadline_ns, page.delivered_at.item(offset) + cap_ns)
            page.deadline[offset] = deadline_ns
            page.deadline_min = min(page.deadline_min, deadline_ns)
        return 1

    def expire(self, now_ns: int) -> Rows:
        """Take back all messages whose deadline has passed."""
        found: list[Rows] = []
        for key, page in self._pages.items():
            if page.deadline_min <= now_ns:
                taken = page.owner != 0
                due = taken & (page.deadline <= now_ns)
                # Exact again: finished messages leave the minimum too low (invariant 2).
                later = page.deadline[taken & ~due]
                page.deadline_min = int(later.min()) if len(later) else NEVER
                found.append(page.rows(key, np.flatnonzero(due)))
        if self._scattered_min_ns <= now_ns:
            scattered = self._scattered
            due_indexes = [i for i, one in scattered.items() if one.deadline_ns <= now_ns]
            found.append(self._scattered_rows(due_indexes))
            later_ns = (one.deadline_ns for one in scattered.values() if one.deadline_ns > now_ns)
            self._scattered_min_ns = min(later_ns, default=NEVER)
        return self._take(joined(found))

    def release_owner(self, owner: int) -> Rows:
        """Take back all messages of one owner."""
        found = [
            page.rows(key, np.flatnonzero(page.owner == owner)) for key, page in self._pages.items()
        ]
        mine = [index for index, one in self._scattered.items() if one.owner == owner]
        return self._take(joined([*found, self._scattered_rows(mine)]))

    def take(self, indexes: Indexes) -> Rows:
        """Take back those of these ascending indexes that are in flight, from any owner."""
        return self._take(self.rows_of(indexes))

    def _take(self, rows: Rows) -> Rows:
        self._free_many(rows.indexes)
        if len(self._pages) > self._pages_kept:
            self._thin_out()
        return rows

    def clear(self) -> None:
        """Drop all messages, for example when a channel is emptied."""
        self.count = 0
        self._pages.clear()
        self._scattered.clear()

    # Inspecting

    def next_deadline_ns(self) -> int:
        """A lower bound of the earliest deadline; NEVER: no message is in flight."""
        found = self._scattered_min_ns if self._scattered else NEVER
        return min([found, *(page.deadline_min for page in self._pages.values())])

    def rows(self) -> Rows:
        """All messages in flight."""
        found = [page.rows(key, np.flatnonzero(page.owner)) for key, page in self._pages.items()]
        return joined([*found, self._scattered_rows(self._scattered)])

    def rows_of(self, indexes: Indexes) -> Rows:
        """Those of these ascending indexes that are in flight."""
        found: list[Rows] = []
        for key, low, high in page_groups(indexes):
            page = self._pages.get(key)
            if page is not None:
                offsets = indexes[low:high] & PAGE_MASK
                found.append(page.rows(key, offsets[page.owner[offsets] != 0]))
        scattered = [index for index in indexes.tolist() if index in self._scattered]
        return joined([*found, self._scattered_rows(scattered)])

    def _scattered_rows(self, indexes: Iterable[int]) -> Rows:
        """These messages of `scattered`, ascending."""
        found = [(index, *self._scattered[index]) for index in sorted(indexes)]
        columns = np.array(found, np.int64).reshape(-1, 1 + len(Flight._fields)).T
        index, owner, deadline, delivered, attempts, _ = columns
        return Rows(index, owner.astype(np.uint32), deadline, delivered, attempts.astype(np.uint16))

    def indexes(self) -> Indexes:
        """The indexes of all messages in flight, in no particular order."""
        found = [
            np.flatnonzero(page.owner) + (key << PAGE_BITS) for key, page in self._pages.items()
        ]
        scattered = np.fromiter(self._scattered, np.int64, len(self._scattered))
        return np.concatenate([*found, scattered])


def joined(found: Sequence[Rows]) -> Rows:
    """Join several results into one, ascending."""
    if len(found) == 1:
        return found[0]
    if not found:
        none = np.empty(0, np.int64)
        return Rows(none, none.astype(np.uint32), none, none, none.astype(np.uint16))
    indexes, *others = (np.concatenate(columns) for columns in zip(*found, strict=True))
    order = np.argsort(indexes, kind="stable")
    return Rows(indexes[order], *(column[order] for column in others))


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
