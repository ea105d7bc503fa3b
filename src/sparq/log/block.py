"""A run of messages in memory: what channels deliver from.

1. A block's indexes are contiguous, and its bytes have been verified or were just made here.
2. A block never changes: whoever holds one may send slices of it at any time later.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Buffer = bytes | bytearray | memoryview
Ends = NDArray[np.uint32]

BLOCK_OVERHEAD: Final = 400
"""Bytes of Python objects that a block costs besides its arrays (measured, rounded up)."""


# Not frozen, though nobody changes one: setting frozen fields costs a microsecond more.
@dataclass(slots=True, weakref_slot=True, eq=False)
class Block:
    """Messages `first` to `first + count`, as frames.

    Attributes:
        first: the first message's index.
        count: how many messages.
        ends: where each frame ends in `frames`, shape (count,), uint32.
        frames: the frames, one after the other.
        ordinal: messages in the log before this block.
    """

    first: int
    count: int
    ends: Ends
    frames: Buffer
    ordinal: int

    @property
    def end(self) -> int:
        """The index behind the last message's."""
        return self.first + self.count

    @property
    def cost_bytes(self) -> int:
        """What it takes in memory."""
        return len(self.frames) + 4 * self.count + BLOCK_OVERHEAD

    def start_of(self, index: int) -> int:
        """Where the frame of the message begins; for `end`, where the last one ends."""
        position = index - self.first
        return int(self.ends[position - 1]) if position else 0

    def slice(self, first: int, end: int) -> memoryview:
        """The frames of messages [first, end), which the block holds."""
        return memoryview(self.frames)[self.start_of(first) : self.start_of(end)]

    def ends_within(self, first: int, end: int) -> Ends:
        """Where each frame of [first, end) ends in `slice(first, end)`."""
        return self.ends[first - self.first : end - self.first] - np.uint32(self.start_of(first))

    def timestamps(self, indexes: NDArray[np.int64]) -> NDArray[np.int64]:
        """When these messages, which the block holds, were published (ns since 1970)."""
        positions = indexes - self.first
        starts = np.where(positions > 0, self.ends[positions - 1], 0).astype(np.int64)
        cells = np.frombuffer(self.frames, np.uint8)
        stamps = cells[starts[:, None] + np.arange(8, 16)].view(">i8").ravel()
        return np.asarray(stamps, np.int64)


def merge(blocks: Sequence[Block]) -> Block:
    """One block of several that follow each other without a gap."""
    if len(blocks) == 1:
        return blocks[0]
    frames = b"".join([block.frames for block in blocks])
    ends: list[Ends] = []
    base = 0
    for block in blocks:
        ends.append(block.ends + np.uint32(base))
        base += len(block.frames)
    count = sum(block.count for block in blocks)
    return Block(blocks[0].first, count, np.concatenate(ends), frames, blocks[0].ordinal)


def first_at_time(block: Block, wall_ns: int) -> int | None:
    """The first message whose timestamp is at or after this time; None: none is."""
    stamps = block.timestamps(np.arange(block.first, block.end))
    later = np.flatnonzero(stamps >= wall_ns)
    return block.first + int(later[0]) if len(later) else None
