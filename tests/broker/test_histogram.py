"""How long messages waited for their delivery, as buckets."""

from bisect import bisect_left

from sparq.broker.latency import DELIVERY_BOUNDS_NS, Histogram
from tests.broker.house import SECOND_NS, House


def test_a_run_is_one_observation() -> None:
    """Bounds belong to the bucket that they end; what is beyond all has one; no time is < 0."""
    histogram = Histogram((10, 20))
    for took_ns, count in ((-5, 1), (10, 2), (11, 3), (21, 4)):
        histogram.observe(took_ns, count)

    assert histogram.counts == [3, 3, 4]
    assert histogram.total_ns == 20 + 33 + 84


def test_first_deliveries_are_observed() -> None:
    """The wait from publish to the first delivery; later deliveries are not counted again."""
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
