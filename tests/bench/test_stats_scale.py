"""The benchmark of /stats and /metrics under load."""

from bench.stats_scale import PATHS, longest_during, measure


def test_a_small_run_has_every_figure() -> None:
    """Each path is answered while messages are delivered; times are not checked."""
    found, quiet = measure(topics=10, channels=2, rounds=1)

    assert [figures.path for figures in found] == list(PATHS)
    for figures in found:
        assert len(figures.answers) == 1
        assert figures.size_bytes > 1000
        assert figures.path in figures.line()
    assert quiet > 0


def test_only_overlapping_deliveries_count() -> None:
    """A message counts if its time in transit overlaps a span; the longest time is returned."""
    ways = [(0.0, 1.5), (2.0, 2.25), (5.0, 9.0)]

    assert longest_during(ways, [(1.0, 2.0)]) == 1.5
    assert longest_during(ways, [(2.1, 2.2), (3.0, 4.0)]) == 0.25
    assert longest_during(ways, [(3.0, 4.0)]) == 0.0
