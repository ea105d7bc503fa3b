"""Messages that wait to be delivered once more: a FIFO of indexes with their deliveries so far.

Requeued, timed-out and due messages stand here (decision 12), those that a restart found unfinished
too. A burst is kept as the arrays it came in, single messages in plain lists until they are taken:
half a million timeouts cost 10 bytes each.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

Indexes = NDArray[np.int64]
Attempts = NDArray[np.uint16]
Chunk = tuple[Indexes, Attempts]


class ReadyAgain:
    """First in, first out; `len` is how many wait."""

    def __init__(self) -> None:
        self._chunks: deque[Chunk] = deque()
        self._indexes: list[int] = []
        self._attempts: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(self, index: int, attempts: int) -> None:
        """Put one message at the end."""
        self._indexes.append(index)
        self._attempts.append(attempts)
        self._count += 1

    def push_many(self, indexes: Indexes, attempts: Attempts) -> None:
        """Put a burst at the end, in its order."""
        if len(indexes):
            self._settle()
            self._chunks.append((indexes, attempts))
            self._count += len(indexes)

    def push_front(self, indexes: Indexes, attempts: Attempts) -> None:
        """Put back what was taken and could not be delivered."""
        if len(indexes):
            self._chunks.appendleft((indexes, attempts))
            self._count += len(indexes)

    def take(self, count: int) -> Chunk:
        """Take the first `count` messages (fewer when fewer wait), in order of waiting."""
        self._settle()
        taken: list[Chunk] = []
        while count > 0 and self._chunks:
            indexes, attempts = self._chunks.popleft()
            if len(indexes) > count:
                self._chunks.appendleft((indexes[count:], attempts[count:]))
                indexes, attempts = indexes[:count], attempts[:count]
            taken.append((indexes, attempts))
            count -= len(indexes)
            self._count -= len(indexes)
        return _joined(taken)

    def having(self, indexes: Indexes) -> Indexes:
        """Those of these ascending indexes that wait here, in no order."""
        self._settle()
        found = [waiting[among(waiting, indexes)] for waiting, _ in self._chunks]
        return np.concatenate(found) if found else indexes[:0]

    def remove(self, indexes: Indexes) -> Chunk:
        """Take these ascending indexes out wherever they stand; returns those that were here."""
        self._settle()
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
        """The lowest index that waits; None: none does."""
        if not self._count:
            return None
        self._settle()
        return min(int(indexes.min()) for indexes, _ in self._chunks)

    def indexes(self) -> Indexes:
        """All that wait, ascending."""
        self._settle()
        return np.sort(_joined(list(self._chunks))[0])

    def all(self) -> Chunk:
        """All that wait, in their order, with their deliveries so far."""
        self._settle()
        return _joined(list(self._chunks))

    def chunks(self) -> list[Chunk]:
        """All that wait, in their order; nobody changes these arrays."""
        self._settle()
        return list(self._chunks)

    def clear(self) -> None:
        """Forget everything."""
        self._chunks.clear()
        self._indexes, self._attempts = [], []
        self._count = 0

    def _settle(self) -> None:
        if self._indexes:
            self._chunks.append(
                (np.array(self._indexes, np.int64), np.array(self._attempts, np.uint16))
            )
            self._indexes, self._attempts = [], []


def among(values: Indexes, ascending: Indexes) -> NDArray[np.bool_]:
    """Which of many values, in any order, are among a few ascending ones."""
    found = np.zeros(len(values), np.bool_)
    if len(ascending):
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
