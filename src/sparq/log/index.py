"""Where a log's messages are: its segments in order, and the lookups in them.

1. Segments ascend by first index; a segment has no indexes that belong to the next one.
2. Indexes have gaps; ordinals have a gap only where messages were lost or their file was deleted.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sparq.log.segment import Extent, Segment, Stretch

Indexes = NDArray[np.int64]


class Index:
    """The segments of a log.

    Attributes:
        files, firsts: the segments, and the first index of each.
        written_end: the index after the last readable message.
        end_ordinal: the number of messages in the log, including lost and deleted ones.
    """

    def __init__(self) -> None:
        self.files: list[Segment] = []
        self.firsts: list[int] = []
        self.written_end = 0
        self.end_ordinal = 0

    def add_file(self, segment: Segment) -> None:
        """Add a segment after all others; the earlier ones end where it begins."""
        # After a failed sync, a new file begins before the end of the one that it replaces.
        for earlier in reversed(self.files):
            if earlier.end_index <= segment.first_index:
                break
            earlier.extents.cut(segment.first_index)
        self.files.append(segment)
        self.firsts.append(segment.first_index)

    def end_of(self, segment: Segment) -> int:
        """Return the index at which a segment ends, whatever its file holds."""
        position = self.files.index(segment) + 1
        if position < len(self.files):
            return self.files[position].first_index
        return segment.header.ceiling

    def locate(self, index: int) -> tuple[Segment, int] | None:
        """Find the segment with the index, and which of its extents; None: it is not stored."""
        at = bisect_right(self.firsts, index) - 1
        if at < 0:
            return None
        segment = self.files[at]
        position = segment.extents.position(index)
        if position < len(segment.extents) and segment.extents.firsts[position] <= index:
            return segment, position
        return None

    def extents_from(self, index: int) -> Iterator[tuple[Segment, Extent]]:
        """Yield the extents that end after the index, in order."""
        at = max(bisect_right(self.firsts, index) - 1, 0)
        for segment in self.files[at:]:
            position = segment.extents.position(index)
            while position < len(segment.extents):
                yield segment, segment.extents[position]
                position += 1

    def places(self, first: int, end: int, max_bytes: int) -> tuple[list[Stretch], int]:
        """List the extents that overlap [first, end), until they exceed `max_bytes`.

        Returns:
            Their places, and the index at which the list stops: `end` if it is complete.
        """
        places: list[Stretch] = []
        size = 0
        for segment, extent in self.extents_from(first):
            if extent.first >= end:
                break
            if size > max_bytes:
                return places, extent.first
            # The first extent's batches before `first` are read, but not sent.
            size += extent.size if places else 0
            places.append(segment.place(extent))
        return places, end

    def index_within(self, first: int, end: int, max_bytes: int) -> tuple[int, int]:
        """Find how far the extents that overlap [first, end) reach within `max_bytes`.

        The first of them counts with all of its bytes, and is included whatever its size: otherwise
        a reader with a smaller limit would never advance.

        Returns:
            The index after the last of them, at most `end`, and the bytes that they take.
        """
        reached, size = first, 0
        at = max(bisect_right(self.firsts, first) - 1, 0)
        for segment in self.files[at:]:
            extents = segment.extents
            position = extents.position(first)
            if position == len(extents):
                continue
            if extents.firsts[position] >= end:
                break
            # Sizes are summed up, since extents need not touch: damage leaves gaps between them.
            stop = bisect_left(extents.firsts, end, position)
            filled = np.cumsum(np.array(extents.sizes[position:stop], np.int64))
            count = int(np.searchsorted(filled, max_bytes - size, "right"))
            taken = int(filled[count - 1]) if count else 0
            if not count and not size:
                count, taken = 1, extents[position].size
            if count:
                reached, size = min(extents.ends[position + count - 1], end), size + taken
            if position + count < len(extents):
                break
        return reached, size

    def next_stored(self, index: int) -> int:
        """Return the smallest stored index >= index; `written_end` if there is none."""
        for _, extent in self.extents_from(index):
            return max(index, extent.first)
        return max(self.written_end, index)

    def ordinal_at(self, index: int) -> int:
        """Count the messages in the log before this index.

        In a gap left by damage, the lost messages are counted as far as the index reaches.
        """
        after = next(self.extents_from(index), None)
        limit = self.end_ordinal if after is None else after[1].ordinal
        if after is not None and after[1].first <= index:
            return limit + index - after[1].first
        for segment in reversed(self.files[: bisect_right(self.firsts, index)]):
            if position := segment.extents.position(index):
                before = segment.extents[position - 1]
                return min(limit, before.end_ordinal + index - before.end)
        return limit

    def ordinals_at(self, indexes: Indexes) -> Indexes:
        """`ordinal_at` for many indexes, in any order."""
        firsts, ends, ordinals = self._joined()
        if not len(firsts):
            return np.full(len(indexes), self.end_ordinal)
        # The appended entries answer for indexes after the last extent, without a special case.
        after = np.searchsorted(ends, indexes, "right")
        limits = np.append(ordinals, self.end_ordinal)[after]
        starts = np.append(firsts, np.iinfo(np.int64).max)[after]
        before = np.maximum(after - 1, 0)
        counted = ordinals[before] + (indexes - firsts[before])
        in_gap = np.where(after > 0, np.minimum(limits, counted), limits)
        return np.where(starts <= indexes, limits + indexes - starts, in_gap)

    def stored_runs(self, first: int, end: int) -> tuple[Indexes, Indexes]:
        """List firsts and ends of the runs of stored indexes without a gap, within [first, end)."""
        firsts, ends, _ = self._joined()
        # Without the slices, a log without extents would get one run.
        begins = np.flatnonzero(np.append(True, firsts[1:] != ends[:-1])[: len(firsts)])
        lows = np.maximum(firsts[begins], first)
        highs = np.minimum(ends[np.append(begins[1:], len(ends))[: len(begins)] - 1], end)
        kept = lows < highs
        return lows[kept], highs[kept]

    def _joined(self) -> tuple[Indexes, Indexes, Indexes]:
        """Return first index, end and ordinal of all extents."""
        rows = [segment.extents.rows(0, len(segment.extents)) for segment in self.files]
        firsts, ends, ordinals, *_ = np.concatenate(rows, axis=1) if rows else np.empty((3, 0), "q")
        return firsts, ends, ordinals

    def index_at_ordinal(self, ordinal: int) -> int:
        """Find the first stored index whose ordinal is at least `ordinal`, or `written_end`."""
        for segment in self.files:
            if segment.end_ordinal <= ordinal or not len(segment.extents):
                continue
            extents = segment.extents
            position = max(bisect_right(extents.ordinals, ordinal) - 1, 0)
            extent = extents[position]
            if ordinal < extent.end_ordinal:
                return extent.first + max(0, ordinal - extent.ordinal)
            return extents[position + 1].first
        return self.written_end

    def messages_between(self, first: int, end: int) -> int:
        """Count the stored messages with an index in [first, end): neither lost nor deleted."""
        total = 0
        # Not a difference of ordinals: that would count lost messages, too.
        for _, extent in self.extents_from(first):
            if extent.first >= end:
                break
            total += min(extent.end, end) - max(extent.first, first)
        return total

    def index_within_bytes(self, max_bytes: int) -> int:
        """Return the index from which on the log has at most `max_bytes`; 0: all of it has.

        Within the extent that exceeds them, all messages count as equally large.
        """
        left = max_bytes
        for segment in reversed(self.files):
            if segment.size > left:
                break
            left -= segment.size
        else:
            return 0
        index = segment.end_index
        for extent in reversed(segment.extents):
            if extent.size > left:
                return extent.end - (extent.end - extent.first) * left // extent.size
            index, left = extent.first, left - extent.size
        return index

    def at_time(self, wall_ns: int) -> tuple[Segment, int] | None:
        """Find the first extent with a message published at or after this time, or None."""
        # From the oldest on, and no binary search: times do not ascend if the clock was set back.
        for segment in self.files:
            if segment.last_time_ns >= wall_ns:
                for position, time_ns in enumerate(segment.extents.times):
                    if time_ns >= wall_ns:
                        return segment, position
        return None
