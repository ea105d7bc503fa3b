"""Latency percentiles: the sketch, its window, and what a channel measures at FIN."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparq.broker.in_flight import InFlight
from sparq.broker.latency import BINS, LONGEST_NS, LatencyWindow, bin_of, bins_of, merged, value_of
from tests.broker.house import SECOND_NS, Client, House

MILLISECOND_NS = 1_000_000
QUANTILES = (1.0, 0.99, 0.5)
latencies = st.integers(-(10**9), 10**18)


@given(st.lists(latencies, max_size=50))
def test_bins_by_array_are_those_by_hand(values: list[int]) -> None:
    """The vectorised logarithm is the plain one, and no latency is outside the bins."""
    by_array = bins_of(np.array(values, np.int64)).tolist()

    assert [bin_of(value) for value in values] == by_array
    assert all(0 <= position < BINS for position in by_array)


def is_near(value: float, exact: int) -> bool:
    """Whether it is off by 1 % at most, and what is lost to whole nanoseconds."""
    return abs(value - exact) <= 0.01 * exact + 1


@given(st.integers(1000, LONGEST_NS))
@example(1577)  # 15.93 ns off
def test_a_value_is_off_by_one_percent(latency_ns: int) -> None:
    """What a bin stands for is within 1 % of all that falls into it."""
    assert is_near(value_of(bin_of(latency_ns)), latency_ns)


@given(st.lists(st.integers(1000, 10**13), min_size=1, max_size=200))
def test_percentiles_are_those_of_the_sorted_samples(values: list[int]) -> None:
    """The sample of rank ceil(count x quantile), as NSQ's sketch has it."""
    window = LatencyWindow(QUANTILES, 60 * SECOND_NS)
    window.add(np.array(values, np.int64), 1)
    found = merged([window], QUANTILES, 2)

    assert found.count == len(values)
    assert found.percentiles is not None
    for quantile, percentile in zip(QUANTILES, found.percentiles, strict=True):
        exact = sorted(values)[max(1, math.ceil(len(values) * quantile)) - 1]
        assert percentile["quantile"] == quantile
        assert is_near(percentile["value"], exact)


def test_a_window_forgets_by_halves() -> None:
    """A sample counts for at least half the window and at most the whole of it."""
    window = LatencyWindow((0.5,), 10 * SECOND_NS)
    window.add(np.array([MILLISECOND_NS]), 100 * SECOND_NS)
    window.add(np.array([MILLISECOND_NS] * 20), 106 * SECOND_NS)

    def count(seconds: float) -> int:
        return merged([window], (0.5,), int(seconds * SECOND_NS)).count

    assert [count(at) for at in (106, 109.9, 110, 114.9, 115, 300)] == [21, 21, 20, 20, 0, 0]
    window.add(np.array([MILLISECOND_NS]), 400 * SECOND_NS)
    assert count(404) == 1
    assert count(500) == 0


def test_no_sample_gives_zeros() -> None:
    """Configured, but nothing finished yet: every quantile is there with 0, as NSQ has it."""
    found = merged([LatencyWindow((0.9, 0.5), SECOND_NS)], (0.9, 0.5), 5)

    assert found.count == 0
    assert found.percentiles == [{"quantile": 0.9, "value": 0}, {"quantile": 0.5, "value": 0}]


def measuring(**options: object) -> House:
    return House(e2e_percentiles=(1.0, 0.5), e2e_window_ns=600 * SECOND_NS, **options)


def values_of(house: House, client: Client) -> tuple[int, list[float]]:
    latency = house.channel("t", "c").e2e_processing_latency
    assert latency.percentiles is not None
    return latency.count, [round(p["value"] / SECOND_NS, 1) for p in latency.percentiles]


@pytest.mark.parametrize("count", [3, 100])
def test_a_fin_is_a_sample(count: int) -> None:
    """The time from publish to FIN, queueing and retries included; a failed FIN is none."""
    house = measuring()
    consumer = house.consumer("t", "c", rdy=count)
    house.publish("t", *([b"x"] * count))
    house.advance(3)
    house.turn()
    messages = consumer.messages()
    assert values_of(house, consumer) == (0, [0.0, 0.0])

    consumer.finish([*messages[:-1], messages[0]])
    consumer.finish(messages[:1])
    assert values_of(house, consumer) == (count - 1, [3.0, 3.0])
    house.pass_time(60)
    (late,) = consumer.messages()
    assert late.attempts == 2
    consumer.finish([late])
    assert values_of(house, consumer)[0] == count
    assert values_of(house, consumer)[1] == pytest.approx([63.0, 3.0], rel=0.02)


def test_a_topic_is_the_sum_of_its_channels() -> None:
    """Both channels' samples, though each has its own."""
    house = measuring()
    one, two = house.consumer("t", "c", rdy=9), house.consumer("t", "d", rdy=9)
    house.publish("t", b"x")
    house.advance(1)
    one.finish(one.messages())
    house.advance(8)
    two.finish(two.messages())
    topic = house.topic("t").e2e_processing_latency

    assert house.channel("t", "c").e2e_processing_latency.count == 1
    assert topic.count == 2
    assert topic.percentiles is not None
    assert [p["value"] / SECOND_NS for p in topic.percentiles] == pytest.approx([9, 1], rel=0.011)


def test_off_costs_nothing() -> None:
    """Without percentiles nothing is measured, and NSQ's empty form is told."""
    house = House()
    consumer = house.consumer("t", "c", rdy=5)
    house.publish("t", b"x")
    consumer.finish(consumer.messages())
    channel = house.broker.topics["t"].channels["c"]

    assert channel.latencies is None
    assert house.channel("t", "c").e2e_processing_latency.percentiles is None
    assert house.topic("t").e2e_processing_latency.count == 0


def test_publish_times_are_kept_while_in_flight() -> None:
    """Told once for each message that is with the owner; pages that are gone are no harm."""
    in_flight = InFlight()
    in_flight.note_run(4090, 4100, 1, now_ns=0, deadline_ns=1)
    indexes = np.arange(4090, 9000)
    in_flight.note_published(indexes, indexes * 10)
    in_flight.finish([4091], 1)

    assert in_flight.published([4099, 4090, 4090, 4091, 8999], 1).tolist() == [40900, 40990]
    assert in_flight.published(np.array([4090]), 2).tolist() == []
