"""A segment's sparse index gives the same answers as a list of its batches."""

from hypothesis import given
from hypothesis import strategies as st

from sparq.log.extents import EXTENT_BYTES, Extent, Extents

batches = st.lists(
    st.tuples(st.integers(1, 9), st.integers(8, 3 * EXTENT_BYTES), st.integers(0, 2)), max_size=30
)


@given(batches=batches, cut=st.integers(0, 300), asked=st.integers(0, 300))
def test_extents_equal_a_list_of_batches(
    batches: list[tuple[int, int, int]], cut: int, asked: int
) -> None:
    """Extents give the same answers for every index as a list of the batches."""
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
    low = extents.within_bytes(asked * 100, 999)
    listed = [extents[number] for number in range(len(extents))]
    # Of an extent that is cut, the messages count as equally large.
    kept = [e.size * (e.end - max(e.first, low)) / (e.end - e.first) for e in listed if e.end > low]
    assert sum(kept) <= asked * 100
    older = [e for e in listed if e.first < low][-1:]
    assert not older or sum(e.size for e in listed if e.first >= older[0].first) > asked * 100
    position = extents.position(asked)
    later = [i for i in stored if i >= asked]
    assert (position == len(extents)) == (not later)
    if later:
        assert max(extents.firsts[position], asked) == min(later)


def test_damaged_extent_is_replaced_by_its_remains() -> None:
    """An extent that lost its middle is replaced by two; its neighbours stay."""
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
