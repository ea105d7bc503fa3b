"""The latency benchmark: it measures every message and computes the quantiles correctly."""

from bench.latency import Load, measure, quantiles


def test_every_message_after_the_warm_up_is_measured() -> None:
    """A short run returns ascending quantiles of the time since each message was sent."""
    load = Load(seconds=0.5, rate=200)

    found = measure(load)

    assert 300 == load.count
    assert 100 == load.count - load.warm_up
    for figures in (found.delivered_ms, found.answered_ms, found.sync_ms):
        assert 5 == len(figures)
        assert sorted(figures) == list(figures)
        assert figures[0] > 0
    assert found.server_cpu_us > 0


def test_quantiles_are_in_milliseconds() -> None:
    """p50, p90, p99, p99.9 and the maximum are converted from nanoseconds to milliseconds."""
    values = [number * 1_000_000 for number in range(1001)]

    assert (500.0, 900.0, 990.0, 999.0, 1000.0) == quantiles(values)
