"""The newest messages of a log, in the shared cache while their extent still grows.

Commits may be of one message each. Their blocks are joined by the score, and all of an extent's
once it is full: each byte is copied twice at most, and readers get runs, not single messages.
"""

from typing import Final

from sparq.log.block import Block, merge
from sparq.log.cache import ENTRY_OVERHEAD, BlockCache, Entry, Key

JOIN_COUNT: Final = 32
"""So many small blocks are joined to one."""


class Tail:
    """The entry of the extent that grows."""

    __slots__ = ("_cache", "_entry", "_joined", "_key", "_owner")

    def __init__(self, cache: BlockCache, owner: int) -> None:
        self._cache = cache
        self._owner = owner
        self._key: Key = (owner, -1)
        self._entry: Entry | None = None
        self._joined = 0

    @property
    def evicted(self) -> bool:
        """Whether the next block must begin an extent: the last one's others are not here."""
        return self._entry is None or self._entry.evicted

    def begin(self, block: Block) -> None:
        """The block begins an extent. The one before it is full: it becomes one block."""
        if self._entry is not None and len(self._entry.blocks) > 1 and not self.evicted:
            self._cache.put(self._key, [merge(self._entry.blocks)])
        self._key = (self._owner, block.first)
        self._entry = self._cache.put(self._key, [block])
        self._joined = 0

    def extend(self, block: Block) -> None:
        """The block goes on with the extent; not when `evicted`."""
        entry = self._entry
        assert entry is not None
        entry.blocks.append(block)
        growth_bytes = block.cost_bytes
        if len(entry.blocks) - self._joined >= JOIN_COUNT:
            entry.blocks[self._joined :] = [merge(entry.blocks[self._joined :])]
            self._joined += 1
            cost_bytes = ENTRY_OVERHEAD + sum(block.cost_bytes for block in entry.blocks)
            growth_bytes = cost_bytes - entry.cost_bytes
        self._cache.grow(self._key, entry, growth_bytes)

    def forget(self) -> None:
        """What follows begins an extent."""
        self._entry = None
