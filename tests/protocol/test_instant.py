"""Instants, and the index that corresponds to a clock time."""

from sparq.protocol.instant import INDEX_EPOCH_NS, clock_index


def test_clock_index_counts_units_since_2025() -> None:
    """An index unit is 64 ns, counted from the start of 2025."""
    assert clock_index(INDEX_EPOCH_NS) == 0
    assert clock_index(INDEX_EPOCH_NS + 63) == 0
    assert clock_index(INDEX_EPOCH_NS + 64) == 1
    assert clock_index(INDEX_EPOCH_NS + 64_000) == 1_000


def test_clock_index_is_never_negative() -> None:
    """A clock time before 2025 gives index 0."""
    assert clock_index(0) == 0


def test_clock_index_fits_54_bits_for_36_years() -> None:
    """At the end of 2060 an index still fits 54 bits."""
    year_2061_ns = 2_871_763_200_000_000_000

    assert clock_index(year_2061_ns) < 1 << 54
