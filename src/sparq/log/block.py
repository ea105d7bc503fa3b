"""Messages in memory: the blocks that channels deliver from, their cache, and the growing end.

1. A block's indexes are contiguous, and its bytes have been verified or were just made here.
2. A block never changes: a reader may keep it, and send slices of it at any time later.
3. One cache serves all logs and is bounded in bytes. An entry is one extent of a log (see
   `extents`): blocks that follow each other. The entry used longest ago goes first; the one just
   put or grown stays, whatever its size. Evicting costs only time: all of it is on the disk too.
4. Commits may be of one message each. `Tail` merges their blocks 32 at a time, and all of an
   extent's once it is full: each byte is copied twice at most, and readers get runs.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from typing import Final

import numpy as np
from numpy.typing import NDArray

Buffer = bytes | bytearray | memoryview
Ends = NDArray[np.uint32]

BLOCK_OVERHEAD: Final = 400
"""Bytes of Python objects that a block costs besides its arrays (measured, rounded up)."""

NOT_LOOKED_FOR: Final = -1

STAMP_START: Final = 8
STAMP_END: Final = 16
STAMP: Final = np.dtype(">i8")
"""Where a frame has the time of its publish."""


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
        oldest_published_ns: when the oldest of them was published, where who made the block knows:
            to look into all frames costs more than to deliver them.
    """

    first: int
    count: int
    ends: Ends
    frames: Buffer
    ordinal: int
    oldest_published_ns: int = NOT_LOOKED_FOR

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
        return self._stamps(np.where(positions > 0, self.ends[positions - 1], 0))

    def oldest_ns(self) -> int:
        """When the oldest of the messages was published (ns since 1970); looked for once."""
        if self.oldest_published_ns == NOT_LOOKED_FOR:
            starts = np.zeros(self.count, np.uint32)
            starts[1:] = self.ends[:-1]
            self.oldest_published_ns = int(self._stamps(starts).min())
        return self.oldest_published_ns

    def _stamps(self, starts: NDArray[np.integer]) -> NDArray[np.int64]:
        # A cell for each byte that a time could begin at, laid over the frames: one look a message.
        # A table of the eight bytes of each took three times as long.
        shape = (len(self.frames) - STAMP_END + 1,)
        cells = np.ndarray(shape, STAMP, self.frames, STAMP_START, (1,))
        stamps: NDArray[np.int64] = cells[starts].astype(np.int64)
        return stamps


def merge(blocks: Sequence[Block]) -> Block:
    """One block of several that follow each other without a gap."""
    if len(blocks) == 1:
        return blocks[0]
    sizes = [len(block.frames) for block in blocks]
    frames = b"".join([block.frames for block in blocks])
    count = sum([block.count for block in blocks])
    if count == len(blocks):  # of one message each
        ends = np.cumsum(sizes, dtype=np.uint32)
    else:
        bases = accumulate(sizes, initial=0)
        shifted = [block.ends + np.uint32(base) for block, base in zip(blocks, bases, strict=False)]
        ends = np.concatenate(shifted)
    # NOT_LOOKED_FOR is less than any time: where one is not known, the whole is not.
    oldest_ns = min([block.oldest_published_ns for block in blocks])
    return Block(blocks[0].first, count, ends, frames, blocks[0].ordinal, oldest_ns)


def first_at_time(block: Block, wall_ns: int) -> int | None:
    """The first message whose timestamp is at or after this time; None: none is."""
    stamps = block.timestamps(np.arange(block.first, block.end))
    later = np.flatnonzero(stamps >= wall_ns)
    return block.first + int(later[0]) if len(later) else None


CACHE_BYTES: Final = 64 << 20
ENTRY_OVERHEAD: Final = 600
"""Bytes that an entry costs besides its blocks (measured, rounded up)."""

Key = tuple[int, int]
"""(a number of the log's own, first index of the extent)"""


class Entry:
    """The blocks of one extent, ascending.

    Attributes:
        blocks: the blocks.
        cost_bytes: what they take in memory.
        evicted: whether the cache has let go of it.
    """

    __slots__ = ("blocks", "cost_bytes", "evicted")

    def __init__(self, blocks: list[Block]) -> None:
        self.blocks = blocks
        self.cost_bytes = ENTRY_OVERHEAD + sum(block.cost_bytes for block in blocks)
        self.evicted = False


def nothing() -> Entry:
    """An entry that no cache has."""
    entry = Entry([])
    entry.evicted = True
    return entry


class BlockCache:
    """Entries by key, the one used last at the end."""

    def __init__(self, limit_bytes: int = CACHE_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._entries: OrderedDict[Key, Entry] = OrderedDict()
        self._owners = count(1)

    def new_owner(self) -> int:
        """A number for a log's keys; may be called in any thread."""
        return next(self._owners)

    def get(self, key: Key) -> Entry | None:
        """The entry, now the one used last."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def peek(self, key: Key) -> Entry | None:
        """The entry, for somebody who only looks: it counts as used as before."""
        return self._entries.get(key)

    def put(self, key: Key, blocks: list[Block]) -> Entry:
        """An entry of these blocks, in place of what was there."""
        self.discard(key)
        entry = Entry(blocks)
        self._entries[key] = entry
        self.size_bytes += entry.cost_bytes
        self._shrink()
        return entry

    def grow(self, key: Key, entry: Entry, growth_bytes: int) -> None:
        """Note that the entry, which is in here, costs so much more now, and was used."""
        entry.cost_bytes += growth_bytes
        self.size_bytes += growth_bytes
        self._entries.move_to_end(key)
        if self.size_bytes > self.limit_bytes:
            self._shrink()

    def discard(self, key: Key) -> None:
        """Forget an entry, if it is there."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._let_go(entry)

    def discard_all(self, owner: int, firsts: Iterable[int]) -> None:
        """Forget the entries of one log that begin at these indexes."""
        for first in firsts:
            self.discard((owner, first))

    def _shrink(self) -> None:
        while self.size_bytes > self.limit_bytes and len(self._entries) > 1:
            self._let_go(self._entries.popitem(last=False)[1])

    def _let_go(self, entry: Entry) -> None:
        self.size_bytes -= entry.cost_bytes
        entry.evicted = True


JOIN_COUNT: Final = 32
"""So many small blocks are joined to one."""


class Tail:
    """The entry of the extent that grows.

    Attributes:
        entry: that entry. Where it is evicted the next block must begin an extent: the others of
            the last one are not here.
    """

    __slots__ = ("_cache", "_joined", "_key", "_owner", "entry")

    def __init__(self, cache: BlockCache, owner: int) -> None:
        self._cache = cache
        self._owner = owner
        self._key: Key = (owner, -1)
        self.entry = nothing()
        self._joined = 0

    def begin(self, block: Block) -> None:
        """The block begins an extent. The one before it is full: it becomes one block."""
        if len(self.entry.blocks) > 1 and not self.entry.evicted:
            self._cache.put(self._key, [merge(self.entry.blocks)])
        self._key = (self._owner, block.first)
        self.entry = self._cache.put(self._key, [block])
        self._joined = 0

    def extend(self, block: Block) -> None:
        """The block goes on with the extent; not when its entry is evicted."""
        entry = self.entry
        entry.blocks.append(block)
        growth_bytes = len(block.frames) + 4 * block.count + BLOCK_OVERHEAD
        if len(entry.blocks) - self._joined >= JOIN_COUNT:
            entry.blocks[self._joined :] = [merge(entry.blocks[self._joined :])]
            self._joined += 1
            cost_bytes = ENTRY_OVERHEAD + sum(block.cost_bytes for block in entry.blocks)
            growth_bytes = cost_bytes - entry.cost_bytes
        self._cache.grow(self._key, entry, growth_bytes)

    def forget(self) -> None:
        """What follows begins an extent."""
        self.entry = nothing()
