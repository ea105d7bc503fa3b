"""Records give the same state, whatever the size of their ranges and runs."""

from hypothesis import given, settings
from hypothesis import strategies as st

from sparq.log.records import merge_ranges

PAIRS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 6)), max_size=60)


@settings(max_examples=400)
@given(pairs=PAIRS)
def test_merged_ranges_are_the_same_set_of_indexes(pairs: list[tuple[int, int]]) -> None:
    """Merged ranges contain the same indexes, ascend, and neither overlap nor touch."""
    firsts = [first for first, _ in pairs]
    ends = [first + size for first, size in pairs]

    merged = merge_ranges(firsts, ends)

    members = {
        index for first, end in zip(firsts, ends, strict=True) for index in range(first, end)
    }
    assert {index for first, end in merged for index in range(first, end)} == members
    edges = [edge for pair in merged for edge in pair]
    assert edges == sorted(set(edges))
