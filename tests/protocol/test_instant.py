"""Instants, and the index that corresponds to a clock time."""

from sparq.protocol.instant import INDEX_EPOCH_NS, clock_index


def test_clock_index_counts_units_since_2025() -> None:
    """An index unit is 64 ns, counted from the start of 2025; at the end of 2060 it fits 54 bits.

    A clock time before 2025 gives index 0.
    """
    units = {0: 0, 63: 0, 64: 1, 64_000: 1_000, -INDEX_EPOCH_NS: 0}
    assert units == {ns: clock_index(INDEX_EPOCH_NS + ns) for ns in units}
    year_2061_ns = 2_871_763_200_000_000_000
    assert 0 < clock_index(year_2061_ns) < 1 << 54
