"""The sparse index of a segment: where its messages are, without an entry for each.

An extent is a stretch of the file whose batches follow each other without a gap in bytes, indexes
and ordinals. It is the unit of reads from the disk and of the cache.

1. An extent takes batches until it reaches 64 KiB; a batch of that size or more is an extent of its
   own. So the index costs 48 bytes for 64 KiB of file, however small the batches are.
2. Extents ascend in every column except the time; data between two of them is not readable.
3. `ends` may have been lowered (see `cut`): later batches in the extent's bytes do not count.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

EXTENT_BYTES: Final = 64 << 10
COLUMNS: Final = 6

Rows = NDArray[np.int64]
"""Extents as columns, shape (6, n), in the order of Extent's fields."""


class Extent(NamedTuple):
    """One extent: indexes [first, end), file bytes [offset, offset + size)."""

    first: int
    end: int
    ordinal: int
    offset: int
    size: int
    time_max_ns: int

    @property
    def end_ordinal(self) -> int:
        """The number of messages in the log up to the end of this extent."""
        return self.ordinal + self.end - self.first


class Extents:
    """A segment's extents, stored by columns."""

    __slots__ = ("_offsets", "_ordinals", "_sizes", "_times", "ends", "firsts", "messages")

    def __init__(self) -> None:
        self.messages = 0
        """The number of readable messages."""
        # Arrays, since all extents of all logs stay in memory: 750 MiB for a terabyte of log.
        # They grow in place, as NumPy's do not, and `bisect` searches them.
        self.firsts = array("q")
        self.ends = array("q")
        self._ordinals = array("q")
        self._offsets = array("q")
        self._sizes = array("q")
        self._times = array("q")

    def __len__(self) -> int:
        return len(self.firsts)

    def __getitem__(self, position: int) -> Extent:
        return Extent(
            self.firsts[position],
            self.ends[position],
            self._ordinals[position],
            self._offsets[position],
            self._sizes[position],
            self._times[position],
        )

    def append(self, batch: Extent, *, fresh: bool = False) -> bool:
        """Add a batch after all others.

        Args:
            batch: its place.
            fresh: whether it must begin a new extent.

        Returns:
            Whether it begins a new extent.
        """
        self.messages += batch.end - batch.first
        if not fresh and self.ends and self.ends[-1] == batch.first:
            size = self._sizes[-1]
            if (
                size < EXTENT_BYTES
                and batch.size < EXTENT_BYTES
                and self._offsets[-1] + size == batch.offset
                and self._ordinals[-1] + batch.first - self.firsts[-1] == batch.ordinal
            ):
                self.ends[-1] = batch.end
                self._sizes[-1] = size + batch.size
                self._times[-1] = max(self._times[-1], batch.time_max_ns)
                return False
        self.firsts.append(batch.first)
        self.ends.append(batch.end)
        self._ordinals.append(batch.ordinal)
        self._offsets.append(batch.offset)
        self._sizes.append(batch.size)
        self._times.append(batch.time_max_ns)
        return True

    def position(self, index: int) -> int:
        """Return the position of the first extent that ends after the index, or len(self)."""
        return bisect_right(self.ends, index)

    def at_ordinal(self, ordinal: int) -> int:
        """Return the position of the last extent that begins at or before this ordinal, or -1."""
        return bisect_right(self._ordinals, ordinal) - 1

    def within(self, position: int, end: int, max_bytes: int) -> tuple[int, int]:
        """Count the extents from `position` on that begin before `end` and fit in `max_bytes`.

        Returns:
            Their number, and the bytes that they take.
        """
        # Sizes are summed up, since extents need not touch: damage leaves gaps between them.
        stop = max(position, bisect_left(self.firsts, end))
        filled = np.cumsum(np.array(self._sizes[position:stop], np.int64))
        count = int(np.searchsorted(filled, max_bytes, "right"))
        return count, int(filled[count - 1]) if count else 0

    def within_bytes(self, max_bytes: int, end: int) -> int:
        """Return the index from which on the extents take at most `max_bytes`; `end`: none does."""
        filled = np.cumsum(np.array(self._sizes[::-1], np.int64))
        whole = int(np.searchsorted(filled, max_bytes, "right"))
        if whole == len(self):
            return self.firsts[0] if whole else end
        extent = self[len(self) - whole - 1]
        room = max_bytes - (int(filled[whole - 1]) if whole else 0)
        return extent.end - (extent.end - extent.first) * room // extent.size

    def at_time(self, wall_ns: int) -> int:
        """Find the first extent with a message published at or after this time, or len(self)."""
        # No binary search: the times do not ascend if the clock was set back.
        for position, time_ns in enumerate(self._times):
            if time_ns >= wall_ns:
                return position
        return len(self)

    def replace(self, position: int, pieces: Iterable[Extent]) -> None:
        """Replace an extent by the parts of it that can still be read."""
        rows = list(pieces)
        for number, column in enumerate(self._columns):
            column[position : position + 1] = array("q", [row[number] for row in rows])
        self._count()

    @property
    def _columns(self) -> tuple["array[int]", ...]:
        return (self.firsts, self.ends, self._ordinals, self._offsets, self._sizes, self._times)

    def _count(self) -> None:
        self.messages = sum(self.ends) - sum(self.firsts)

    def rows(self, position: int, stop: int) -> Rows:
        """Copy the extents [position, stop)."""
        return np.array([column[position:stop] for column in self._columns], np.int64)

    def extend(self, rows: Rows) -> None:
        """Add extents, as `rows` returns them, after all others; none joins the last one."""
        for column, added in zip(self._columns, rows, strict=True):
            column.frombytes(added.tobytes())
        self._count()

    def cut(self, index: int) -> None:
        """Forget all messages from this index on: they are stored elsewhere, or were refused."""
        keep = bisect_left(self.firsts, index)
        for column in self._columns:
            del column[keep:]
        if keep and self.ends[-1] > index:
            self.ends[-1] = index
        self._count()

    def messages_between(self, first: int, end: int) -> int:
        """Count the readable messages with an index in [first, end)."""
        # Not a difference of ordinals: that would count lost messages, too.
        at = self.position(first)
        total = 0
        while at < len(self) and self.firsts[at] < end:
            total += min(self.ends[at], end) - max(self.firsts[at], first)
            at += 1
        return total


class BatchKey(NamedTuple):
    """The values that tie a batch to its file."""

    salt: int
    log_id_short: int


class Stretch(NamedTuple):
    """An extent and the file that contains it."""

    path: str
    key: BatchKey
    extent: Extent


def runs_of(places: Sequence[Stretch]) -> Iterator[Stretch]:
    """Join places that follow each other without a gap, so that each run takes one read."""
    run: Stretch | None = None
    for place in places:
        if run is not None and place.path == run.path and _touch(run.extent, place.extent):
            extent = run.extent._replace(
                end=place.extent.end,
                size=run.extent.size + place.extent.size,
                time_max_ns=max(run.extent.time_max_ns, place.extent.time_max_ns),
            )
            run = run._replace(extent=extent)
            continue
        if run is not None:
            yield run
        run = place
    if run is not None:
        yield run


def _touch(left: Extent, right: Extent) -> bool:
    return (
        left.offset + left.size == right.offset
        and left.end == right.first
        and left.end_ordinal == right.ordinal
    )
