"""Messages that wait outside a cursor's path: ready again, delayed by REQ, or deferred by DPUB.

`RequeueQueue` is a channel's FIFO of indexes with their deliveries so far: requeued, timed-out and
due messages, and those that a restart found unfinished. A burst is kept as the arrays
it came in; single messages are in plain lists until they are taken. So half a million timeouts cost
10 bytes each.

`Delays` has one channel's messages delayed by REQ, `DueList` a topic's deferred publishes (DPUB). A
deferred publish belongs to the topic, not to its channels: cursors pass over it, and
when it is due it joins the ready list of each channel that it was published for. Invariants of the
due list, for every channel and every index in `skipped` that its cursor has not passed:

1. it is pending, or it has joined that channel's ready list, or it waits in `overdue` for P, or it
   was cancelled;
2. so a cursor never delivers an index that is in `skipped`, and no message is delivered twice.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sparq.broker.options import NEVER

Indexes = NDArray[np.int64]
Attempts = NDArray[np.uint16]
Chunk = tuple[Indexes, Attempts]


class RequeueQueue:
    """A FIFO of messages ready for redelivery; `len` is their number."""

    def __init__(self) -> None:
        self._chunks: deque[Chunk] = deque()
        self._indexes: list[int] = []
        self._attempts: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(self, index: int, attempts: int) -> None:
        """Append one message."""
        self._indexes.append(index)
        self._attempts.append(attempts)
        self._count += 1

    def push_many(self, indexes: Indexes, attempts: Attempts) -> None:
        """Append several messages in this order."""
        if len(indexes):
            # Messages that were pushed one by one come first.
            self._pack()
            self._chunks.append((indexes, attempts))
            self._count += len(indexes)

    def push_front(self, indexes: Indexes, attempts: Attempts) -> None:
        """Put taken messages that could not be delivered back at the front."""
        if len(indexes):
            # No `_pack`: messages pushed one by one belong to the other end.
            self._chunks.appendleft((indexes, attempts))
            self._count += len(indexes)

    def take(self, count: int) -> Chunk:
        """Take the first `count` messages, or fewer if fewer wait, in order of waiting."""
        self._pack()
        taken: list[Chunk] = []
        while count > 0 and self._chunks:
            indexes, attempts = self._chunks.popleft()
            if len(indexes) > count:
                # A view: a burst of half a million timeouts is not copied for each run.
                self._chunks.appendleft((indexes[count:], attempts[count:]))
                indexes, attempts = indexes[:count], attempts[:count]
            taken.append((indexes, attempts))
            count -= len(indexes)
            self._count -= len(indexes)
        return _joined(taken)

    def having(self, indexes: Indexes) -> Indexes:
        """Those of these ascending indexes that wait here, in no particular order."""
        self._pack()
        found = [waiting[among(waiting, indexes)] for waiting, _ in self._chunks]
        return np.concatenate(found) if found else indexes[:0]

    def remove(self, indexes: Indexes) -> Chunk:
        """Remove these ascending indexes at any position; returns those that were here."""
        self._pack()
        removed: list[Chunk] = []
        kept: deque[Chunk] = deque()
        for waiting, attempts in self._chunks:
            goes = among(waiting, indexes)
            if not goes.any():
                kept.append((waiting, attempts))
                continue
            removed.append((waiting[goes], attempts[goes]))
            if not goes.all():
                kept.append((waiting[~goes], attempts[~goes]))
        self._chunks = kept
        gone = _joined(removed)
        self._count -= len(gone[0])
        return gone

    def oldest(self) -> int | None:
        """The lowest waiting index; None: no message waits."""
        if not self._count:
            return None
        self._pack()
        return min(int(indexes.min()) for indexes, _ in self._chunks)

    def indexes(self) -> Indexes:
        """All waiting indexes, ascending."""
        self._pack()
        return np.sort(_joined(list(self._chunks))[0])

    def all(self) -> Chunk:
        """All waiting messages in queue order, with their deliveries so far."""
        self._pack()
        return _joined(list(self._chunks))

    def chunks(self) -> list[Chunk]:
        """All waiting messages in queue order; callers must not modify the arrays."""
        self._pack()
        return list(self._chunks)

    def clear(self) -> None:
        """Remove all messages."""
        self._chunks.clear()
        self._indexes, self._attempts = [], []
        self._count = 0

    def _pack(self) -> None:
        if self._indexes:
            self._chunks.append(
                (np.array(self._indexes, np.int64), np.array(self._attempts, np.uint16))
            )
            self._indexes, self._attempts = [], []


def among(values: Indexes, ascending: Indexes) -> NDArray[np.bool_]:
    """Which of many values, in any order, are among a few ascending ones."""
    found = np.zeros(len(values), np.bool_)
    if len(ascending):
        # Only values within the span are looked up: `searchsorted` of larger ones would return a
        # row beyond the last.
        near = np.flatnonzero((values >= ascending[0]) & (values <= ascending[-1]))
        rows = np.searchsorted(ascending, values[near])
        found[near] = ascending[rows] == values[near]
    return found


def _joined(chunks: list[Chunk]) -> Chunk:
    if len(chunks) == 1:
        return chunks[0]
    if not chunks:
        return np.empty(0, np.int64), np.empty(0, np.uint16)
    indexes, attempts = zip(*chunks, strict=True)
    return np.concatenate(indexes), np.concatenate(attempts)


COMPACT_MIN = 1024
"""Fewer passed entries than this stay in the list of skipped indexes: no compaction."""


SWEPT_PER_TAKEN: Final = 2
"""Heap entries checked per removed message: the whole heap by the time half of it was removed."""

_NOTHING: Final = np.empty(0, np.int64)
_Numbers = NDArray[np.int64]
_Entry = tuple[int, int, int]
"""(due, index, attempts)"""


class Delays:
    """Requeued messages of one channel that wait for their time; due times are monotonic (ns).

    An entry that is taken out early stays in the heap until it is due or swept: searching for it in
    a heap of hundreds of thousands would block the event loop for as many milliseconds. So `take`
    costs only in proportion to its argument, and a sweep checks a few entries at a time.
    """

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._unswept: list[_Entry] = []
        """A second heap; each `take` moves entries from its end to the first heap."""
        self._by_index: dict[int, _Entry] = {}

    def __len__(self) -> int:
        return len(self._by_index)

    def add(self, due_ns: int, index: int, attempts: int) -> None:
        """Hold a message until it is due."""
        entry = due_ns, index, attempts
        self._by_index[index] = entry
        heapq.heappush(self._heap, entry)

    def add_all(self, delays: Iterable[tuple[int, int, int]]) -> None:
        """Hold many messages, each as (due, index, attempts)."""
        added = list(delays)
        self._by_index.update((entry[1], entry) for entry in added)
        self._heap.extend(added)
        heapq.heapify(self._heap)

    def pop_due(self, now_ns: int) -> list[tuple[int, int]]:
        """Remove what is due; returns (index, attempts) of each message, earliest first."""
        due = self._pop(self._heap, now_ns)
        if self._unswept:
            due = sorted(due + self._pop(self._unswept, now_ns))
        return [(index, attempts) for _, index, attempts in due]

    def _pop(self, heap: list[_Entry], now_ns: int) -> list[_Entry]:
        due: list[_Entry] = []
        while heap and heap[0][0] <= now_ns:
            entry = heapq.heappop(heap)
            # Entries that `take` has removed are still in the heap, perhaps beside a newer one of
            # the same message: only the one in the dictionary counts.
            if self._by_index.get(entry[1]) is entry:
                del self._by_index[entry[1]]
                due.append(entry)
        return due

    def next_due_ns(self) -> int:
        """A lower bound of the earliest due time; NEVER: no message waits."""
        if not self._by_index:
            return NEVER
        return min(heap[0][0] for heap in (self._heap, self._unswept) if heap)

    def entries(self) -> list[tuple[int, int, int]]:
        """(due, index, attempts) of all messages, in no particular order."""
        return list(self._by_index.values())

    def take(self, indexes: Collection[int]) -> list[tuple[int, int]]:
        """Take out messages early; returns (index, attempts) of those that were here."""
        taken = [self._by_index.pop(index) for index in indexes if index in self._by_index]
        if self._by_index:
            self._sweep(len(taken) * SWEPT_PER_TAKEN)
        else:
            self.clear()
        return [(index, attempts) for _, index, attempts in taken]

    def _sweep(self, count: int) -> None:
        """Check the last `count` entries of the old heap; removing one from its end is cheap."""
        for _ in range(count):
            if not self._unswept:
                # A sweep of the whole heap at once would block the loop: 260 to 350 ms for one
                # message among 500,000.
                self._heap, self._unswept = [], self._heap
            if not self._unswept:
                return
            entry = self._unswept.pop()
            if self._by_index.get(entry[1]) is entry:
                heapq.heappush(self._heap, entry)

    def indexes(self) -> NDArray[np.int64]:
        """All waiting indexes, ascending."""
        return np.sort(np.fromiter(self._by_index, np.int64, len(self._by_index)))

    def clear(self) -> None:
        """Remove all messages."""
        self._heap.clear()
        self._unswept.clear()
        self._by_index.clear()


class DueList:
    """A topic's deferred publishes.

    Attributes:
        pending: the indexes that are not due yet.
        skipped: the indexes that cursors pass over, ascending (see the module's docstring).
        overdue: indexes that are due but not yet visible to channels, since they are not before P.
        cancelled: those of `skipped` that must not be delivered to any channel.
        withdrawn: those of `cancelled` whose heap entry still exists. It stays until it is due,
            since searching for it would block the event loop.
    """

    def __init__(self) -> None:
        self.pending: set[int] = set()
        # A list and not an array, which each DPUB would copy to append one index.
        self.skipped: list[int] = []
        self.overdue: list[int] = []
        self.cancelled: set[int] = set()
        self.withdrawn: set[int] = set()
        self._heap: list[tuple[int, int]] = []
        self._sorted: NDArray[np.int64] | None = None
        """The pending indexes in ascending order; None: not computed."""

    def add(self, due_ns: int, index: int) -> None:
        """Add a deferred publish; indexes must be added in ascending order."""
        self._sorted = None
        heapq.heappush(self._heap, (due_ns, index))
        self.pending.add(index)
        self.skipped.append(index)

    def fill(
        self,
        indexes: _Numbers,
        dues_ns: _Numbers,
        are_past: NDArray[np.bool_],
        visible_end: int,
        are_cancelled: NDArray[np.bool_] | None = None,
    ) -> None:
        """Fill an empty list after a start.

        Args:
            indexes: the deferred publishes, ascending.
            dues_ns: their due times.
            are_past: which ones are due already; channels get those separately.
            visible_end: P.
            are_cancelled: which ones must not be delivered.
        """
        assert not self.skipped
        self.skipped = indexes.tolist()
        if are_cancelled is not None and are_cancelled.any():
            self.cancelled = set(indexes[are_cancelled].tolist())
            kept = ~are_cancelled
            indexes, dues_ns, are_past = indexes[kept], dues_ns[kept], are_past[kept]
        past, waiting = indexes[are_past], indexes[~are_past]
        self.overdue = past[past >= visible_end].tolist()
        self.pending = set(waiting.tolist())
        self._sorted = waiting
        order = np.lexsort((waiting, dues_ns[~are_past]))
        dues_ns = dues_ns[~are_past][order]
        # An ascending list is a valid heap.
        self._heap = list(zip(dues_ns.tolist(), waiting[order].tolist(), strict=True))

    def pop_due(self, now_ns: int) -> list[int]:
        """Return the indexes that are due, earliest first; they stay in `skipped`."""
        due: list[int] = []
        while self._heap and self._heap[0][0] <= now_ns:
            index = heapq.heappop(self._heap)[1]
            if index in self.withdrawn:
                self.withdrawn.remove(index)
                continue
            self.pending.remove(index)
            self._sorted = None
            due.append(index)
        return due

    def cancel(self, indexes: set[int]) -> set[int]:
        """Cancel deliveries; returns those of the messages that were still pending."""
        found = indexes & self.pending
        if found:
            self.pending -= found
            self.cancelled |= found
            self.withdrawn |= found
            self._sorted = None
            self._drop_withdrawn(SWEPT_PER_TAKEN * len(found))
        return found

    def _drop_withdrawn(self, count_max: int) -> None:
        """Remove withdrawn entries from the heap's top, so that no timer runs for them."""
        for _ in range(count_max):
            if not self._heap or self._heap[0][1] not in self.withdrawn:
                return
            self.withdrawn.remove(heapq.heappop(self._heap)[1])

    def entries(self) -> list[tuple[int, int]]:
        """(due, index) of all pending messages, in no particular order."""
        return [entry for entry in self._heap if entry[1] not in self.withdrawn]

    def entries_with_withdrawn(self) -> list[tuple[int, int]]:
        """The same plus withdrawn entries: a plain copy, which takes a fraction of the time."""
        return list(self._heap)

    def hold_back(self, due: list[int], visible_end: int) -> list[int]:
        """Add due messages, keep those from `visible_end` on overdue; returns the others."""
        candidates = self.overdue + due
        self.overdue = [index for index in candidates if index >= visible_end]
        return [index for index in candidates if index < visible_end]

    def next_due_ns(self) -> int:
        """A lower bound of the earliest due time; NEVER: no message is pending."""
        return self._heap[0][0] if self.pending else NEVER

    def contains(self, index: int) -> bool:
        """Whether cursors pass over this index."""
        at = bisect_left(self.skipped, index)
        return at < len(self.skipped) and self.skipped[at] == index

    def next_skipped(self, index: int) -> int:
        """The first skipped index at or after `index`; NEVER: there is none."""
        at = bisect_left(self.skipped, index)
        return self.skipped[at] if at < len(self.skipped) else NEVER

    def next_unskipped(self, index: int) -> int:
        """The first index at or after `index` that cursors do not pass over."""
        skipped = self.skipped
        at = bisect_left(skipped, index)
        low, high = at, len(skipped)
        # Consecutive entries are exactly as far from `index` as their position is from `at`.
        while low < high:
            middle = (low + high) // 2
            if skipped[middle] - index == middle - at:
                low = middle + 1
            else:
                high = middle
        return index + low - at

    def count_between(self, first: int, end: int) -> int:
        """Number of skipped indexes in [first, end)."""
        return bisect_left(self.skipped, end) - bisect_left(self.skipped, first)

    def counts_between(self, firsts: NDArray[np.int64], ends: NDArray[np.int64]) -> _Numbers:
        """`count_between` for many ranges."""
        skipped = np.array(self.skipped, np.int64)
        return np.searchsorted(skipped, ends) - np.searchsorted(skipped, firsts)

    def pending_between(self, first: int, end: int) -> NDArray[np.int64]:
        """The pending indexes in [first, end), ascending."""
        if not self.pending:
            return _NOTHING
        if self._sorted is None:
            pending = np.fromiter(self.pending, np.int64, len(self.pending))
            pending.sort()
            self._sorted = pending
        low, high = np.searchsorted(self._sorted, (first, end))
        return self._sorted[low:high]

    def joined_from(self, first: int, end: int) -> list[int]:
        """Skipped indexes in [first, end) that are due already, for a cursor that is set back."""
        low, high = bisect_left(self.skipped, first), bisect_left(self.skipped, end)
        waiting = set(self.overdue)
        return [
            index
            for index in self.skipped[low:high]
            if index not in self.pending and index not in waiting and index not in self.cancelled
        ]

    def void(self, first: int, end: int) -> None:
        """Remove all entries in [first, end), because the topic was emptied."""
        self.pending = {index for index in self.pending if not first <= index < end}
        # This drops withdrawn entries, too: they are not pending.
        self._heap = [entry for entry in self._heap if entry[1] in self.pending]
        heapq.heapify(self._heap)
        self.withdrawn.clear()
        self._sorted = None
        self.overdue = [index for index in self.overdue if not first <= index < end]
        self.cancelled = {index for index in self.cancelled if not first <= index < end}
        del self.skipped[bisect_left(self.skipped, first) : bisect_left(self.skipped, end)]

    def compact(self, cursor_min: int, first_index: int = 0) -> None:
        """Drop entries that every cursor has passed and that are neither pending nor overdue.

        A cancelled entry is kept until its file is deleted (the log begins at `first_index`), since
        a channel may be set back to it.
        """
        if self.cancelled:
            self.cancelled = {index for index in self.cancelled if index >= first_index}
        passed = bisect_left(self.skipped, cursor_min)
        # Only where about half of the passed entries go, so that copying the list pays.
        if passed < COMPACT_MIN or passed < 2 * len(self.pending):
            return
        waiting = self.pending.union(self.overdue, self.cancelled)
        kept = [index for index in self.skipped[:passed] if index in waiting]
        self.skipped[:passed] = kept
