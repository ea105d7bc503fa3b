"""Topics with a size limit: a full topic refuses publishes or drops its oldest messages."""

from __future__ import annotations

import random

import pytest

from sparq.protocol import commands
from sparq.protocol.frames import BodySlices
from tests.broker.harness import BrokerHarness, Ticket, refusal

BODY = b"x" * 6_000
LIMIT = 10
LARGE = b"x" * 20_000
TOPIC_BYTES = 400_000


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


FULL = f"PUB failed the limit of {LIMIT} messages for topic t is reached"


@pytest.mark.parametrize("has_channel", [False, True])
def test_a_topic_takes_exactly_its_maximum_of_messages(has_channel: bool) -> None:
    """A topic takes exactly `max_topic_messages`, also after a crash.

    A batch is stored as a whole or refused as a whole. Other topics have their own limit.
    """
    harness = BrokerHarness(max_topic_messages=LIMIT)
    if has_channel:
        harness.consumer("t", "c")
    assert "" == refusal(harness, *numbered(0, LIMIT - 1))
    assert FULL == refusal(harness, b"a", b"b")
    assert "" == refusal(harness, b"a")
    assert FULL == refusal(harness, b"b")
    assert "" == refusal(harness, *numbered(0, LIMIT), topic="u")
    harness.crash()
    assert FULL == refusal(harness, b"b")
    assert 1 == harness.topic("t").refused_count


def test_refusals_are_logged_once_a_minute() -> None:
    """Refusals are logged once a minute, with their number since the last line."""
    harness = BrokerHarness(max_topic_messages=LIMIT)
    assert "" == refusal(harness, *numbered(0, LIMIT))
    for _ in range(100):
        assert FULL == refusal(harness, b"a")
        harness.pass_time(1.1)
    notes = [note for note in harness.broker.notes if "refused" in note]
    assert ["topic t: messages refused by its limits: 1"] == notes[:1]
    assert 2 == len(notes)
    assert "topic t: messages refused by its limits: 55" == notes[1]


def test_a_finish_makes_room_at_once() -> None:
    """A FIN makes room for one more message immediately.

    Messages in flight and deferred count towards the limit, and the slowest channel decides.
    """
    harness = BrokerHarness(max_topic_messages=LIMIT)
    quick, slow = harness.consumer("t", "quick", rdy=50), harness.consumer("t", "slow", rdy=50)
    harness.publish("t", b"later", defer_ms=60_000)
    assert "" == refusal(harness, *numbered(0, LIMIT - 1))
    assert FULL == refusal(harness, b"a")
    quick.finish(quick.messages())
    assert FULL == refusal(harness, b"a")
    messages = slow.messages()
    slow.finish(messages[:1])
    assert "" == refusal(harness, b"a")
    assert FULL == refusal(harness, b"b")
    slow.say(commands.req(messages[1].id, 30_000))
    assert FULL == refusal(harness, b"b")


@pytest.mark.parametrize(
    ("option", "limit", "body", "stored_min"),
    [("max_topic_messages", LIMIT, b"x", LIMIT), ("max_topic_bytes", TOPIC_BYTES, LARGE, 10)],
)
def test_publishes_of_one_turn_count_towards_the_limit(
    option: str, limit: int, body: bytes, stored_min: int
) -> None:
    """The publishes of one turn cannot exceed a limit in total."""
    harness = BrokerHarness(**{option: limit})
    ticket = Ticket()
    for _ in range(100):
        harness.broker.publish("t", BodySlices.of([body]), harness.clock.now(), ticket)
    harness.turn()

    stored = ticket.answers.count(None)
    assert 100 == len(ticket.answers)
    assert stored_min <= stored <= limit // len(body)
    assert stored == harness.topic("t").message_count


def test_drop_oldest_drops_the_oldest_unread_messages() -> None:
    """With `drop_oldest`, each channel drops its oldest unread messages over the limit.

    Messages in flight and deferred ones stay.
    """
    harness = BrokerHarness(max_topic_messages=LIMIT, drop_oldest=True)
    quick, slow = harness.consumer("t", "quick", rdy=50), harness.consumer("t", "slow", rdy=2)
    harness.publish("t", b"later", defer_ms=1_000)
    for number in range(30):
        assert "" == refusal(harness, b"%d" % number)
        quick.finish(quick.messages())

    figures = harness.channel("t", "slow")
    assert (2, 7, 1) == (figures.in_flight_count, figures.depth, figures.deferred_count)
    assert (21, 0) == (figures.voided_count, harness.channel("t", "quick").voided_count)
    assert 0 == harness.topic("t").refused_count
    slow.finish(slow.messages())
    slow.say(commands.rdy(50))
    assert numbered(23, 7) == slow.bodies()
    harness.pass_time(1.1)
    assert [b"later"] == slow.bodies()
    (note,) = [note for note in harness.broker.notes if "too far behind" in note]
    assert note == "channel t:slow is too far behind: dropped its 21 oldest unread messages"


def test_a_channel_below_the_limit_drops_nothing() -> None:
    """Only a channel that holds too many messages drops some, and only as many."""
    harness = BrokerHarness(max_topic_messages=LIMIT, drop_oldest=True)
    quick = harness.consumer("t", "quick", rdy=50)
    harness.consumer("t", "slow").close()
    assert "" == refusal(harness, *numbered(0, LIMIT))
    quick.finish(quick.messages())
    quick.say(commands.rdy(0))
    assert "" == refusal(harness, *numbered(LIMIT, 6))
    found = [harness.channel("t", name) for name in ("quick", "slow")]
    assert [(6, 0), (LIMIT, 6)] == [(one.depth, one.voided_count) for one in found]


def test_a_publish_refused_for_its_rate_drops_nothing() -> None:
    """A publish that `max_publish_rate` refuses does not drop any message."""
    harness = BrokerHarness(max_topic_messages=LIMIT, drop_oldest=True, max_publish_rate=1)
    harness.consumer("t", "c").close()
    assert "" == refusal(harness, *numbered(0, LIMIT))
    assert "messages per second" in refusal(harness, b"a")
    assert LIMIT == harness.channel("t", "c").depth


def test_a_publish_is_refused_if_all_messages_are_in_flight() -> None:
    """A publish is refused if all messages are in flight: those are never dropped."""
    harness = BrokerHarness(max_topic_messages=LIMIT, drop_oldest=True)
    consumer = harness.consumer("t", "c", rdy=50)
    assert "" == refusal(harness, *numbered(0, LIMIT))
    assert FULL == refusal(harness, b"a")
    assert 1 == harness.topic("t").refused_count
    consumer.finish(consumer.messages())
    assert "" == refusal(harness, b"a")


@pytest.mark.parametrize("how", ["no channel", "paused"])
def test_messages_that_no_channel_sees_are_dropped_oldest_first(how: str) -> None:
    """Messages that no channel sees yet are dropped, oldest first.

    A channel that is created or resumed later gets the newest ones.
    """
    harness = BrokerHarness(max_topic_messages=LIMIT, drop_oldest=True)
    if how == "paused":
        harness.consumer("t", "c").close()
        harness.act("pause_topic", "t", True)
    for number in range(25):
        assert "" == refusal(harness, b"%d" % number)
    assert 15 == harness.topic("t").given_up_count
    harness.crash()
    if how == "paused":
        harness.broker.pause_topic("t", False, harness.clock.now())
    assert numbered(15, LIMIT) == harness.consumer("t", "c", rdy=50).bodies()


@pytest.mark.parametrize("has_channel", [False, True])
def test_drop_oldest_keeps_the_newest_within_the_byte_limit(has_channel: bool) -> None:
    """With `max_topic_bytes` and `drop_oldest` every publish is stored; the newest are kept."""
    harness = BrokerHarness(max_topic_bytes=400_000, drop_oldest=True)
    if has_channel:
        harness.consumer("t", "c").close()
    for number in range(300):
        assert "" == refusal(harness, BODY + b"%d" % number)
        if number % 20 == 0:
            harness.pass_time(1.1)
    for _ in range(4):
        harness.pass_time(1.1)
    assert harness.topic("t").log_bytes <= 400_000
    harness.crash()
    bodies = harness.consumer("t", "c", rdy=2_500).bodies()
    assert 30 < len(bodies) < 70
    last = 300 - len(bodies)
    assert [BODY + b"%d" % number for number in range(last, 300)] == bodies


def test_a_batch_larger_than_the_limit_is_refused() -> None:
    """A batch larger than the limit is refused, and nothing is dropped for it."""
    harness = BrokerHarness(max_topic_messages=LIMIT, drop_oldest=True)
    harness.consumer("t", "c").close()
    assert "" == refusal(harness, *numbered(0, 5))
    assert FULL == refusal(harness, *numbered(5, LIMIT + 1))
    assert 5 == harness.channel("t", "c").depth


@pytest.mark.parametrize("seed", range(10))
def test_a_random_schedule_never_exceeds_the_limit(seed: int) -> None:
    """Depth and in-flight messages never exceed the limit; first deliveries are in order.

    Publishes, consumers and crashes follow a random schedule. The newest message is never dropped.
    """
    chosen = random.Random(seed)
    harness = BrokerHarness(max_topic_messages=LIMIT, drop_oldest=True)
    consumer = harness.consumer("t", "c", rdy=chosen.choice((1, 4)))
    last, count = -1, 0
    for _ in range(150):
        action = chosen.randrange(8)
        if action < 4:
            batch = numbered(count, chosen.randrange(1, 5))
            refused = refusal(harness, *batch)
            count += 0 if refused else len(batch)
            held = harness.channel("t", "c")
            assert held.depth + held.in_flight_count <= LIMIT
            assert held.depth or refused or held.in_flight_count
        elif action == 4:
            harness.crash()
            consumer = harness.consumer("t", "c", rdy=chosen.choice((1, 4)))
        for message in consumer.messages():
            if message.attempts == 1:
                assert int(message.body) > last
                last = int(message.body)
            if chosen.random() < 0.5:
                consumer.finish([message])


def fill(harness: BrokerHarness, topic: str) -> int:
    """Publish until a publish is refused; returns the number of messages stored."""
    count = 0
    while not refusal(harness, LARGE, topic=topic):
        count += 1
        assert count < 1000
    return count


def test_a_topic_without_channels_refuses_publishes_at_its_byte_limit() -> None:
    """A topic without channels fills up to `max_topic_bytes` and then refuses publishes.

    Other topics are not affected, and the refusal survives a crash.
    """
    harness = BrokerHarness(max_topic_bytes=TOPIC_BYTES)

    count = fill(harness, "t")
    size = harness.broker.topics["t"].stream.log.size_bytes
    assert TOPIC_BYTES // 2 < count * len(LARGE) < size <= TOPIC_BYTES * 1.1
    assert count == fill(harness, "u")
    why = f"the limit of {TOPIC_BYTES} bytes for topic t is reached"
    client = harness.connect()
    client.say(commands.pub("t", LARGE) + commands.pub("t#ephemeral", LARGE))
    assert [f"E_PUB_FAILED PUB failed {why}".encode(), b"OK"] == client.answers()
    harness.crash()
    assert f"PUB failed {why}" == refusal(harness, LARGE)


def test_finished_bytes_make_room() -> None:
    """Finished messages make room for others, also those in the segment being written."""
    harness = BrokerHarness(max_topic_bytes=TOPIC_BYTES)
    consumer = harness.consumer("t", "c", rdy=100)
    for _ in range(3):
        fill(harness, "t")
        consumer.finish(consumer.messages())
        harness.pass_time(5)
        assert "" == refusal(harness, LARGE * 18)
        consumer.finish(consumer.messages())
        harness.pass_time(5)
