"""When topics want to be looked at: a heap of times.

1. A time is a lower bound: being called too early is harmless, too late is not. Whoever is called
   looks whether there is something to do.
2. Of the entries of the heap one counts for each topic: the one at its `scheduled_ns`. The others
   are left over from wishes that were replaced by earlier ones; when they are the most, the heap is
   made anew. So it is bounded by the number of topics, however often their times change.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import Final, Generic, Protocol, TypeVar

from sparq.broker.options import NEVER

STALE_MIN: Final = 64
"""So many entries that no longer count are not worth making the heap anew."""


class Timed(Protocol):
    """Something that is due at a time (mono ns); NEVER: it is not."""

    scheduled_ns: int


T = TypeVar("T", bound=Timed)


class Timers(Generic[T]):
    """The times of all topics."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, T]] = []
        self._scheduled_count = 0
        self._numbers = count()

    def schedule(self, timed: T, at_ns: int) -> None:
        """Have it returned by `pop_due` at this time, unless it is to be earlier anyway."""
        if at_ns < timed.scheduled_ns:
            self._scheduled_count += timed.scheduled_ns == NEVER
            timed.scheduled_ns = at_ns
            heapq.heappush(self._heap, (at_ns, next(self._numbers), timed))
            if len(self._heap) > 2 * self._scheduled_count + STALE_MIN:
                self._drop_stale()

    def cancel(self, timed: T) -> None:
        """Do not return it any more, unless it is scheduled again."""
        if timed.scheduled_ns != NEVER:
            timed.scheduled_ns = NEVER
            self._scheduled_count -= 1

    def _drop_stale(self) -> None:
        """Keep the one entry of each that is scheduled."""
        kept = {
            id(timed): (at_ns, number, timed)
            for at_ns, number, timed in self._heap
            if at_ns == timed.scheduled_ns
        }
        self._heap[:] = kept.values()
        heapq.heapify(self._heap)

    def pop_due(self, mono_ns: int) -> list[T]:
        """Those whose time has come, in its order."""
        heap = self._heap
        due: list[T] = []
        while heap and heap[0][0] <= mono_ns:
            at_ns, _, timed = heapq.heappop(heap)
            if at_ns == timed.scheduled_ns:
                self.cancel(timed)
                due.append(timed)
        return due

    def next_ns(self) -> int:
        """When somebody is due; NEVER when nobody is."""
        return self._heap[0][0] if self._heap else NEVER
