"""A log's index gives the same answers for many indexes as for each one individually."""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sparq.log.extents import Extent
from sparq.log.index import Index
from sparq.log.segment import Segment, SegmentHeader


@st.composite
def indexes(draw: st.DrawFn) -> tuple[Index, int]:
    """Segments of extents with gaps in indexes and ordinals, some empty; the end's ordinal."""
    index, at, ordinal = Index(), draw(st.integers(1, 5)), draw(st.integers(0, 3))
    for _ in range(draw(st.integers(0, 4))):
        header = SegmentHeader(1, b"", 1, 0, at, at + 1000, ordinal, 1, -1, 1)
        segment = Segment(f"{at}", header)
        for _ in range(draw(st.integers(0, 4))):
            at += draw(st.sampled_from([0, 0, 1, 5]))
            ordinal += draw(st.sampled_from([0, 0, 2]))
            count = draw(st.integers(1, 6))
            size = draw(st.sampled_from([1, 2, 7]))
            segment.extents.append(Extent(at, at + count, ordinal, 0, size, 0), fresh=True)
            at, ordinal = at + count, ordinal + count
        index.add(segment)
        at += draw(st.integers(1, 4))
    return index, ordinal


@settings(max_examples=300)
@given(indexes())
def test_ordinals_at_equals_ordinal_at(made: tuple[Index, int]) -> None:
    """`ordinals_at` equals `ordinal_at`: in extents, in gaps, before the first, after the last."""
    index, end_ordinal = made
    wanted = np.arange(0, 120)

    expected = [index.ordinal_at(at, end_ordinal) for at in wanted.tolist()]

    assert expected == index.ordinals_at(wanted, end_ordinal).tolist()


@settings(max_examples=300)
@given(indexes(), st.integers(0, 60), st.integers(0, 60))
def test_runs_of_stored_indexes(made: tuple[Index, int], first: int, end: int) -> None:
    """Stored runs contain exactly the stored indexes within the bounds, and do not touch."""
    index = made[0]
    lows, highs = index.stored_runs(first, end)

    stored = [at for at in range(first, end) if index.locate(at) is not None]
    runs = list(zip(lows.tolist(), highs.tolist(), strict=True))

    assert stored == [at for low, high in runs for at in range(low, high)]
    assert all(left[1] < right[0] for left, right in pairwise(runs))


def plain_within(index: Index, first: int, end: int, max_bytes: int) -> tuple[int, int]:
    """The result of `within`, computed extent by extent."""
    reached, size = first, 0
    for _, extent in index.extents_from(first):
        if extent.first >= end or (size and size + extent.size > max_bytes):
            break
        reached, size = min(extent.end, end), size + extent.size
    return reached, size


@settings(max_examples=500)
@given(indexes(), st.integers(0, 60), st.integers(0, 80), st.integers(0, 40))
def test_within_returns_whole_extents_up_to_max_bytes(
    made: tuple[Index, int], first: int, end: int, max_bytes: int
) -> None:
    """`within` returns whole extents that fit `max_bytes`, and at least the first one."""
    index = made[0]

    assert plain_within(index, first, end, max_bytes) == index.within(first, end, max_bytes)
