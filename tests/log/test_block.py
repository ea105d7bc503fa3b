"""Blocks, their cache, and the tail: runs instead of single messages, with a size limit."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sparq.log.block import JOIN_COUNT, Block, BlockCache, Tail, merge
from tests.log.log_operations import block_of, bodies_of


def test_slices() -> None:
    """A slice of a block is part of its bytes; `ends_within` counts from the slice's start."""
    run = block_of(100, [b"a", b"bb", b"ccc", b"dddd"])

    assert bodies_of(run.slice(101, 103)) == [(101, b"bb"), (102, b"ccc")]
    assert run.ends_within(101, 103).tolist() == [36, 73]
    assert run.slice(102, 102) == b""
    assert (run.end, run.start_of(100), run.start_of(104)) == (104, 0, len(run.frames))


@given(sizes=st.lists(st.lists(st.binary(max_size=9), min_size=1, max_size=5), min_size=1))
def test_merged_blocks_are_one(sizes: list[list[bytes]]) -> None:
    """Merged blocks equal one block with all messages."""
    blocks: list[Block] = []
    first = 100
    for bodies in sizes:
        blocks.append(block_of(first, bodies))
        first += len(bodies)

    merged = merge(blocks)

    whole = block_of(100, [body for bodies in sizes for body in bodies])
    assert (merged.first, merged.count, merged.ordinal) == (100, whole.count, 0)
    assert bytes(merged.frames) == bytes(whole.frames)
    assert merged.ends.tolist() == whole.ends.tolist()
    assert merged.ends.dtype == np.uint32


@given(times=st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=6), knows=st.data())
def test_the_oldest_of_merged_blocks(times: list[int], knows: st.DataObject) -> None:
    """A merged block's oldest time is right, whether or not its parts knew theirs."""
    blocks = [block_of(100 + 2 * n, [b"a", b"bb"], at) for n, at in enumerate(times)]
    for one, at in zip(blocks, times, strict=True):
        if knows.draw(st.booleans()):
            one.oldest_published_ns = at

    assert min(times) == merge(blocks).oldest_ns()


def test_cache_is_bounded_and_forgets_the_oldest_use() -> None:
    """The cache evicts the least recently used entries, and stays within its limit."""
    cache = BlockCache(10_500)
    entries = {n: cache.put((1, n), [block_of(n, [b"x" * 1_500])]) for n in range(4)}
    assert cache.get((1, 0)) is entries[0]
    cache.put((1, 9), [block_of(9, [b"x" * 1_500])])
    assert [entries[n].evicted for n in range(4)] == [False, True, False, False]
    assert cache.get((1, 1)) is None
    cache.grow((1, 0), entries[0], 8_000)
    assert cache.get((1, 0)) is entries[0]
    assert cache.size_bytes <= 10_600
    cache.discard((1, 0))
    cache.discard((1, 0))
    assert entries[0].evicted
    assert cache.size_bytes >= 0


def test_tail_joins_small_blocks() -> None:
    """The tail merges every `JOIN_COUNT` blocks, and all of them when the extent is full."""
    cache = BlockCache()
    tail = Tail(cache, 3)
    assert tail.entry.evicted
    tail.begin(block_of(100, [b"0"]))
    for number in range(1, 3 * JOIN_COUNT + 5):
        tail.extend(block_of(100 + number, [b"%d" % number]))
    entry = cache.get((3, 100))
    assert entry is not None
    assert [part.count for part in entry.blocks] == [JOIN_COUNT] * 3 + [1] * 5
    before = cache.size_bytes
    tail.begin(block_of(500, [b"next"]))
    entry = cache.get((3, 100))
    assert entry is not None
    assert [part.count for part in entry.blocks] == [3 * JOIN_COUNT + 5]
    assert cache.size_bytes < before + 1_200
    cache.discard((3, 500))
    assert tail.entry.evicted
    tail.begin(block_of(600, [b"y"]))
    tail.forget()
    assert tail.entry.evicted
