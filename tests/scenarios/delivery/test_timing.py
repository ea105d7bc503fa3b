"""Timeouts, requeue delays and deferred publishes happen at their time, neither early nor late."""

from __future__ import annotations

import pytest

from sparq.options.limits import IdentifyLimits
from sparq.protocol import commands
from tests.broker.harness import BrokerHarness


@pytest.fixture
def harness() -> BrokerHarness:
    """A broker with an empty data path."""
    return BrokerHarness()


def test_tick_returns_the_time_of_the_next_event(harness: BrokerHarness) -> None:
    """`tick` returns the time of the next event: in the end exactly that of the timeout."""
    consumer = harness.consumer("t", "c", rdy=1, msg_timeout=1000)
    harness.publish("t", b"x")
    now = harness.clock.now()
    due = harness.broker.tick(now)
    assert due is not None
    while due - now.mono_ns < 999_000_000:  # ledger syncs and trimming are due earlier
        harness.clock.mono_ns = due
        harness.broker.tick(harness.clock.now())
        harness.turn()
        again = harness.broker.tick(harness.clock.now())
        assert again is not None and again > due
        due = again
    assert due == now.mono_ns + 1_000_000_000
    assert len(consumer.messages()) == 1


def test_a_message_is_redelivered_after_msg_timeout(harness: BrokerHarness) -> None:
    """After msg_timeout the message is delivered again with attempts 2."""
    consumer = harness.consumer("t", "c", rdy=1, msg_timeout=1000)
    harness.publish("t", b"x")
    (first,) = consumer.messages()
    harness.pass_time(0.999)
    assert consumer.messages() == []

    harness.pass_time(0.001)
    (second,) = consumer.messages()
    channel = harness.channel("t", "c")

    assert (second.id, second.attempts, second.timestamp_ns) == (first.id, 2, first.timestamp_ns)
    assert (channel.timeout_count, channel.requeue_count, channel.in_flight_count) == (1, 0, 1)


@pytest.mark.behaviour("TestInFlightWorker")
def test_all_due_timeouts_are_requeued_in_one_tick(harness: BrokerHarness) -> None:
    """250 messages in flight time out in one tick: none stays in flight, all are ready again."""
    consumer = harness.consumer("t", "c", rdy=250, msg_timeout=1000)
    harness.publish("t", *[b"%d" % number for number in range(250)])
    assert harness.channel("t", "c").in_flight_count == 250
    consumer.say(commands.rdy(0))
    harness.pass_time(1.0)
    channel = harness.channel("t", "c")

    assert (channel.in_flight_count, channel.depth, channel.timeout_count) == (0, 250, 250)
    assert harness.broker.topics["t"].channels["c"].in_flight.count == 0


@pytest.mark.behaviour("TestClientMsgTimeout")
def test_a_late_finish_fails(harness: BrokerHarness) -> None:
    """A FIN after the timeout gets E_FIN_FAILED, and the message waits for a consumer."""
    consumer = harness.consumer("t", "c", rdy=1, msg_timeout=1000)
    harness.publish("t", b"x")
    (message,) = consumer.messages()
    consumer.say(commands.rdy(0))
    harness.pass_time(1.0)
    consumer.answers()
    consumer.finish([message])

    expected = b"E_FIN_FAILED FIN %b failed ID not in flight" % message.id
    assert consumer.answers() == [expected]
    assert harness.channel("t", "c").depth == 1


@pytest.mark.behaviour("TestTouch")
def test_touch_restarts_the_timeout_up_to_the_maximum() -> None:
    """Each TOUCH restarts the timeout, up to delivery + max-msg-timeout."""
    harness = BrokerHarness(limits=IdentifyLimits(max_msg_timeout_ms=2500))
    consumer = harness.consumer("t", "c", rdy=1, msg_timeout=1000)
    harness.publish("t", b"x")
    (message,) = consumer.messages()
    consumer.say(commands.rdy(0))
    for _ in range(2):
        harness.pass_time(0.9)
        consumer.say(commands.touch(message.id))
    assert harness.channel("t", "c").timeout_count == 0

    harness.pass_time(0.699)
    assert harness.channel("t", "c").timeout_count == 0
    harness.pass_time(0.002)

    assert harness.channel("t", "c").timeout_count == 1


def test_a_requeue_with_delay_is_delivered_when_due(harness: BrokerHarness) -> None:
    """REQ 500 defers a message by exactly 500 ms and counts as a requeue; attempts becomes 2."""
    consumer = harness.consumer("t", "c", rdy=1)
    harness.publish("t", b"x")
    (message,) = consumer.messages()
    consumer.say(commands.req(message.id, 500))
    channel = harness.channel("t", "c")
    assert (channel.deferred_count, channel.requeue_count, channel.depth) == (1, 1, 0)

    harness.pass_time(0.499)
    assert consumer.messages() == []
    harness.pass_time(0.001)

    assert [m.attempts for m in consumer.messages()] == [2]


@pytest.mark.behaviour("TestReqTimeoutRange")
def test_a_requeue_delay_is_limited_to_max_req_timeout(harness: BrokerHarness) -> None:
    """A REQ delay above max-req-timeout is reduced to it without an error."""
    consumer = harness.consumer("t", "c", rdy=1)
    harness.publish("t", b"x")
    (message,) = consumer.messages()
    consumer.answers()
    consumer.say(commands.req(message.id, 999_999_999))
    harness.pass_time(3600.0)

    assert len(consumer.messages()) == 1
    assert consumer.answers() == []


def test_a_deferred_publish_is_delivered_to_every_channel(harness: BrokerHarness) -> None:
    """DPUB delivers to every channel when the message is due, not earlier, with attempts 1."""
    consumers = [harness.consumer("t", name, rdy=10) for name in ("a", "b")]
    producer = harness.connect()
    producer.say(commands.dpub("t", 300, b"late") + commands.pub("t", b"now"))
    assert producer.answers() == [b"OK", b"OK"]
    assert [consumer.bodies() for consumer in consumers] == [[b"now"], [b"now"]]
    channel = harness.channel("t", "a")
    assert (channel.deferred_count, channel.depth, channel.message_count) == (1, 0, 2)

    harness.pass_time(0.299)
    assert [consumer.bodies() for consumer in consumers] == [[], []]
    harness.pass_time(0.001)

    for consumer in consumers:
        (message,) = consumer.messages()
        assert (message.body, message.attempts) == (b"late", 1)
        consumer.finish([message])
    channel = harness.channel("t", "b")
    assert (channel.in_flight_count, channel.deferred_count) == (1, 0)


def test_a_deferred_publish_overtakes_a_backlog(harness: BrokerHarness) -> None:
    """A deferred publish that is due is delivered before the backlog, and only once."""
    consumer = harness.consumer("t", "c", rdy=2)
    for n in range(10):
        harness.publish("t", b"%d" % n)
    harness.publish("t", b"late", defer_ms=100)
    for n in range(10, 20):
        harness.publish("t", b"%d" % n)
    seen = consumer.messages()
    harness.pass_time(0.1)
    consumer.finish(seen)
    assert b"late" in consumer.bodies()

    consumer.say(commands.rdy(100))
    rest = consumer.bodies()
    assert b"late" not in rest
    assert harness.channel("t", "c").depth == 0


def test_a_paused_topic_holds_deferred_publishes_too(harness: BrokerHarness) -> None:
    """A deferred message due while its topic is paused is delivered once, after the pause."""
    consumer = harness.consumer("t", "c", rdy=10)
    harness.broker.pause_topic("t", True, harness.clock.now())
    harness.publish("t", b"late", defer_ms=100)
    harness.pass_time(1.0)
    assert consumer.bodies() == []

    harness.broker.pause_topic("t", False, harness.clock.now())
    harness.turn()

    assert consumer.bodies() == [b"late"]
    assert harness.channel("t", "c").depth == 0


def test_a_new_channel_gets_no_deferred_publish_from_before_it(harness: BrokerHarness) -> None:
    """A channel does not get messages that were published before it existed, even deferred ones."""
    harness.consumer("t", "old", rdy=10)
    harness.publish("t", b"late", defer_ms=100)
    new = harness.consumer("t", "new", rdy=10)
    harness.pass_time(1.0)

    assert new.bodies() == []
    assert harness.channel("t", "new").deferred_count == 0


@pytest.mark.behaviour("more.attempts-beyond-signed")
def test_attempts_stay_at_their_maximum() -> None:
    """`attempts` stays at 65,535, the maximum of its 16 bits."""
    harness = BrokerHarness()
    consumer = harness.consumer("t", "c", rdy=1)
    harness.publish("t", b"x")
    (message,) = consumer.messages()
    channel = harness.broker.topics["t"].channels["c"]
    consumer.say(commands.req(message.id, 500))
    channel.delays.take([message.index])
    channel.requeued.push(message.index, 65_534)
    harness.wake("t", "c")
    harness.turn()
    for _ in range(3):
        (message,) = consumer.messages()
        assert message.attempts == 65_535
        consumer.say(commands.req(message.id, 0))


def test_requeue_on_disconnect_is_an_option() -> None:
    """Off: a lost connection's messages wait for their timeout. On: they are ready immediately."""
    for requeue, expected in ((False, 0), (True, 1)):
        harness = BrokerHarness(requeue_on_disconnect=requeue)
        harness.publish("t", b"x")
        harness.consumer("t", "c", rdy=1).close()

        assert harness.channel("t", "c").depth == expected
        assert harness.channel("t", "c").in_flight_count == 1 - expected


def test_a_message_of_a_lost_client_goes_to_another_consumer(harness: BrokerHarness) -> None:
    """The message of a client that has disconnected goes to another consumer after its timeout."""
    harness.publish("t", b"x")
    harness.consumer("t", "c", rdy=1).close()
    other = harness.consumer("t", "c", rdy=1)
    assert other.messages() == []

    harness.pass_time(60.0)

    assert [m.attempts for m in other.messages()] == [2]


def test_clock_jumps_do_not_change_timeouts_and_delays(harness: BrokerHarness) -> None:
    """P13: timeouts and delays use the monotonic clock, so clock jumps do not change them."""
    consumer = harness.consumer("t", "c", rdy=2)
    harness.publish("t", b"x", b"y")
    first, _ = consumer.messages()
    consumer.say(commands.req(first.id, 5000))
    for jump in (86_400, -172_800):
        harness.clock.wall_ns += jump * 1_000_000_000
        harness.pass_time(1.0)
        assert consumer.messages() == []
    harness.pass_time(3.0)

    assert [m.id for m in consumer.messages()] == [first.id]


def test_finished_messages_and_topics_leave_no_timers(harness: BrokerHarness) -> None:
    """Publish, REQ, TOUCH, FIN and deleted topics leave no timers: the number stays below 100."""
    consumer = harness.consumer("t", "c", rdy=1, msg_timeout=60_000)
    for number in range(300):
        harness.publish("t", b"x")
        (message,) = consumer.messages()
        consumer.say(commands.req(message.id, 10))
        harness.pass_time(0.01)
        (message,) = consumer.messages()
        consumer.say(commands.touch(message.id))
        consumer.finish([message])
        harness.publish(f"gone{number}", b"x", defer_ms=3_600_000)
        harness.broker.delete_topic(f"gone{number}", harness.clock.now())
        harness.turn()

    assert len(harness.broker.turn.due_topics._heap) < 100


def test_emptied_deferred_publishes_leave_no_timers(harness: BrokerHarness) -> None:
    """A topic whose deferred publishes are emptied repeatedly keeps no entries for them."""
    for _ in range(20):
        harness.publish("t", *[b"x"] * 50, defer_ms=3_600_000)
        harness.broker.empty_topic("t", harness.clock.now())
        harness.turn()

    assert len(harness.broker.topics["t"].stream.due.pending._heap) < 100


def test_a_new_deferral_moves_next_due_ns(harness: BrokerHarness) -> None:
    """A deferral due before the next tick moves `Turn.due_ns` to its time."""
    harness.consumer("t", "c", rdy=1)
    harness.broker.tick(harness.clock.now())
    harness.publish("t", b"x", defer_ms=10)

    assert harness.broker.turn.due_ns == harness.clock.mono_ns + 10_000_000
