"""Ranges ahead of a channel's cursor that it will not deliver: voided, or finished already.

1. Ranges are ascending and do not touch; all lie at or behind the cursor.
2. Each range knows how many messages it holds, since indexes are not dense: depth needs the count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sparq.broker.options import NEVER

Indexes = NDArray[np.int64]


class Skips:
    """What the cursor will jump; `count` is how many messages that is."""

    def __init__(self) -> None:
        self.count = 0
        self._ranges: deque[tuple[int, int, int]] = deque()

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def add(self, first: int, end: int, count: int) -> None:
        """Add [first, end), which holds `count` messages, behind every range that is there."""
        self.count += count
        if self._ranges and self._ranges[-1][1] == first:
            first, _, before = self._ranges.pop()
            count += before
        self._ranges.append((first, end, count))

    def add_all(self, firsts: Indexes, ends: Indexes, counts: Indexes) -> None:
        """Add ranges that ascend and do not touch, while there is none yet."""
        assert not self._ranges
        self.count = int(counts.sum())
        self._ranges.extend(zip(firsts.tolist(), ends.tolist(), counts.tolist(), strict=True))

    def insert(self, indexes: Sequence[int]) -> None:
        """Add messages, ascending, none of which is in a range: each wherever it lies."""
        self.count += len(indexes)
        ranges = sorted([*self._ranges, *((index, index + 1, 1) for index in indexes)])
        joined: list[tuple[int, int, int]] = []
        for first, end, count in ranges:
            if joined and joined[-1][1] == first:
                begin, _, before = joined.pop()
                joined.append((begin, end, before + count))
            else:
                joined.append((first, end, count))
        self._ranges = deque(joined)

    def end(self, default: int) -> int:
        """The end of the last range."""
        return self._ranges[-1][1] if self._ranges else default

    def next_start(self) -> int:
        """Where the next range begins; NEVER when there is none."""
        return self._ranges[0][0] if self._ranges else NEVER

    def jump(self, cursor: int) -> tuple[int, int]:
        """(new cursor, messages jumped) of a cursor that may stand at a range's start."""
        jumped = 0
        while self._ranges and self._ranges[0][0] <= cursor:
            _, end, count = self._ranges.popleft()
            if end > cursor:
                cursor, jumped = end, jumped + count
            self.count -= count
        return cursor, jumped

    def end_at(self, index: int) -> int:
        """Where the range ends that the index lies in; the index itself, if it lies in none."""
        for first, end, _ in self._ranges:
            if first > index:
                break
            if index < end:
                return end
        return index

    def ranges(self) -> list[tuple[int, int]]:
        """The ranges, ascending."""
        return [(first, end) for first, end, _ in self._ranges]

    def clear(self) -> None:
        """Forget everything."""
        self._ranges.clear()
        self.count = 0
