"""A channel's messages in flight, with owner and deadline: arrays over pages of indexes.

A page covers 4,096 indexes and exists only while one of them is in flight, so memory depends on the
messages in flight and not on the backlog. Pages with few messages are emptied into
`slots.MessageMap`, where a message costs 180 bytes and not 80 KiB. Owners are numbers that the
channel assigns to its sessions; 0 means no owner. Invariants:

1. `owner[i] != 0` exactly for messages in flight in a page; `count` is the number in flight in
   all. A message is either in a page or in `scattered`, never in both.
2. `deadline_min` of a page is never above the earliest deadline of its messages. Finishing does not
   raise it, so a page may be checked too early but never too late.
3. An index that is in neither place is simply not in flight: callers need not check indexes.
4. Beyond `pages_kept` pages, pages hold `PAGE_MESSAGES_MIN` messages on average, so that each
   message costs at most 200 bytes there, too.
5. Functions over runs have an array path and, below 16 items, a plain one with the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparq.broker import slots
from sparq.broker.options import NEVER
from sparq.broker.slots import PAGE_BITS, PAGE_MASK, PAGE_SIZE, MessageMap, Page, Rows, page_groups
from sparq.protocol.frames import Run

Indexes = NDArray[np.int64]

SPARE_PAGES_MAX: Final = 16
PAGES_KEPT: Final = 16
"""This many pages are kept however few messages they hold: 1.4 MiB."""
PAGE_MESSAGES_MIN: Final = 448
"""A page with this many messages costs 200 bytes each: 20 bytes per slot, and 2 for attempts."""
RUN_FOR_PAGE: Final = 64
"""A group of redeliveries smaller than this gets no new page."""

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


class Expired(NamedTuple):
    """Messages that were taken back: indexes (ascending), deliveries so far and owners."""

    indexes: Indexes
    attempts: NDArray[np.uint16]
    owners: NDArray[np.uint32]


_SPARE_PAGES: Final[list[Page]] = []
"""Empty pages, shared by all channels: a channel that keeps up empties its page in every turn, and
needs one in the next."""


class InFlight:
    """The messages that a channel has delivered and that are not finished or requeued."""

    def __init__(self, pages_kept: int = PAGES_KEPT) -> None:
        self.count = 0
        self._pages: dict[int, Page] = {}
        self._pages_kept = pages_kept
        self._scattered = MessageMap()

    # Delivering

    def note_run(self, first: int, end: int, owner: int, *, now_ns: int, deadline_ns: int) -> None:
        """Note the first delivery of all messages [first, end) to one owner."""
        self.count += end - first
        while first < end:
            page = self._page(first >> PAGE_BITS)
            low = first & PAGE_MASK
            high = min(low + end - first, PAGE_SIZE)
            page.owner[low:high] = owner
            page.deadline[low:high] = deadline_ns
            page.delivered_at[low:high] = now_ns
            # Without this column all attempts are 1: most pages never need it.
            if page.attempts is not None:
                page.attempts[low:high] = 1
            page.count += high - low
            page.deadline_min = min(page.deadline_min, deadline_ns)
            first += high - low
        if len(self._pages) > self._pages_kept:
            self._thin_out()

    def note_shares(
        self, first: int, counts: list[int], owners: list[int], deadlines: list[int], now_ns: int
    ) -> None:
        """Note first deliveries within one page, from `first` on: `counts[i]` to `owners[i]`."""
        page, total = self._page(first >> PAGE_BITS), sum(counts)
        places = slice(first & PAGE_MASK, (first & PAGE_MASK) + total)
        page.owner[places] = np.repeat(np.array(owners, np.uint32), counts)
        page.deadline[places] = np.repeat(np.array(deadlines, np.int64), counts)
        page.delivered_at[places] = now_ns
        if page.attempts is not None:
            page.attempts[places] = 1
        page.count += total
        page.deadline_min = min(page.deadline_min, *deadlines)
        self.count += total
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
        if not len(indexes):
            return
        self.count += len(indexes)
        apart = np.zeros(len(indexes), np.bool_)
        for key, low, high in page_groups(indexes):
            # Redeliveries are scattered: 5,500 of them in as many pages took 432 MiB, now 1.9 MiB.
            if key not in self._pages and high - low < RUN_FOR_PAGE:
                apart[low:high] = True
                continue
            page = self._page(key)
            offsets = indexes[low:high] & PAGE_MASK
            if page.attempts is None:
                page.attempts = np.ones(PAGE_SIZE, np.uint16)
            page.owner[offsets] = owner
            page.deadline[offsets] = deadline_ns
            page.delivered_at[offsets] = now_ns
            page.attempts[offsets] = attempts[low:high]
            page.count += high - low
            page.deadline_min = min(page.deadline_min, deadline_ns)
        if apart.any():
            self._scattered.add_run(
                indexes[apart], attempts[apart], owner, now_ns=now_ns, deadline_ns=deadline_ns
            )
        if len(self._pages) > self._pages_kept:
            self._thin_out()

    def note_published(self, indexes: Indexes, wall_ns: Indexes) -> None:
        """Store when messages were published; ignored for messages that are not in flight."""
        if len(self._scattered):
            self._scattered.note_published(indexes.tolist(), wall_ns.tolist())
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
        mine = ascending[self._owners(ascending) == owner]
        found = np.zeros(len(mine), np.int64)
        apart = np.ones(len(mine), np.bool_)
        for key, low, high in page_groups(mine) if len(mine) else ():
            page = self._pages.get(key)
            if page is not None and page.published is not None:
                offsets = mine[low:high] & PAGE_MASK
                found[low:high] = page.published[offsets]
                apart[low:high] = page.owner[offsets] == 0
        if apart.any():
            found[apart] = self._scattered.published(mine[apart])
        return found

    def take(self, indexes: Indexes) -> Expired:
        """Take back those of these ascending indexes that are in flight, from any owner."""
        rows = self.rows_of(indexes)
        self._free_many(rows.indexes)
        return self._taken([Expired(rows.indexes, rows.attempts, rows.owners)])

    def _thin_out(self) -> None:
        """Move sparsely filled pages into `scattered` if there are too many of them."""
        beyond = len(self._pages) - self._pages_kept
        if beyond * PAGE_MESSAGES_MIN <= self.count - len(self._scattered):
            return
        for key, page in list(self._pages.items()):
            if page.count < PAGE_MESSAGES_MIN:
                offsets = np.flatnonzero(page.owner)
                self._scattered.add(page.rows(key, offsets))
                page.owner[offsets] = 0
                self._shrink(key, page, len(offsets))

    def _sorted(self) -> list[tuple[int, Page]]:
        return sorted(self._pages.items(), key=itemgetter(0))

    def _page(self, key: int) -> Page:
        page = self._pages.get(key)
        if page is None:
            page = self._pages[key] = _SPARE_PAGES.pop() if _SPARE_PAGES else Page()
        return page

    # Taking back

    def finish(self, indexes: Run | list[int], owner: int) -> Freed:
        """Free a run of messages; an index that occurs twice is freed once and fails once."""
        if isinstance(indexes, list):
            freed = self._finish_few(indexes, owner)
        else:
            freed = self._finish_run(indexes, owner)
        if len(self._pages) > self._pages_kept:
            self._thin_out()
        return freed

    def _finish_run(self, indexes: Run, owner: int) -> Freed:
        if isinstance(indexes, range):
            if self._owns_range(indexes.start, indexes.stop, owner):
                self._free_range(indexes.start, indexes.stop)
                return Freed([indexes.start], [indexes.stop], len(indexes), [])
            indexes = np.arange(indexes.start, indexes.stop, dtype=np.int64)
            return self._finish_many(indexes, owner)
        count, first = len(indexes), int(indexes[0])
        end = first + count
        # For few items, comparing bytes takes a fraction of the time of (a == b).all().
        consecutive = (
            int(indexes[-1]) == end - 1 and indexes.tobytes() == np.arange(first, end).tobytes()
        )
        if consecutive and self._owns_range(first, end, owner):
            self._free_range(first, end)
            return Freed([first], [end], count, [])
        return self._finish_many(indexes, owner)

    def _owns_range(self, first: int, end: int, owner: int) -> bool:
        # Compared as bytes, a page at a time: nearly always the whole run is one session's.
        one = np.uint32(owner).tobytes()
        while first < end:
            page = self._pages.get(first >> PAGE_BITS)
            low = first & PAGE_MASK
            high = min(low + end - first, PAGE_SIZE)
            if page is None or page.owner[low:high].tobytes() != one * (high - low):
                return False
            first += high - low
        return True

    def _free_range(self, first: int, end: int) -> None:
        self.count -= end - first
        while first < end:
            key = first >> PAGE_BITS
            page = self._pages[key]
            low = first & PAGE_MASK
            high = min(low + end - first, PAGE_SIZE)
            page.owner[low:high] = 0
            self._shrink(key, page, high - low)
            first += high - low

    def _finish_few(self, indexes: list[int], owner: int) -> Freed:
        if len(indexes) == 1:  # RDY 1: nothing to sort
            key, offset = divmod(indexes[0], PAGE_SIZE)
            alone = self._pages.get(key)
            if alone is not None and alone.owner.item(offset) == owner:
                alone.owner[offset] = 0
                self.count -= 1
                self._shrink(key, alone, 1)
                return Freed(indexes, [indexes[0] + 1], 1, [])
        freed: list[int] = []
        failures: list[tuple[int, int]] = []
        pages, scattered = self._pages, self._scattered
        for position, index in enumerate(indexes):
            key = index >> PAGE_BITS
            page = pages.get(key)
            found = page.owner.item(index & PAGE_MASK) if page is not None else 0
            if page is not None and found == owner:
                page.owner[index & PAGE_MASK] = 0
                self._shrink(key, page, 1)
                freed.append(index)
                continue
            found = found or scattered.owner_of(index)
            if found == owner:
                scattered.remove(index)
                freed.append(index)
            else:
                failures.append((position, NOT_OWNED if found else NOT_IN_FLIGHT))
        self.count -= len(freed)
        freed.sort()
        starts, ends = slots.ranges_of_few(freed)
        return Freed(starts, ends, len(freed), failures)

    def _finish_many(self, indexes: Indexes, owner: int) -> Freed:
        # Stable: of an id that occurs twice, the first FIN succeeds.
        order = np.argsort(indexes, kind="stable")
        ascending = indexes[order]
        owners = self._owners(ascending)
        mine = owners == owner
        mine[1:] &= ascending[1:] != ascending[:-1]
        freed = ascending[mine]
        self._free_many(freed)
        failed = np.flatnonzero(~mine)
        failures = [
            (int(order[at]), NOT_OWNED if owners[at] not in (0, owner) else NOT_IN_FLIGHT)
            for at in failed.tolist()
        ]
        failures.sort()
        starts, ends = slots.ranges_of(freed)
        return Freed(starts, ends, len(freed), failures)

    def _free_many(self, freed: Indexes) -> None:
        """Free messages that are in flight; `freed` is ascending."""
        if not len(freed):
            return
        self.count -= len(freed)
        apart = np.zeros(len(freed), np.bool_) if len(self._scattered) else None
        for key, low, high in page_groups(freed):
            page = self._pages.get(key)
            if page is None:
                assert apart is not None
                apart[low:high] = True
                continue
            offsets = freed[low:high] & PAGE_MASK
            count = high - low
            if apart is not None:
                apart[low:high] = page.owner[offsets] == 0
                count -= int(apart[low:high].sum())
            page.owner[offsets] = 0
            self._shrink(key, page, count)
        if apart is not None and apart.any():
            self._scattered.remove_many(freed[apart])

    def _owners(self, ascending: Indexes) -> NDArray[np.uint32]:
        owners = np.zeros(len(ascending), np.uint32)
        for key, low, high in page_groups(ascending):
            page = self._pages.get(key)
            if page is not None:
                owners[low:high] = page.owner[ascending[low:high] & PAGE_MASK]
        if len(self._scattered):
            apart = owners == 0
            owners[apart] = self._scattered.owners(ascending[apart])
        return owners

    def _shrink(self, key: int, page: Page, count: int) -> None:
        page.count -= count
        if not page.count:
            del self._pages[key]
            if len(_SPARE_PAGES) < SPARE_PAGES_MAX:
                # All owners are 0 now; the other columns count only where an owner is set.
                page.attempts = page.published = None
                page.deadline_min = NEVER
                _SPARE_PAGES.append(page)

    def release(self, index: int, owner: int) -> int:
        """Take one message back; returns its deliveries so far, NOT_IN_FLIGHT or NOT_OWNED."""
        key = index >> PAGE_BITS
        page = self._pages.get(key)
        offset = index & PAGE_MASK
        found = page.owner.item(offset) if page is not None else 0
        in_page = found != 0
        found = found or self._scattered.owner_of(index)
        if found != owner:
            return NOT_OWNED if found else NOT_IN_FLIGHT
        self.count -= 1
        if page is None or not in_page:
            return self._scattered.remove(index)
        attempts = 1 if page.attempts is None else page.attempts.item(offset)
        page.owner[offset] = 0
        self._shrink(key, page, 1)
        if len(self._pages) > self._pages_kept:
            self._thin_out()
        return attempts

    def touch(self, index: int, owner: int, deadline_ns: int, cap_ns: int) -> int:
        """Set a deadline, to delivery + `cap_ns` at most; returns 1, NOT_IN_FLIGHT or NOT_OWNED."""
        page = self._pages.get(index >> PAGE_BITS)
        offset = index & PAGE_MASK
        found = page.owner.item(offset) if page is not None else 0
        in_page = found != 0
        found = found or self._scattered.owner_of(index)
        if found != owner:
            return NOT_OWNED if found else NOT_IN_FLIGHT
        if page is None or not in_page:
            self._scattered.touch(index, deadline_ns, cap_ns)
            return 1
        deadline = min(deadline_ns, page.delivered_at.item(offset) + cap_ns)
        page.deadline[offset] = deadline
        page.deadline_min = min(page.deadline_min, deadline)
        return 1

    def expire(self, now_ns: int) -> Expired:
        """Take back all messages whose deadline has passed."""
        found = [
            self._take(key, page, self._due_offsets(page, now_ns))
            for key, page in self._sorted()
            if page.deadline_min <= now_ns
        ]
        if self._scattered.deadline_min <= now_ns:
            found.append(self._take_scattered(self._scattered.due(now_ns)))
        return self._taken(found)

    def _due_offsets(self, page: Page, now_ns: int) -> NDArray[np.int64]:
        taken = page.owner != 0
        due = taken & (page.deadline <= now_ns)
        # Exact again: finished messages leave the minimum too low (invariant 2).
        later = page.deadline[taken & ~due]
        page.deadline_min = int(later.min()) if len(later) else NEVER
        return np.flatnonzero(due)

    def release_owner(self, owner: int) -> Expired:
        """Take back all messages of one owner."""
        found = [
            self._take(key, page, np.flatnonzero(page.owner == owner))
            for key, page in self._sorted()
        ]
        if len(self._scattered):
            found.append(self._take_scattered(self._scattered.of_owner(owner)))
        return self._taken(found)

    def _taken(self, found: list[Expired]) -> Expired:
        if len(self._pages) > self._pages_kept:
            self._thin_out()
        return _joined(found)

    def _take_scattered(self, indexes: Indexes) -> Expired:
        scattered = self._scattered
        taken = Expired(indexes, scattered.attempts(indexes), scattered.owners(indexes))
        scattered.remove_many(indexes)
        self.count -= len(indexes)
        return taken

    def _take(self, key: int, page: Page, offsets: NDArray[np.int64]) -> Expired:
        owners = page.owner[offsets]
        attempts = page.attempts_at(offsets)
        page.owner[offsets] = 0
        self.count -= len(offsets)
        if len(offsets):
            self._shrink(key, page, len(offsets))
        return Expired(offsets + (key << PAGE_BITS), attempts, owners)

    def clear(self) -> None:
        """Drop all messages, for example when a channel is emptied."""
        self.count = 0
        self._pages.clear()
        self._scattered.clear()

    # Inspecting

    def next_deadline_ns(self) -> int:
        """A lower bound of the earliest deadline; NEVER: no message is in flight."""
        found = self._scattered.deadline_min if len(self._scattered) else NEVER
        return min([found, *(page.deadline_min for page in self._pages.values())])

    def all(self) -> tuple[Indexes, NDArray[np.uint16]]:
        """All messages in flight, ascending, with their deliveries so far."""
        offsets = [(key, page, np.flatnonzero(page.owner)) for key, page in self._sorted()]
        found = [
            Expired(at + (key << PAGE_BITS), page.attempts_at(at), page.owner[at])
            for key, page, at in offsets
        ]
        if len(self._scattered):
            indexes = self._scattered.indexes()
            attempts = self._scattered.attempts(indexes)
            found.append(Expired(indexes, attempts, self._scattered.owners(indexes)))
        joined = _joined(found)
        return joined.indexes, joined.attempts

    def rows(self, first: int, count: int) -> Rows:
        """The first `count` messages at or after an index, with owners and deadlines."""
        return slots.rows_from(self._pages, self._scattered, first, count)

    def rows_of(self, indexes: Indexes) -> Rows:
        """Those of these ascending indexes that are in flight."""
        return slots.rows_of(self._pages, self._scattered, indexes)

    def indexes(self) -> Indexes:
        """The indexes of all messages in flight, ascending."""
        found = [np.flatnonzero(page.owner) + (key << PAGE_BITS) for key, page in self._sorted()]
        if not len(self._scattered):
            return np.concatenate(found) if found else np.empty(0, np.int64)
        return np.sort(np.concatenate([*found, self._scattered.indexes()]))


def _joined(found: list[Expired]) -> Expired:
    """Join several results into one, ascending."""
    if not found:
        return Expired(np.empty(0, np.int64), np.empty(0, np.uint16), np.empty(0, np.uint32))
    if len(found) == 1:
        return found[0]
    indexes = np.concatenate([part.indexes for part in found])
    attempts = np.concatenate([part.attempts for part in found])
    owners = np.concatenate([part.owners for part in found])
    order = np.argsort(indexes, kind="stable")
    return Expired(indexes[order], attempts[order], owners[order])
