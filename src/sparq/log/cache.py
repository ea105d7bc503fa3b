"""The one cache of verified blocks, shared by all logs and bounded in bytes.

1. An entry is one extent of a log (see `extents`): a list of blocks that follow each other.
2. What was used longest ago goes first; the entry just put or grown stays, whatever its size.
3. Evicting costs only time: everything in here is on the disk as well.
"""

from collections import OrderedDict
from collections.abc import Iterable
from itertools import count
from typing import Final

from sparq.log.block import Block

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
