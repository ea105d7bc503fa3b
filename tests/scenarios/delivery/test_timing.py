"""Timeouts, requeue delays and deferred publishes happen at their time, neither early nor late."""

from __future__ import annotations

import pytest

from sparq.protocol import commands
from sparq.protocol.identify import IdentifyLimits
from tests.broker.house import House


@pytest.fixture
def house() -> House:
    """A broker with an empty data path."""
    return House()


def test_the_tick_says_when_it_is_next_needed(house: House) -> None:
    """`tick` returns the time of the next event: in the end exactly that of the timeout."""
    consumer = house.consumer("t", "c", rdy=1, msg_timeout=1000)
    house.publish("t", b"x")
    now = house.clock.now()
    due = house.broker.tick(now)
    assert due is not None
    while due - now.mono_ns < 999_000_000:  # ledger syncs and trimming are due earlier
        house.clock.mono_ns = due
        house.broker.tick(house.clock.now())
        house.turn()
        again = house.broker.tick(house.clock.now())
        assert again is not None and again > due
        due = again
    assert due == now.mono_ns + 1_000_000_000
    assert len(consumer.messages()) == 1


def test_a_timeout_puts_the_message_back(house: House) -> None:
    """After msg_timeout the message is delivered again with attempts 2."""
    consumer = house.consumer("t", "c", rdy=1, msg_timeout=1000)
    house.publish("t", b"x")
    (first,) = consumer.messages()
    house.pass_time(0.999)
    assert consumer.messages() == []

    house.pass_time(0.001)
    (second,) = consumer.messages()
    channel = house.channel("t", "c")

    assert (second.id, second.attempts, second.timestamp_ns) == (first.id, 2, first.timestamp_ns)
    assert (channel.timeout_count, channel.requeue_count, channel.in_flight_count) == (1, 0, 1)


@pytest.mark.behaviour("TestInFlightWorker")
def test_all_that_is_due_comes_back_together(house: House) -> None:
    """250 messages in flight time out in one tick: none stays in flight, all are ready again."""
    consumer = house.consumer("t", "c", rdy=250, msg_timeout=1000)
    house.publish("t", *[b"%d" % number for number in range(250)])
    assert house.channel("t", "c").in_flight_count == 250
    consumer.say(commands.rdy(0))
    house.pass_time(1.0)
    channel = house.channel("t", "c")

    assert (channel.in_flight_count, channel.depth, channel.timeout_count) == (0, 250, 250)
    assert house.broker.topics["t"].channels["c"].in_flight.count == 0


@pytest.mark.behaviour("TestClientMsgTimeout")
def test_a_late_finish_fails(house: House) -> None:
    """A FIN after the timeout gets E_FIN_FAILED, and the message waits for a consumer."""
    consumer = house.consumer("t", "c", rdy=1, msg_timeout=1000)
    house.publish("t", b"x")
    (message,) = consumer.messages()
    consumer.say(commands.rdy(0))
    house.pass_time(1.0)
    consumer.answers()
    consumer.finish([message])

    expected = b"E_FIN_FAILED FIN %b failed ID not in flight" % message.id
    assert consumer.answers() == [expected]
    assert house.channel("t", "c").depth == 1


@pytest.mark.behaviour("TestTouch")
def test_touch_keeps_a_message_up_to_the_maximum() -> None:
    """Each TOUCH restarts the timeout, up to delivery + max-msg-timeout."""
    house = House(limits=IdentifyLimits(max_msg_timeout_ms=2500))
    consumer = house.consumer("t", "c", rdy=1, msg_timeout=1000)
    house.publish("t", b"x")
    (message,) = consumer.messages()
    consumer.say(commands.rdy(0))
    for _ in range(2):
        house.pass_time(0.9)
        consumer.say(commands.touch(message.id))
    assert house.channel("t", "c").timeout_count == 0

    house.pass_time(0.699)
    assert house.channel("t", "c").timeout_count == 0
    house.pass_time(0.002)

    assert house.channel("t", "c").timeout_count == 1


def test_a_requeue_with_delay_comes_when_due(house: House) -> None:
    """REQ 500 defers a message by exactly 500 ms and counts as a requeue; attempts becomes 2."""
    consumer = house.consumer("t", "c", rdy=1)
    house.publish("t", b"x")
    (message,) = consumer.messages()
    consumer.say(commands.req(message.id, 500))
    channel = house.channel("t", "c")
    assert (channel.deferred_count, channel.requeue_count, channel.depth) == (1, 1, 0)

    house.pass_time(0.499)
    assert consumer.messages() == []
    house.pass_time(0.001)

    assert [m.attempts for m in consumer.messages()] == [2]


@pytest.mark.behaviour("TestReqTimeoutRange")
def test_a_requeue_is_held_to_the_longest_delay(house: House) -> None:
    """A REQ delay above max-req-timeout is reduced to it without an error."""
    consumer = house.consumer("t", "c", rdy=1)
    house.publish("t", b"x")
    (message,) = consumer.messages()
    consumer.answers()
    consumer.say(commands.req(message.id, 999_999_999))
    house.pass_time(3600.0)

    assert len(consumer.messages()) == 1
    assert consumer.answers() == []


def test_a_deferred_publish_comes_on_every_channel(house: House) -> None:
    """DPUB delivers to every channel when the message is due, not earlier, with attempts 1."""
    consumers = [house.consumer("t", name, rdy=10) for name in ("a", "b")]
    producer = house.connect()
    producer.say(commands.dpub("t", 300, b"late") + commands.pub("t", b"now"))
    assert producer.answers() == [b"OK", b"OK"]
    assert [consumer.bodies() for consumer in consumers] == [[b"now"], [b"now"]]
    channel = house.channel("t", "a")
    assert (channel.deferred_count, channel.depth, channel.message_count) == (1, 0, 2)

    house.pass_time(0.299)
    assert [consumer.bodies() for consumer in consumers] == [[], []]
    house.pass_time(0.001)

    for consumer in consumers:
        (message,) = consumer.messages()
        assert (message.body, message.attempts) == (b"late", 1)
        consumer.finish([message])
    channel = house.channel("t", "b")
    assert (channel.in_flight_count, channel.deferred_count) == (1, 0)


def test_a_deferred_publish_overtakes_a_backlog(house: House) -> None:
    """A deferred publish that is due is delivered before the backlog, and only once."""
    consumer = house.consumer("t", "c", rdy=2)
    for n in range(10):
        house.publish("t", b"%d" % n)
    house.publish("t", b"late", defer_ms=100)
    for n in range(10, 20):
        house.publish("t", b"%d" % n)
    seen = consumer.messages()
    house.pass_time(0.1)
    consumer.finish(seen)
    assert b"late" in consumer.bodies()

    consumer.say(commands.rdy(100))
    rest = consumer.bodies()
    assert b"late" not in rest
    assert house.channel("t", "c").depth == 0


def test_a_paused_topic_holds_deferred_publishes_too(house: House) -> None:
    """A deferred message due while its topic is paused is delivered once, after the pause."""
    consumer = house.consumer("t", "c", rdy=10)
    house.broker.pause_topic("t", True, house.clock.now())
    house.publish("t", b"late", defer_ms=100)
    house.pass_time(1.0)
    assert consumer.bodies() == []

    house.broker.pause_topic("t", False, house.clock.now())
    house.turn()

    assert consumer.bodies() == [b"late"]
    assert house.channel("t", "c").depth == 0


def test_a_new_channel_gets_no_deferred_publish_from_before_it(house: House) -> None:
    """A channel does not get messages that were published before it existed, even deferred ones."""
    house.consumer("t", "old", rdy=10)
    house.publish("t", b"late", defer_ms=100)
    new = house.consumer("t", "new", rdy=10)
    house.pass_time(1.0)

    assert new.bodies() == []
    assert house.channel("t", "new").deferred_count == 0


@pytest.mark.behaviour("more.attempts-beyond-signed")
def test_attempts_stay_at_their_maximum() -> None:
    """`attempts` stays at 65,535, the maximum of its 16 bits (decision 15)."""
    house = House()
    consumer = house.consumer("t", "c", rdy=1)
    house.publish("t", b"x")
    (message,) = consumer.messages()
    channel = house.broker.topics["t"].channels["c"]
    consumer.say(commands.req(message.id, 500))
    channel.delays.clear()
    channel.requeued.push(message.index, 65_534)
    house.wake("t", "c")
    house.turn()
    for _ in range(3):
        (message,) = consumer.messages()
        assert message.attempts == 65_535
        consumer.say(commands.req(message.id, 0))


def test_requeue_on_disconnect_is_an_option() -> None:
    """Off: a lost connection's messages wait for their timeout. On: they are ready immediately."""
    for requeue, expected in ((False, 0), (True, 1)):
        house = House(requeue_on_disconnect=requeue)
        house.publish("t", b"x")
        house.consumer("t", "c", rdy=1).close()

        assert house.channel("t", "c").depth == expected
        assert house.channel("t", "c").in_flight_count == 1 - expected


def test_a_timeout_of_a_client_that_is_gone(house: House) -> None:
    """The message of a client that has disconnected goes to another consumer after its timeout."""
    house.publish("t", b"x")
    house.consumer("t", "c", rdy=1).close()
    other = house.consumer("t", "c", rdy=1)
    assert other.messages() == []

    house.pass_time(60.0)

    assert [m.attempts for m in other.messages()] == [2]


def test_a_clock_jump_brings_nothing_early(house: House) -> None:
    """P13: timeouts and delays use the monotonic clock, so clock jumps do not change them."""
    consumer = house.consumer("t", "c", rdy=2)
    house.publish("t", b"x", b"y")
    first, _ = consumer.messages()
    consumer.say(commands.req(first.id, 5000))
    for jump in (86_400, -172_800):
        house.clock.wall_ns += jump * 1_000_000_000
        house.pass_time(1.0)
        assert consumer.messages() == []
    house.pass_time(3.0)

    assert [m.id for m in consumer.messages()] == [first.id]


def test_timers_are_bounded_by_what_waits(house: House) -> None:
    """Publish, REQ, TOUCH, FIN and deleted topics leave no timers: the number stays below 100."""
    consumer = house.consumer("t", "c", rdy=1, msg_timeout=60_000)
    for number in range(300):
        house.publish("t", b"x")
        (message,) = consumer.messages()
        consumer.say(commands.req(message.id, 10))
        house.pass_time(0.01)
        (message,) = consumer.messages()
        consumer.say(commands.touch(message.id))
        consumer.finish([message])
        house.publish(f"gone{number}", b"x", defer_ms=3_600_000)
        house.broker.delete_topic(f"gone{number}", house.clock.now())
        house.turn()

    assert len(house.broker.turn.timers._heap) < 100


def test_emptied_deferred_publishes_leave_no_timers(house: House) -> None:
    """A topic whose deferred publishes are emptied repeatedly keeps no entries for them."""
    for _ in range(20):
        house.publish("t", *[b"x"] * 50, defer_ms=3_600_000)
        house.broker.empty_topic("t", house.clock.now())
        house.turn()

    assert len(house.broker.topics["t"].stream.due._heap) == 0


def test_what_comes_up_after_a_tick_is_known_at_once(house: House) -> None:
    """A deferral due before the next tick moves `next_due_ns` to its time."""
    house.consumer("t", "c", rdy=1)
    house.broker.tick(house.clock.now())
    house.publish("t", b"x", defer_ms=10)

    assert house.broker.next_due_ns() == house.clock.mono_ns + 10_000_000
