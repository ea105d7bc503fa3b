"""Latency from publish to FIN and to the first delivery, and a channel's lag."""

import math
from bisect import bisect_left

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparq.broker.latency import (
    BINS,
    DELIVERY_BOUNDS_NS,
    LONGEST_NS,
    Histogram,
    LatencyWindow,
    bins_of,
    merged,
    value_of,
)
from sparq.options.units import MILLISECOND, SECOND
from sparq.protocol import commands
from tests.broker.harness import BrokerHarness, Client

QUANTILES = (1.0, 0.99, 0.5)


def is_near(value: float, exact: int) -> bool:
    """Whether the value is within 1 % and 1 ns of the exact one."""
    return abs(value - exact) <= 0.01 * exact + 1


@given(st.integers(-(10**9), 10**18))
@example(1577)  # 15.93 ns off
def test_a_bins_value_is_within_one_percent(latency_ns: int) -> None:
    """A bin's value is within 1 % of every latency in the bin, in the range that is measured."""
    found = int(bins_of(np.array([latency_ns]))[0])

    assert 0 <= found < BINS
    assert is_near(value_of(found), min(max(latency_ns, 1000), LONGEST_NS))


@given(st.lists(st.integers(1000, 10**13), min_size=1, max_size=200))
def test_percentiles_are_those_of_the_sorted_samples(values: list[int]) -> None:
    """A percentile is the sample of rank ceil(count x quantile), as in NSQ."""
    window = LatencyWindow(QUANTILES, 60 * SECOND)
    window.add(np.array(values, np.int64), 1)
    found = merged([window], QUANTILES, 2)

    assert found.count == len(values)
    assert found.percentiles is not None
    for quantile, percentile in zip(QUANTILES, found.percentiles, strict=True):
        exact = sorted(values)[max(1, math.ceil(len(values) * quantile)) - 1]
        assert percentile["quantile"] == quantile
        assert is_near(percentile["value"], exact)


def test_a_sample_counts_for_half_a_window_to_a_whole_one() -> None:
    """A sample counts for at least half the window and at most the whole window."""
    window = LatencyWindow((0.5,), 10 * SECOND)
    window.add(np.array([MILLISECOND]), 100 * SECOND)
    window.add(np.array([MILLISECOND] * 20), 106 * SECOND)

    def count(seconds: float) -> int:
        return merged([window], (0.5,), int(seconds * SECOND)).count

    assert [count(at) for at in (106, 109.9, 110, 114.9, 115, 300)] == [21, 21, 20, 20, 0, 0]
    window.add(np.array([MILLISECOND]), 400 * SECOND)
    assert count(404) == 1
    assert count(500) == 0


def test_no_sample_gives_zeros() -> None:
    """Without samples every configured quantile is 0, as in NSQ."""
    found = merged([LatencyWindow((0.9, 0.5), SECOND)], (0.9, 0.5), 5)

    assert found.count == 0
    assert found.percentiles == [{"quantile": 0.9, "value": 0}, {"quantile": 0.5, "value": 0}]


def harness_with_percentiles(**options: object) -> BrokerHarness:
    return BrokerHarness(e2e_percentiles=(1.0, 0.5), e2e_window_ns=600 * SECOND, **options)


def values_of(harness: BrokerHarness, client: Client) -> tuple[int, list[float]]:
    latency = harness.channel("t", "c").e2e_processing_latency
    assert latency.percentiles is not None
    return latency.count, [round(p["value"] / SECOND, 1) for p in latency.percentiles]


@pytest.mark.parametrize("count", [3, 100])
def test_a_fin_is_a_sample(count: int) -> None:
    """A FIN adds the time from publish to FIN, including waiting and retries.

    A failed FIN adds no sample.
    """
    harness = harness_with_percentiles()
    consumer = harness.consumer("t", "c", rdy=count)
    harness.publish("t", *([b"x"] * count))
    harness.advance(3)
    harness.turn()
    messages = consumer.messages()
    assert values_of(harness, consumer) == (0, [0.0, 0.0])

    consumer.finish([*messages[:-1], messages[0]])
    consumer.finish(messages[:1])
    assert values_of(harness, consumer) == (count - 1, [3.0, 3.0])
    harness.pass_time(60)
    (late,) = consumer.messages()
    assert late.attempts == 2
    consumer.finish([late])
    assert values_of(harness, consumer)[0] == count
    assert values_of(harness, consumer)[1] == pytest.approx([63.0, 3.0], rel=0.02)


def test_a_topic_is_the_sum_of_its_channels() -> None:
    """A topic's latency includes the samples of all its channels."""
    harness = harness_with_percentiles()
    one, two = harness.consumer("t", "c", rdy=9), harness.consumer("t", "d", rdy=9)
    harness.publish("t", b"x")
    harness.advance(1)
    one.finish(one.messages())
    harness.advance(8)
    two.finish(two.messages())
    topic = harness.topic("t").e2e_processing_latency

    assert harness.channel("t", "c").e2e_processing_latency.count == 1
    assert topic.count == 2
    assert topic.percentiles is not None
    assert [p["value"] / SECOND for p in topic.percentiles] == pytest.approx([9, 1], rel=0.011)


def test_without_configured_percentiles_nothing_is_measured() -> None:
    """Without configured percentiles nothing is measured, and NSQ's empty form is reported."""
    harness = BrokerHarness()
    consumer = harness.consumer("t", "c", rdy=5)
    harness.publish("t", b"x")
    consumer.finish(consumer.messages())
    channel = harness.broker.topics["t"].channels["c"]

    assert channel.latencies is None
    assert harness.channel("t", "c").e2e_processing_latency.percentiles is None
    assert harness.topic("t").e2e_processing_latency.count == 0


def test_a_histogram_bucket_includes_its_upper_bound() -> None:
    """A bucket includes its upper bound, the last one has none, negative times count as 0."""
    histogram = Histogram((10, 20))
    for took_ns, count in ((-5, 1), (10, 2), (11, 3), (21, 4)):
        histogram.observe(took_ns, count)

    assert histogram.counts == [3, 3, 4]
    assert histogram.total_ns == 20 + 33 + 84


def test_only_first_deliveries_are_observed() -> None:
    """`waited` measures from publish to the first delivery; redeliveries are not counted."""
    harness = BrokerHarness()
    harness.publish("t", b"a", b"b")
    harness.advance(4)
    consumer = harness.consumer("t", "c", rdy=5)
    messages = consumer.messages()
    harness.pass_time(70)
    assert [message.attempts for message in consumer.messages()] == [2, 2]

    waited = harness.broker.turn.waited
    assert len(messages) == sum(waited.counts) == 2
    assert waited.counts[bisect_left(DELIVERY_BOUNDS_NS, 4 * SECOND)] == 2
    assert waited.total_ns == 8 * SECOND


def age(harness: BrokerHarness) -> float | None:
    return harness.channel("t", "c").oldest_waiting_seconds


def evict_all(harness: BrokerHarness) -> None:
    """Drop everything the log has cached in memory."""
    log = harness.broker.topics["t"].stream.log
    log._cache._entries.clear()
    log._recent = None


def deliver_and_finish(client: Client) -> None:
    """Deliver one message and finish it."""
    client.say(commands.rdy(1))
    messages = client.messages()
    client.say(commands.rdy(0))
    client.finish(messages)


def test_the_age_is_that_of_the_oldest_waiting_message() -> None:
    """The age is that of the oldest waiting message.

    Messages in flight, finished or deferred do not count; requeued ones do.
    """
    harness = BrokerHarness()
    client = harness.consumer("t", "c")
    assert age(harness) is None
    harness.publish("t", b"early", defer_ms=600_000)
    harness.pass_time(10)
    harness.publish("t", b"a")
    harness.pass_time(5)
    harness.publish("t", b"b")
    harness.pass_time(1)
    assert age(harness) == 6

    client.say(commands.rdy(1))
    (a,) = client.messages()
    client.say(commands.rdy(0))
    assert age(harness) == 1
    client.say(commands.req(a.id, 0))
    assert age(harness) == 6
    harness.broker.act_on_messages(
        "finish",
        "t",
        "c",
        harness.broker.topics["t"].channels["c"].requeued.all()[0],
        harness.clock.now(),
    )
    harness.turn()
    assert age(harness) == 1
    harness.act("empty_channel", "t", "c")
    assert age(harness) is None


def test_the_age_of_an_uncached_message_is_never_too_high() -> None:
    """The age of an uncached message is never too high; nothing is read from disk for it.

    Unless its time is known already, or it is the first of its segment, the newest message of its
    extent is used instead.
    """
    harness = BrokerHarness()
    client = harness.consumer("t", "c")
    for _ in range(3):
        harness.publish("t", b"x")
        harness.pass_time(10)
    evict_all(harness)
    assert age(harness) == 30
    deliver_and_finish(client)
    evict_all(harness)
    assert age(harness) == 10
    deliver_and_finish(client)  # the extent is read for the consumer, and so is the next message
    assert age(harness) == 10
    harness.pass_time(5)
    evict_all(harness)
    assert age(harness) == 15


def test_a_known_publish_time_survives_eviction() -> None:
    """A message's time stays exact after its eviction from memory, while it is the oldest."""
    harness = BrokerHarness()
    client = harness.consumer("t", "c", rdy=1)
    harness.publish("t", b"a")
    client.finish(client.messages())
    client.say(commands.rdy(0))
    harness.publish("t", b"b")
    harness.pass_time(10)
    harness.publish("t", b"c")
    assert age(harness) == 10
    evict_all(harness)
    assert age(harness) == 10


def test_a_lost_message_has_no_age() -> None:
    """A message that the log no longer has does not count as waiting."""
    harness = BrokerHarness()
    harness.consumer("t", "c")
    harness.publish("t", b"a")
    channel = harness.broker.topics["t"].channels["c"]
    channel.requeued.push(5, 1)
    assert age(harness) is None


def test_the_search_for_the_oldest_message_is_limited() -> None:
    """The search for the oldest message is limited: the age is None after too many skipped ranges.

    Stats must not take long.
    """
    harness = BrokerHarness()
    harness.consumer("t", "c")
    for _ in range(80):
        harness.publish("t", b"deferred", defer_ms=600_000)
        harness.publish("t", b"x")
    channel = harness.broker.topics["t"].channels["c"]
    indexes = harness.broker.topics["t"].stream.log.inspection.stored_from(0, 1 << 54, 200)
    channel.skips.insert(indexes[1:-1:2])
    assert harness.channel("t", "c").depth == 1
    assert age(harness) is None


def test_the_time_to_clear_follows_the_depth() -> None:
    """The time to clear is unknown at first and while the depth does not fall.

    It is 0 when nothing waits.
    """
    harness = BrokerHarness()
    client = harness.consumer("t", "c")

    def clear() -> float | None:
        return harness.channel("t", "c").clear_seconds

    def consume(count: int) -> None:
        for _ in range(count):
            deliver_and_finish(client)

    assert clear() == 0
    harness.publish("t", *[b"x"] * 100)
    assert clear() is None
    harness.pass_time(2)
    assert clear() is None
    harness.pass_time(14)
    consume(10)
    assert clear() is None  # compared with nothing waiting
    harness.pass_time(16)
    consume(10)
    assert clear() == 80 * 16 / 10
    harness.pass_time(70)
    assert clear() is None  # too long ago
    harness.pass_time(0.5)
    consume(1)
    assert clear() is None  # too short ago
    harness.pass_time(9.5)
    consume(9)
    assert clear() == 70 * 10 / 10
