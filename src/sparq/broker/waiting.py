"""Messages that wait outside a cursor's path: ready again, delayed by REQ, or deferred by DPUB.

`RequeueQueue` is a channel's FIFO of indexes with their deliveries so far: requeued, timed-out and
due messages, and those that a restart found unfinished. A burst is kept as the arrays
it came in; single messages are in plain lists until they are taken. So half a million timeouts cost
10 bytes each.

`DueTimes` has what waits for a time, such as a channel's messages delayed by REQ. `DueList` has a
topic's deferred publishes (DPUB). A deferred publish belongs to the topic, not to its channels:
cursors pass over it, and when it is due it joins the ready list of each channel that it was
published for. Invariants of the due list, for every channel and every index in `skipped` that its
cursor has not passed:

1. it is pending, or it has joined that channel's ready list, or it waits in `overdue` for P, or it
   was cancelled;
2. so a cursor never delivers an index that is in `skipped`, and no message is delivered twice.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import Final, Generic, TypeVar

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
            self.chunks().append((indexes, attempts))
            self._count += len(indexes)

    def push_front(self, indexes: Indexes, attempts: Attempts) -> None:
        """Put taken messages that could not be delivered back at the front."""
        if len(indexes):
            # Messages pushed one by one belong to the other end.
            self._chunks.appendleft((indexes, attempts))
            self._count += len(indexes)

    def take(self, count: int) -> Chunk:
        """Take the first `count` messages, or fewer if fewer wait, in order of waiting."""
        chunks, taken = self.chunks(), []
        while count > 0 and chunks:
            indexes, attempts = chunks.popleft()
            if len(indexes) > count:
                # A view: a burst of half a million timeouts is not copied for each run.
                chunks.appendleft((indexes[count:], attempts[count:]))
                indexes, attempts = indexes[:count], attempts[:count]
            taken.append((indexes, attempts))
            count -= len(indexes)
            self._count -= len(indexes)
        return _joined(taken)

    def remove(self, indexes: Indexes) -> Chunk:
        """Remove these ascending indexes at any position; returns those that were here."""
        removed: list[Chunk] = []
        kept: deque[Chunk] = deque()
        for waiting, attempts in self.chunks():
            goes = among(waiting, indexes)
            removed.append((waiting[goes], attempts[goes]))
            if not goes.any():
                kept.append((waiting, attempts))
            elif not goes.all():
                kept.append((waiting[~goes], attempts[~goes]))
        self._chunks = kept
        gone = _joined(removed)
        self._count -= len(gone[0])
        return gone

    def all(self) -> Chunk:
        """All waiting messages in queue order, with their deliveries so far."""
        return _joined(self.chunks())

    def chunks(self) -> deque[Chunk]:
        """All waiting messages in queue order; callers must not modify them."""
        if self._indexes:
            self._chunks.append(
                (np.array(self._indexes, np.int64), np.array(self._attempts, np.uint16))
            )
            self._indexes, self._attempts = [], []
        return self._chunks


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


def _joined(chunks: Collection[Chunk]) -> Chunk:
    if not chunks:
        return np.empty(0, np.int64), np.empty(0, np.uint16)
    indexes, attempts = zip(*chunks, strict=True)
    return np.concatenate(indexes), np.concatenate(attempts)


OUTDATED_MIN: Final = 64
"""A heap is not rebuilt for fewer outdated entries than this."""

Key = TypeVar("Key", int, str)


class DueTimes(Generic[Key]):
    """Keys by their due times on the monotonic clock (ns), each with a number; `len` counts them.

    The entry of a key that is taken out or gets another time stays in the heap until it is due:
    searching for it among hundreds of thousands would block the event loop for as many
    milliseconds. When most entries are outdated the heap is rebuilt, so its size is bounded.
    """

    def __init__(self) -> None:
        self._entries: dict[Key, tuple[int, Key, int]] = {}
        self._heap: list[tuple[int, Key, int]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def add(self, key: Key, due_ns: int, number: int = 0) -> None:
        """Add a key, or give it another time."""
        self._entries[key] = entry = (due_ns, key, number)
        heapq.heappush(self._heap, entry)
        self._drop_outdated()

    def add_all(self, entries: Iterable[tuple[int, Key, int]]) -> None:
        """Add many keys, each as (due, key, number); none may be here."""
        added = list(entries)
        self._entries.update((entry[1], entry) for entry in added)
        self._heap.extend(added)
        heapq.heapify(self._heap)

    def take(self, keys: Iterable[Key]) -> list[tuple[Key, int]]:
        """Take keys out; returns (key, number) of those that were here."""
        taken = [self._entries.pop(key) for key in keys if key in self._entries]
        self._drop_outdated()
        return [(key, number) for _, key, number in taken]

    def pop_due(self, now_ns: int) -> list[tuple[Key, int]]:
        """Take out what is due; returns (key, number) of each, earliest first."""
        heap, due = self._heap, []
        while heap and heap[0][0] <= now_ns:
            entry = heapq.heappop(heap)
            if self._entries.get(entry[1]) is entry:
                del self._entries[entry[1]]
                due.append((entry[1], entry[2]))
        return due

    def _drop_outdated(self) -> None:
        if len(self._heap) > 2 * len(self._entries) + OUTDATED_MIN:
            self._heap[:] = self._entries.values()
            heapq.heapify(self._heap)

    def next_due_ns(self) -> int:
        """A lower bound of the earliest due time; NEVER: there is no key."""
        return self._heap[0][0] if self._entries else NEVER

    def entries(self) -> list[tuple[int, Key, int]]:
        """(due, key, number) of all, in no particular order."""
        return list(self._entries.values())


COMPACT_MIN: Final = 1024
"""Fewer passed entries than this stay in the list of skipped indexes: no compaction."""


class DueList:
    """A topic's deferred publishes.

    Attributes:
        pending: the indexes that are not due yet.
        skipped: the indexes that cursors pass over, ascending (see the module's docstring).
        overdue: indexes that are due but not yet visible to channels, since they are not before P.
        cancelled: those of `skipped` that must not be delivered to any channel.
    """

    def __init__(self) -> None:
        self.pending: DueTimes[int] = DueTimes()
        # A list and not an array, which each DPUB would copy to append one index.
        self.skipped: list[int] = []
        self.overdue: list[int] = []
        self.cancelled: set[int] = set()
        self._sorted: Indexes | None = None
        """The pending indexes in ascending order; None: not computed."""

    def add(self, due_ns: int, index: int) -> None:
        """Add a deferred publish; indexes must be added in ascending order."""
        self._sorted = None
        self.pending.add(index, due_ns)
        self.skipped.append(index)

    def fill(
        self,
        indexes: Indexes,
        dues_ns: Indexes,
        are_past: NDArray[np.bool_],
        visible_end: int,
        are_cancelled: NDArray[np.bool_],
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
        self.cancelled = set(indexes[are_cancelled].tolist())
        past = indexes[are_past & ~are_cancelled]
        self.overdue = past[past >= visible_end].tolist()
        waits = ~are_past & ~are_cancelled
        waiting = indexes[waits].tolist()
        self.pending.add_all(zip(dues_ns[waits].tolist(), waiting, [0] * len(waiting), strict=True))

    def pop_due(self, now_ns: int) -> list[int]:
        """Return the indexes that are due, earliest first; they stay in `skipped`."""
        due = [index for index, _ in self.pending.pop_due(now_ns)]
        if due:
            self._sorted = None
        return due

    def cancel(self, indexes: set[int]) -> set[int]:
        """Cancel deliveries; returns those of the messages that were still pending."""
        found = {index for index, _ in self.pending.take(indexes)}
        self.cancelled |= found
        self._sorted = None
        return found

    def hold_back(self, due: list[int], visible_end: int) -> list[int]:
        """Add due messages, keep those from `visible_end` on overdue; returns the others."""
        candidates = self.overdue + due
        self.overdue = [index for index in candidates if index >= visible_end]
        return [index for index in candidates if index < visible_end]

    def contains(self, index: int) -> bool:
        """Whether cursors pass over this index."""
        return self.next_skipped(index) == index

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

    def pending_between(self, first: int, end: int) -> Indexes:
        """The pending indexes in [first, end), ascending."""
        if not self.pending:
            return np.empty(0, np.int64)
        if self._sorted is None:
            self._sorted = np.sort(np.fromiter(self.pending, np.int64, len(self.pending)))
        low, high = np.searchsorted(self._sorted, (first, end))
        return self._sorted[low:high]

    def joined_from(self, first: int, end: int) -> list[int]:
        """Skipped indexes in [first, end) that are due already, for a cursor that is set back."""
        low, high = bisect_left(self.skipped, first), bisect_left(self.skipped, end)
        others = self.cancelled.union(self.overdue)
        return [
            index
            for index in self.skipped[low:high]
            if index not in self.pending and index not in others
        ]

    def void(self, first: int, end: int) -> None:
        """Remove all entries in [first, end), because the topic was emptied."""
        low, high = bisect_left(self.skipped, first), bisect_left(self.skipped, end)
        self.pending.take(self.skipped[low:high])
        self.cancelled.difference_update(self.skipped[low:high])
        self.overdue = [index for index in self.overdue if not first <= index < end]
        del self.skipped[low:high]
        self._sorted = None

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
        waiting = self.cancelled.union(self.overdue)
        kept = [
            index for index in self.skipped[:passed] if index in self.pending or index in waiting
        ]
        self.skipped[:passed] = kept
