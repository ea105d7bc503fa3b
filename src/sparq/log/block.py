"""Messages in memory: the blocks that channels deliver from, their cache, and the growing tail.

1. A block's indexes are contiguous, and its bytes have been verified or were just created here.
2. A block's messages never change: a reader may keep the block and send slices of it at any later
   time.
3. One cache serves all logs and is bounded in bytes. An entry is one extent of a log (see
   `extents`): blocks that follow each other. The least recently used entry is evicted first; the
   entry just put or grown stays, whatever its size. Eviction costs only time: everything in the
   cache is also on the disk.
4. A commit may hold a single message. `Tail` merges small blocks 32 at a time, and all blocks of an
   extent once it is full: each byte is copied at most twice, and readers get long runs.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

Buffer = bytes | bytearray | memoryview
Ends = NDArray[np.uint32]

BLOCK_OVERHEAD: Final = 400
"""Bytes of Python objects that a block costs in addition to its arrays (measured, rounded up)."""

UNKNOWN_NS: Final = -1

STAMP_START: Final = 8
STAMP_END: Final = 16
STAMP: Final = np.dtype(">i8")
"""The publish time in a frame: big-endian, at bytes [STAMP_START, STAMP_END)."""


# Not frozen: setting frozen fields costs a microsecond more. Only `oldest_ns` changes one later.
@dataclass(slots=True, weakref_slot=True, eq=False)
class Block:
    """Messages [first, first + count) as frames.

    Attributes:
        first: the first message's index.
        count: the number of messages.
        ends: where each frame ends in `frames`, shape (count,), uint32.
        frames: the frames, one after the other.
        ordinal: the number of messages in the log before this block.
        oldest_published_ns: publish time of the oldest message (ns since 1970), if the creator of
            the block knows it, else UNKNOWN_NS: to look into all frames for it costs more than
            to deliver them.
    """

    first: int
    count: int
    ends: Ends
    frames: Buffer
    ordinal: int
    oldest_published_ns: int = UNKNOWN_NS

    @property
    def end(self) -> int:
        """The index after the last message."""
        return self.first + self.count

    @property
    def cost_bytes(self) -> int:
        """Bytes that the block takes in memory."""
        return len(self.frames) + 4 * self.count + BLOCK_OVERHEAD

    def start_of(self, index: int) -> int:
        """Return the offset of the message's frame in `frames`; for `end`, the size of `frames`."""
        position = index - self.first
        return int(self.ends[position - 1]) if position else 0

    def slice(self, first: int, end: int) -> memoryview:
        """Return the frames of messages [first, end), all of which the block must hold."""
        return memoryview(self.frames)[self.start_of(first) : self.start_of(end)]

    def ends_within(self, first: int, end: int) -> Ends:
        """Return where each frame of [first, end) ends in `slice(first, end)`."""
        return self.ends[first - self.first : end - self.first] - np.uint32(self.start_of(first))

    def timestamps(self, indexes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the publish times (ns since 1970) of these messages, which the block must hold."""
        positions = indexes - self.first
        # For position 0, `ends[-1]` is read, too: it is the last end, and `where` does not use it.
        return self._stamps(np.where(positions > 0, self.ends[positions - 1], 0))

    def oldest_ns(self) -> int:
        """Return the publish time of the oldest message (ns since 1970); computed only once."""
        if self.oldest_published_ns == UNKNOWN_NS:
            starts = np.zeros(self.count, np.uint32)
            starts[1:] = self.ends[:-1]
            self.oldest_published_ns = int(self._stamps(starts).min())
        return self.oldest_published_ns

    def _stamps(self, starts: NDArray[np.integer]) -> NDArray[np.int64]:
        # A view with one int64 for each byte offset of the frames: one lookup per message.
        # Gathering the eight bytes of each timestamp into a table took three times as long.
        shape = (len(self.frames) - STAMP_END + 1,)
        cells = np.ndarray(shape, STAMP, self.frames, STAMP_START, (1,))
        stamps: NDArray[np.int64] = cells[starts].astype(np.int64)
        return stamps


def merge(blocks: Sequence[Block]) -> Block:
    """Merge blocks that follow each other without a gap into one."""
    if len(blocks) == 1:
        return blocks[0]
    sizes = [len(block.frames) for block in blocks]
    frames = b"".join([block.frames for block in blocks])
    count = sum([block.count for block in blocks])
    if count == len(blocks):  # one message each
        ends = np.cumsum(sizes, dtype=np.uint32)
    else:
        bases = accumulate(sizes, initial=0)
        shifted = [block.ends + np.uint32(base) for block, base in zip(blocks, bases, strict=False)]
        ends = np.concatenate(shifted)
    # UNKNOWN_NS is less than any time: if one block's time is unknown, so is the result's.
    oldest_ns = min([block.oldest_published_ns for block in blocks])
    return Block(blocks[0].first, count, ends, frames, blocks[0].ordinal, oldest_ns)


CACHE_BYTES: Final = 64 << 20
ENTRY_OVERHEAD: Final = 600
"""Bytes that an entry costs in addition to its blocks (measured, rounded up)."""

Key = tuple[object, int]
"""(an object that stands for the log, first index of the extent)"""


class CachedBlocks:
    """The blocks of one extent, ascending.

    Attributes:
        blocks: the blocks.
        cost_bytes: bytes that they take in memory.
        evicted: whether the cache has dropped the entry.
    """

    __slots__ = ("blocks", "cost_bytes", "evicted")

    def __init__(self, blocks: list[Block], *, evicted: bool = False) -> None:
        self.blocks = blocks
        self.cost_bytes = ENTRY_OVERHEAD + sum(block.cost_bytes for block in blocks)
        self.evicted = evicted


class BlockCache:
    """Entries by key, ordered from the least to the most recently used."""

    def __init__(self, limit_bytes: int = CACHE_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._entries: OrderedDict[Key, CachedBlocks] = OrderedDict()

    def get(self, key: Key) -> CachedBlocks | None:
        """Return the entry and mark it as the most recently used."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def peek(self, key: Key) -> CachedBlocks | None:
        """Return the entry without marking it as used."""
        return self._entries.get(key)

    def put(self, key: Key, blocks: list[Block]) -> CachedBlocks:
        """Store an entry of these blocks, replacing the one with the same key."""
        self.discard(key)
        entry = CachedBlocks(blocks)
        self._entries[key] = entry
        self.size_bytes += entry.cost_bytes
        self._shrink()
        return entry

    def grow(self, key: Key, entry: CachedBlocks, growth_bytes: int) -> None:
        """Add `growth_bytes` to the cost of an entry in the cache, and mark it as used."""
        entry.cost_bytes += growth_bytes
        self.size_bytes += growth_bytes
        self._entries.move_to_end(key)
        if self.size_bytes > self.limit_bytes:
            self._shrink()

    def discard(self, key: Key) -> None:
        """Remove an entry if it is there."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._let_go(entry)

    def discard_all(self, owner: object, firsts: Iterable[int]) -> None:
        """Remove the entries of one log's extents that begin at these indexes."""
        for first in firsts:
            self.discard((owner, first))

    def _shrink(self) -> None:
        # The newest entry stays even if it alone exceeds the limit: a large batch must be readable.
        while self.size_bytes > self.limit_bytes and len(self._entries) > 1:
            self._let_go(self._entries.popitem(last=False)[1])

    def _let_go(self, entry: CachedBlocks) -> None:
        self.size_bytes -= entry.cost_bytes
        entry.evicted = True


JOIN_COUNT: Final = 32
"""Number of small blocks that are merged into one."""


class Tail:
    """The entry of the extent that grows.

    Attributes:
        entry: that entry. If it has been evicted, the next block must begin an extent: the cache no
            longer has the extent's earlier blocks.
    """

    __slots__ = ("_cache", "_joined", "_key", "_owner", "entry")

    def __init__(self, cache: BlockCache, owner: object) -> None:
        self._cache = cache
        self._owner = owner
        self._key: Key = (owner, -1)
        self.entry = CachedBlocks([], evicted=True)
        self._joined = 0

    def begin(self, block: Block) -> None:
        """Begin an extent with this block; the blocks of the extent before it become one block."""
        # An evicted entry stays out: its extent may be cached again by now, read from the disk.
        if len(self.entry.blocks) > 1 and not self.entry.evicted:
            self._cache.put(self._key, [merge(self.entry.blocks)])
        self._key = (self._owner, block.first)
        self.entry = self._cache.put(self._key, [block])
        self._joined = 0

    def extend(self, block: Block) -> None:
        """Append the block to the extent, whose entry must not have been evicted."""
        # Every commit comes here: the block's cost is added, without a call or a sum of all blocks.
        entry = self.entry
        entry.blocks.append(block)
        growth_bytes = len(block.frames) + 4 * block.count + BLOCK_OVERHEAD
        # Merging each new block at once would copy a growing extent again with every commit.
        if len(entry.blocks) - self._joined >= JOIN_COUNT:
            entry.blocks[self._joined :] = [merge(entry.blocks[self._joined :])]
            self._joined += 1
            cost_bytes = ENTRY_OVERHEAD + sum(block.cost_bytes for block in entry.blocks)
            growth_bytes = cost_bytes - entry.cost_bytes
        self._cache.grow(self._key, entry, growth_bytes)

    def forget(self) -> None:
        """Make the next block begin an extent."""
        self.entry = CachedBlocks([], evicted=True)
