"""Blocks, their cache, and the tail that grows: runs, not single messages, and bounded."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sparq.log.block import JOIN_COUNT, Block, BlockCache, Tail, first_at_time, merge
from sparq.log.commit import PendingBatch
from sparq.log.extents import EXTENT_BYTES, Extent, Extents
from sparq.protocol import batch
from sparq.protocol.frames import BodySlices
from sparq.testing import ManualClock, MemoryDisk
from tests.log.conversations import NODE, bodies_of, commit, open_log


def block(first: int, bodies: list[bytes], time_ns: int = 5) -> Block:
    data, ends = batch.encode_frames([BodySlices.of(bodies)], first, NODE, time_ns)
    return Block(first, len(bodies), ends, data, first - 100)


def test_slices() -> None:
    """A run of a block is a part of its bytes, with ends of its own."""
    run = block(100, [b"a", b"bb", b"ccc", b"dddd"])

    assert bodies_of(run.slice(101, 103)) == [(101, b"bb"), (102, b"ccc")]
    assert run.ends_within(101, 103).tolist() == [36, 73]
    assert run.slice(102, 102) == b""
    assert (run.end, run.start_of(100), run.start_of(104)) == (104, 0, len(run.frames))


@given(sizes=st.lists(st.lists(st.binary(max_size=9), min_size=1, max_size=5), min_size=1))
def test_merged_blocks_are_one(sizes: list[list[bytes]]) -> None:
    """Merging is the same as having encoded all at once."""
    blocks: list[Block] = []
    first = 100
    for bodies in sizes:
        blocks.append(block(first, bodies))
        first += len(bodies)

    merged = merge(blocks)

    whole = block(100, [body for bodies in sizes for body in bodies])
    assert (merged.first, merged.count, merged.ordinal) == (100, whole.count, 0)
    assert bytes(merged.frames) == bytes(whole.frames)
    assert merged.ends.tolist() == whole.ends.tolist()
    assert merged.ends.dtype == np.uint32


def test_time_within_a_block() -> None:
    """The first message at or after a time, by the frames' own timestamps."""
    run = merge([block(100, [b"a", b"b"], 10), block(102, [b"c"], 20)])

    assert [first_at_time(run, at) for at in (0, 10, 11, 20, 21)] == [100, 100, 102, 102, None]


@given(times=st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=6), knows=st.data())
def test_the_oldest_of_merged_blocks(times: list[int], knows: st.DataObject) -> None:
    """What the blocks know of the oldest message's time, and what they look for, is the same."""
    blocks = [block(100 + 2 * n, [b"a", b"bb"], at) for n, at in enumerate(times)]
    for one, at in zip(blocks, times, strict=True):
        if knows.draw(st.booleans()):
            one.oldest_published_ns = at

    assert min(times) == merge(blocks).oldest_ns()


def test_the_log_knows_the_time_of_what_it_stores() -> None:
    """Nobody needs to look for it."""
    clock = ManualClock()
    begun = commit(open_log(MemoryDisk(), clock), [b"a", b"b"], clock)

    assert begun.batch is not None
    assert clock.now().wall_ns == begun.batch.block.oldest_published_ns


def test_messages_that_get_times_of_their_own() -> None:
    """The block knows the oldest of these."""
    stored = PendingBatch(block(100, [b"a", b"b", b"c"], 10), 103, 10, None, 0)
    stored.block.oldest_published_ns = 10
    stored.stamp(np.array([7, 3, 9]))

    assert 3 == stored.block.oldest_published_ns
    assert [7, 3, 9] == stored.block.timestamps(np.array([100, 101, 102])).tolist()


def test_cache_is_bounded_and_forgets_the_oldest_use() -> None:
    """What was used longest ago goes; what is grown or put stays."""
    cache = BlockCache(10_500)
    entries = {n: cache.put((1, n), [block(n, [b"x" * 1_500])]) for n in range(4)}
    assert cache.get((1, 0)) is entries[0]
    cache.put((1, 9), [block(9, [b"x" * 1_500])])
    assert [entries[n].evicted for n in range(4)] == [False, True, False, False]
    assert cache.get((1, 1)) is None
    cache.grow((1, 0), entries[0], 8_000)
    assert cache.get((1, 0)) is entries[0]
    assert cache.size_bytes <= 10_600
    cache.discard((1, 0))
    cache.discard((1, 0))
    assert entries[0].evicted
    assert cache.size_bytes >= 0
    assert cache.new_owner() != cache.new_owner()


def test_tail_joins_small_blocks() -> None:
    """Single messages become runs of a score, and one block when the stretch is full."""
    cache = BlockCache()
    tail = Tail(cache, 3)
    assert tail.entry.evicted
    tail.begin(block(100, [b"0"]))
    for number in range(1, 3 * JOIN_COUNT + 5):
        tail.extend(block(100 + number, [b"%d" % number]))
    entry = cache.get((3, 100))
    assert entry is not None
    assert [part.count for part in entry.blocks] == [JOIN_COUNT] * 3 + [1] * 5
    before = cache.size_bytes
    tail.begin(block(500, [b"next"]))
    entry = cache.get((3, 100))
    assert entry is not None
    assert [part.count for part in entry.blocks] == [3 * JOIN_COUNT + 5]
    assert cache.size_bytes < before + 1_200
    cache.discard((3, 500))
    assert tail.entry.evicted
    tail.begin(block(600, [b"y"]))
    tail.forget()
    assert tail.entry.evicted


batches = st.lists(
    st.tuples(st.integers(1, 9), st.integers(8, 3 * EXTENT_BYTES), st.integers(0, 2)), max_size=30
)


@given(batches=batches, cut=st.integers(0, 300), asked=st.integers(0, 300))
def test_extents_as_a_list(batches: list[tuple[int, int, int]], cut: int, asked: int) -> None:
    """The sparse index says of every index what a plain list of batches says."""
    extents = Extents()
    rows: list[Extent] = []
    index, offset = 10, 4608
    for count, size, gap in batches:
        index += gap
        row = Extent(index, index + count, index - 10, offset, size, index)
        if extents.append(row):
            assert not rows or gap or size >= EXTENT_BYTES or extents[-2].size >= EXTENT_BYTES
        rows.append(row)
        index, offset = index + count, offset + size
    stored = {i for row in rows for i in range(row.first, row.end)}
    extents.cut(cut)
    stored = {i for i in stored if i < cut}

    found = {
        i for e in map(extents.__getitem__, range(len(extents))) for i in range(e.first, e.end)
    }
    assert found == stored
    assert extents.messages == len(stored)
    assert extents.messages_between(asked, 200) == len({i for i in stored if asked <= i < 200})
    position = extents.position(asked)
    later = [i for i in stored if i >= asked]
    assert (position == len(extents)) == (not later)
    if later:
        assert max(extents.firsts[position], asked) == min(later)


def test_damaged_extent_is_replaced_by_what_is_left() -> None:
    """An extent that lost its middle is two, and its neighbours stay."""
    extents = Extents()
    whole = Extent(10, 40, 0, 4608, EXTENT_BYTES, 5)
    extents.append(whole)
    extents.append(Extent(40, 50, 30, 4608 + EXTENT_BYTES, 800, 6))
    left = whole._replace(end=20, size=1_000)
    right = whole._replace(first=30, ordinal=20, offset=9_000, size=2_000)

    extents.replace(0, [left, right])

    assert [extents[k] for k in range(2)] == [left, right]
    assert (len(extents), extents.messages) == (3, 30)
    assert extents.at_time(6) == 2
    assert extents.at_ordinal(-1) == -1
