"""Publish times of messages, and previews of seeks."""

from __future__ import annotations

from sparq.cluster.messages import ns_of
from sparq.nsqadmin.messages import spread, text_of


def test_times_are_written_with_nanoseconds() -> None:
    """Times are written with nanoseconds, or without a fraction for whole seconds."""
    for text in ("2026-11-23T12:00:00Z", "2026-11-23T12:00:00.000000001Z"):
        assert text == text_of(ns_of(text))
    assert 1_500_000_000 == ns_of("1970-01-01T00:00:01.5Z")


def test_counts_are_spread_evenly() -> None:
    """Counts are spread over buckets; rounding keeps the sum, and no count is negative."""
    assert [5, 5, 0, 0] == spread([([0, 20], [10])], 0, 40, 4)
    assert [3, 0, 0, 7] == spread([([0, 1], [3]), ([39, 40], [7])], 0, 40, 4)
    assert [0, 1, 1, 1] == spread([([10, 40], [3])], 0, 40, 4)
    odd = spread([(range(0, 701, 7), [at % 5 for at in range(100)])], 0, 700, 33)
    assert sum(at % 5 for at in range(100)) == sum(odd)
    assert min(odd) >= 0
