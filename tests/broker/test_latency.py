"""Latency from publish to FIN and to the first delivery, and a channel's lag."""

import math
from bisect import bisect_left

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparq.broker.in_flight import InFlight
from sparq.broker.latency import (
    BINS,
    DELIVERY_BOUNDS_NS,
    LONGEST_NS,
    Histogram,
    LatencyWindow,
    bin_of,
    bins_of,
    merged,
    value_of,
)
from sparq.protocol import commands
from tests.broker.house import SECOND_NS, Client, House

MILLISECOND_NS = 1_000_000
QUANTILES = (1.0, 0.99, 0.5)
latencies = st.integers(-(10**9), 10**18)


@given(st.lists(latencies, max_size=50))
def test_bins_by_array_are_those_by_hand(values: list[int]) -> None:
    """`bins_of` equals `bin_of`, and every latency has a valid bin."""
    by_array = bins_of(np.array(values, np.int64)).tolist()

    assert [bin_of(value) for value in values] == by_array
    assert all(0 <= position < BINS for position in by_array)


def is_near(value: float, exact: int) -> bool:
    """Whether the value is within 1 % and 1 ns of the exact one."""
    return abs(value - exact) <= 0.01 * exact + 1


@given(st.integers(1000, LONGEST_NS))
@example(1577)  # 15.93 ns off
def test_a_value_is_off_by_one_percent(latency_ns: int) -> None:
    """A bin's value is within 1 % of every latency in the bin."""
    assert is_near(value_of(bin_of(latency_ns)), latency_ns)


@given(st.lists(st.integers(1000, 10**13), min_size=1, max_size=200))
def test_percentiles_are_those_of_the_sorted_samples(values: list[int]) -> None:
    """A percentile is the sample of rank ceil(count x quantile), as in NSQ."""
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
    """A sample counts for at least half the window and at most the whole window."""
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
    """Without samples every configured quantile is 0, as in NSQ."""
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
    """A FIN adds the time from publish to FIN, including waiting and retries.

    A failed FIN adds no sample.
    """
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
    """A topic's latency includes the samples of all its channels."""
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
    """Without configured percentiles nothing is measured, and NSQ's empty form is reported."""
    house = House()
    consumer = house.consumer("t", "c", rdy=5)
    house.publish("t", b"x")
    consumer.finish(consumer.messages())
    channel = house.broker.topics["t"].channels["c"]

    assert channel.latencies is None
    assert house.channel("t", "c").e2e_processing_latency.percentiles is None
    assert house.topic("t").e2e_processing_latency.count == 0


def test_publish_times_are_kept_while_in_flight() -> None:
    """`published` returns the publish time of each of the owner's messages in flight, once.

    Indexes in pages that do not exist are ignored.
    """
    in_flight = InFlight()
    in_flight.note_run(4090, 4100, 1, now_ns=0, deadline_ns=1)
    indexes = np.arange(4090, 9000)
    in_flight.note_published(indexes, indexes * 10)
    in_flight.finish([4091], 1)

    assert in_flight.published([4099, 4090, 4090, 4091, 8999], 1).tolist() == [40900, 40990]
    assert in_flight.published(np.array([4090]), 2).tolist() == []


def test_a_run_is_one_observation() -> None:
    """A bucket includes its upper bound, the last one has none, negative times count as 0."""
    histogram = Histogram((10, 20))
    for took_ns, count in ((-5, 1), (10, 2), (11, 3), (21, 4)):
        histogram.observe(took_ns, count)

    assert histogram.counts == [3, 3, 4]
    assert histogram.total_ns == 20 + 33 + 84


def test_first_deliveries_are_observed() -> None:
    """`waited` measures from publish to the first delivery; redeliveries are not counted."""
    house = House()
    house.publish("t", b"a", b"b")
    house.advance(4)
    consumer = house.consumer("t", "c", rdy=5)
    messages = consumer.messages()
    house.pass_time(70)
    assert [message.attempts for message in consumer.messages()] == [2, 2]

    waited = house.broker.waited
    assert len(messages) == sum(waited.counts) == 2
    assert waited.counts[bisect_left(DELIVERY_BOUNDS_NS, 4 * SECOND_NS)] == 2
    assert waited.total_ns == 8 * SECOND_NS


def age(house: House) -> float | None:
    return house.channel("t", "c").oldest_waiting_seconds


def forget(house: House) -> None:
    """Drop everything the log has cached in memory."""
    log = house.broker.topics["t"].stream.log
    log._cache._entries.clear()
    log._recent = None


def take(client: Client) -> None:
    """Deliver one message and finish it."""
    client.say(commands.rdy(1))
    messages = client.messages()
    client.say(commands.rdy(0))
    client.finish(messages)


def test_the_age_is_that_of_the_oldest_message_that_waits() -> None:
    """The age is that of the oldest waiting message.

    Messages in flight, finished or deferred do not count; requeued ones do.
    """
    house = House()
    client = house.consumer("t", "c")
    assert age(house) is None
    house.publish("t", b"early", defer_ms=600_000)
    house.pass_time(10)
    house.publish("t", b"a")
    house.pass_time(5)
    house.publish("t", b"b")
    house.pass_time(1)
    assert age(house) == 6

    client.say(commands.rdy(1))
    (a,) = client.messages()
    client.say(commands.rdy(0))
    assert age(house) == 1
    client.say(commands.req(a.id, 0))
    assert age(house) == 6
    house.broker.act_on_messages(
        "finish",
        "t",
        "c",
        house.broker.topics["t"].channels["c"].requeued.indexes(),
        house.clock.now(),
    )
    house.turn()
    assert age(house) == 1
    house.broker.empty_channel("t", "c", house.clock.now())
    house.turn()
    assert age(house) is None


def test_without_memory_it_is_never_overstated() -> None:
    """The age of an uncached message is never too high; nothing is read from disk for it.

    Unless its time is known already, or it is the first of its segment, the newest message of its
    extent is used instead.
    """
    house = House()
    client = house.consumer("t", "c")
    for _ in range(3):
        house.publish("t", b"x")
        house.pass_time(10)
    forget(house)
    assert age(house) == 30
    take(client)
    forget(house)
    assert age(house) == 10
    take(client)  # the extent is read for the consumer, and so is the next message
    assert age(house) == 10
    house.pass_time(5)
    forget(house)
    assert age(house) == 15


def test_a_known_time_is_remembered() -> None:
    """A message's time stays exact after its eviction from memory, while it is the oldest."""
    house = House()
    client = house.consumer("t", "c", rdy=1)
    house.publish("t", b"a")
    client.finish(client.messages())
    client.say(commands.rdy(0))
    house.publish("t", b"b")
    house.pass_time(10)
    house.publish("t", b"c")
    assert age(house) == 10
    forget(house)
    assert age(house) == 10


def test_a_lost_message_has_no_age() -> None:
    """A message that the log no longer has does not count as waiting."""
    house = House()
    house.consumer("t", "c")
    house.publish("t", b"a")
    channel = house.broker.topics["t"].channels["c"]
    channel.requeued.push(5, 1)
    assert age(house) is None


def test_many_holes_are_not_looked_past() -> None:
    """The search for the oldest message is limited: the age is None after too many skipped ranges.

    Stats must not take long.
    """
    house = House()
    house.consumer("t", "c")
    for _ in range(80):
        house.publish("t", b"deferred", defer_ms=600_000)
        house.publish("t", b"x")
    channel = house.broker.topics["t"].channels["c"]
    indexes = house.broker.topics["t"].stream.log.looking.stored_from(0, 1 << 54, 200)
    channel.skips.insert(indexes[1:-1:2])
    assert house.channel("t", "c").depth == 1
    assert age(house) is None


def test_the_time_to_clear_follows_the_depth() -> None:
    """The time to clear is unknown at first and while the depth does not fall.

    It is 0 when nothing waits.
    """
    house = House()
    client = house.consumer("t", "c")

    def clear() -> float | None:
        return house.channel("t", "c").clear_seconds

    def consume(count: int) -> None:
        for _ in range(count):
            take(client)

    assert clear() == 0
    house.publish("t", *[b"x"] * 100)
    assert clear() is None
    house.pass_time(2)
    assert clear() is None
    house.pass_time(14)
    consume(10)
    assert clear() is None  # compared with nothing waiting
    house.pass_time(16)
    consume(10)
    assert clear() == 80 * 16 / 10
    house.pass_time(70)
    assert clear() is None  # too long ago
    house.pass_time(0.5)
    consume(1)
    assert clear() is None  # too short ago
    house.pass_time(9.5)
    consume(9)
    assert clear() == 70 * 10 / 10
