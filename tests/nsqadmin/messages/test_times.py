"""Publish times of messages, and previews of seeks."""

from __future__ import annotations

from sparq.nsqadmin.messages import spread
from sparq.protocol.instant import rfc3339
from sparq.protocol.messages import ns_of


def test_times_are_read_with_nanoseconds() -> None:
    """What nsqd writes is read back; a time may have a shorter fraction, or none."""
    for ns in (0, 1_795_000_000_000_000_001):
        assert ns == ns_of(rfc3339(ns))
    assert 1_500_000_000 == ns_of("1970-01-01T00:00:01.5Z")
    assert 1_000_000_000 == ns_of("1970-01-01T00:00:01Z")


def test_counts_are_spread_evenly() -> None:
    """Counts are spread over buckets; rounding keeps the sum, and no count is negative."""
    assert [5, 5, 0, 0] == spread([([0, 20], [10])], 0, 40, 4)
    assert [3, 0, 0, 7] == spread([([0, 1], [3]), ([39, 40], [7])], 0, 40, 4)
    assert [0, 1, 1, 1] == spread([([10, 40], [3])], 0, 40, 4)
    odd = spread([(range(0, 701, 7), [at % 5 for at in range(100)])], 0, 700, 33)
    assert sum(at % 5 for at in range(100)) == sum(odd)
    assert min(odd) >= 0
