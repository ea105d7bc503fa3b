"""A log's index gives the same answers for many indexes as for each one individually."""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sparq.log.index import Index
from sparq.log.segment import EXTENT_BYTES, Extent, Extents, Segment, SegmentHeader


@st.composite
def indexes(draw: st.DrawFn) -> Index:
    """Segments of extents with gaps in indexes and ordinals, some empty."""
    index, at, ordinal = Index(), draw(st.integers(1, 5)), draw(st.integers(0, 3))
    for _ in range(draw(st.integers(0, 4))):
        header = SegmentHeader(1, b"", 1, 0, at, at + 1000, ordinal, 1, -1, 1)
        segment = Segment(f"{at}", header, size=0)
        for _ in range(draw(st.integers(0, 4))):
            at += draw(st.sampled_from([0, 0, 1, 5]))
            ordinal += draw(st.sampled_from([0, 0, 2]))
            count = draw(st.integers(1, 6))
            size = draw(st.sampled_from([1, 2, 7]))
            segment.extents.append(Extent(at, at + count, ordinal, 0, size, 0), fresh=True)
            segment.size += size
            at, ordinal = at + count, ordinal + count
        index.add_file(segment)
        index.written_end = at
        at += draw(st.integers(1, 4))
    index.end_ordinal = ordinal
    return index


@settings(max_examples=300)
@given(indexes())
def test_ordinals_at_equals_ordinal_at(index: Index) -> None:
    """`ordinals_at` equals `ordinal_at`: in extents, in gaps, before the first, after the last."""
    wanted = np.arange(0, 120)

    assert [index.ordinal_at(at) for at in wanted.tolist()] == index.ordinals_at(wanted).tolist()


@settings(max_examples=300)
@given(indexes(), st.integers(0, 60), st.integers(0, 60))
def test_runs_of_stored_indexes(index: Index, first: int, end: int) -> None:
    """Stored runs contain exactly the stored indexes within the bounds, and do not touch."""
    lows, highs = index.stored_runs(first, end)

    stored = [at for at in range(first, end) if index.locate(at) is not None]
    runs = list(zip(lows.tolist(), highs.tolist(), strict=True))

    assert stored == [at for low, high in runs for at in range(low, high)]
    assert all(left[1] < right[0] for left, right in pairwise(runs))
    assert len(stored) == index.messages_between(first, max(first, end))
    assert index.next_stored(first) == min(
        (at for at in range(first, 120) if index.locate(at) is not None),
        default=max(first, index.written_end),
    )


def plain_within(index: Index, first: int, end: int, max_bytes: int) -> tuple[int, int]:
    """The result of `index_within`, computed extent by extent."""
    reached, size = first, 0
    for _, extent in index.extents_from(first):
        if extent.first >= end or (size and size + extent.size > max_bytes):
            break
        reached, size = min(extent.end, end), size + extent.size
    return reached, size


@settings(max_examples=500)
@given(indexes(), st.integers(0, 60), st.integers(0, 80), st.integers(0, 40))
def test_whole_extents_are_found_up_to_max_bytes(
    index: Index, first: int, end: int, max_bytes: int
) -> None:
    """`index_within` returns whole extents that fit `max_bytes`, and at least the first one."""
    assert plain_within(index, first, end, max_bytes) == index.index_within(first, end, max_bytes)


@settings(max_examples=300)
@given(indexes(), st.integers(0, 40))
def test_the_newest_messages_within_max_bytes(index: Index, max_bytes: int) -> None:
    """The messages from `index_within_bytes` on take at most that many bytes, and no more fit.

    Of an extent that does not fit whole, the messages count as equally large.
    """
    low = index.index_within_bytes(max_bytes)
    listed = [extent for _, extent in index.extents_from(0)]
    kept = [e.size * (e.end - max(e.first, low)) / (e.end - e.first) for e in listed if e.end > low]

    assert sum(kept) <= max_bytes
    older = [e for e in listed if e.first < low][-1:]
    assert not older or sum(e.size for e in listed if e.first >= older[0].first) > max_bytes


@settings(max_examples=300)
@given(indexes(), st.integers(0, 60))
def test_the_index_at_an_ordinal(index: Index, ordinal: int) -> None:
    """It is the smallest stored index with at least so many messages before it."""
    stored = [at for at in range(120) if index.locate(at) is not None]
    expected = [at for at in stored if index.ordinal_at(at) >= ordinal]

    assert [index.index_at_ordinal(ordinal)] == (expected[:1] or [index.written_end])


batches = st.lists(
    st.tuples(st.integers(1, 9), st.integers(8, 3 * EXTENT_BYTES), st.integers(0, 2)), max_size=30
)


@given(batches=batches, cut=st.integers(0, 300))
def test_extents_equal_a_list_of_batches(batches: list[tuple[int, int, int]], cut: int) -> None:
    """Extents hold the messages of a list of batches; those after a cut are forgotten."""
    extents = Extents()
    stored: set[int] = set()
    index, offset = 10, 4608
    for count, size, gap in batches:
        index += gap
        row = Extent(index, index + count, index - 10, offset, size, index)
        if extents.append(row):
            assert not stored or gap or size >= EXTENT_BYTES or extents[-2].size >= EXTENT_BYTES
        stored.update(range(row.first, row.end))
        index, offset = index + count, offset + size
    extents.cut(cut)

    rows = [extents[number] for number in range(len(extents))]
    found = [i for row in rows for i in range(row.first, row.end)]
    assert found == sorted(i for i in stored if i < cut)
    assert extents.messages == len(found)
