"""Ranges of indexes: merged by arrays as one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sparq.log.ranges import merge_ranges, merge_ranges_scalar

pairs = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 6)), max_size=60)


@given(pairs=pairs)
def test_arrays_and_loops_agree(pairs: list[tuple[int, int]]) -> None:
    """Both ways, and the plain set of indexes, are the same."""
    firsts = [first for first, _ in pairs]
    ends = [first + size for first, size in pairs]

    merged = merge_ranges(np.array(firsts, np.int64), np.array(ends, np.int64))

    assert merged == merge_ranges_scalar(firsts, ends) == merge_ranges(firsts, ends)
    members = {
        index for first, end in zip(firsts, ends, strict=True) for index in range(first, end)
    }
    assert {index for first, end in merged for index in range(first, end)} == members
    edges = [edge for pair in merged for edge in pair]
    assert edges == sorted(set(edges))
