"""Topics with a size limit: a full topic refuses publishes or drops its oldest messages."""

from __future__ import annotations

import random

import pytest

from sparq.protocol import commands
from sparq.protocol.frames import BodySlices
from tests.broker.house import House, Ticket
from tests.broker.publishes import refusal

BODY = b"x" * 6_000
LIMIT = 10
LARGE = b"x" * 20_000
TOPIC_BYTES = 400_000


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


FULL = f"PUB failed the limit of {LIMIT} messages for topic t is reached"


@pytest.mark.parametrize("has_channel", [False, True])
def test_messages_of_a_topic(has_channel: bool) -> None:
    """A topic takes exactly `max_topic_messages`, also after a crash.

    A batch is stored as a whole or refused as a whole. Other topics have their own limit.
    """
    house = House(max_topic_messages=LIMIT)
    if has_channel:
        house.consumer("t", "c")
    assert "" == refusal(house, *numbered(0, LIMIT - 1))
    assert FULL == refusal(house, b"a", b"b")
    assert "" == refusal(house, b"a")
    assert FULL == refusal(house, b"b")
    assert "" == refusal(house, *numbered(0, LIMIT), topic="u")
    house.crash()
    assert FULL == refusal(house, b"b")
    assert 1 == house.topic("t").refused_count


def test_the_log_tells_of_it_once_a_minute() -> None:
    """Refusals are logged once a minute, with their number since the last line."""
    house = House(max_topic_messages=LIMIT)
    assert "" == refusal(house, *numbered(0, LIMIT))
    for _ in range(100):
        assert FULL == refusal(house, b"a")
        house.pass_time(1.1)
    notes = [note for note in house.broker.notes if "refused" in note]
    assert ["topic t: messages refused by its limits: 1"] == notes[:1]
    assert 2 == len(notes)
    assert "topic t: messages refused by its limits: 55" == notes[1]


def test_a_finish_makes_room_at_once() -> None:
    """A FIN makes room for one more message immediately.

    Messages in flight and deferred count towards the limit, and the slowest channel decides.
    """
    house = House(max_topic_messages=LIMIT)
    quick, slow = house.consumer("t", "quick", rdy=50), house.consumer("t", "slow", rdy=50)
    house.publish("t", b"later", defer_ms=60_000)
    assert "" == refusal(house, *numbered(0, LIMIT - 1))
    assert FULL == refusal(house, b"a")
    quick.finish(quick.messages())
    assert FULL == refusal(house, b"a")
    messages = slow.messages()
    slow.finish(messages[:1])
    assert "" == refusal(house, b"a")
    assert FULL == refusal(house, b"b")
    slow.say(commands.req(messages[1].id, 30_000))
    assert FULL == refusal(house, b"b")


def test_what_waits_for_the_disk_counts() -> None:
    """The publishes of one turn cannot exceed the limit in total."""
    house = House(max_topic_messages=LIMIT)
    ticket = Ticket()
    for _ in range(3 * LIMIT):
        house.broker.publish("t", BodySlices.of([b"x"]), house.clock.now(), ticket)
    house.turn()
    assert LIMIT == ticket.answers.count(None)


def test_the_oldest_go() -> None:
    """With `drop_oldest`, each channel drops its oldest unread messages over the limit.

    Messages in flight and deferred ones stay.
    """
    house = House(max_topic_messages=LIMIT, drop_oldest=True)
    quick, slow = house.consumer("t", "quick", rdy=50), house.consumer("t", "slow", rdy=2)
    house.publish("t", b"later", defer_ms=1_000)
    for number in range(30):
        assert "" == refusal(house, b"%d" % number)
        quick.finish(quick.messages())

    figures = house.channel("t", "slow")
    assert (2, 7, 1) == (figures.in_flight_count, figures.depth, figures.deferred_count)
    assert (21, 0) == (figures.voided_count, house.channel("t", "quick").voided_count)
    assert 0 == house.topic("t").refused_count
    slow.finish(slow.messages())
    slow.say(commands.rdy(50))
    assert numbered(23, 7) == slow.bodies()
    house.pass_time(1.1)
    assert [b"later"] == slow.bodies()
    (note,) = [note for note in house.broker.notes if "too far behind" in note]
    assert note == "channel t:slow is too far behind: dropped its 21 oldest unread messages"


def test_a_channel_with_room_loses_nothing() -> None:
    """Only a channel that holds too many messages drops some."""
    house = House(max_topic_messages=LIMIT, drop_oldest=True)
    quick = house.consumer("t", "quick", rdy=50)
    house.consumer("t", "slow").close()
    assert "" == refusal(house, *numbered(0, LIMIT))
    quick.finish(quick.messages())
    quick.say(commands.rdy(0))
    assert "" == refusal(house, *numbered(LIMIT, 6))
    assert (6, 0) == (house.channel("t", "quick").depth, house.channel("t", "quick").voided_count)
    assert (LIMIT, 6) == (house.channel("t", "slow").depth, house.channel("t", "slow").voided_count)
    assert "" == refusal(house, *numbered(LIMIT + 6, 4))
    assert (LIMIT, 0) == (
        house.channel("t", "quick").depth,
        house.channel("t", "quick").voided_count,
    )


def test_nothing_goes_for_what_comes_too_fast() -> None:
    """A publish that `max_publish_rate` refuses does not drop any message."""
    house = House(max_topic_messages=LIMIT, drop_oldest=True, max_publish_rate=1)
    house.consumer("t", "c").close()
    assert "" == refusal(house, *numbered(0, LIMIT))
    assert "messages per second" in refusal(house, b"a")
    assert LIMIT == house.channel("t", "c").depth


def test_what_cannot_go_refuses() -> None:
    """A publish is refused if all messages are in flight: those are never dropped."""
    house = House(max_topic_messages=LIMIT, drop_oldest=True)
    consumer = house.consumer("t", "c", rdy=50)
    assert "" == refusal(house, *numbered(0, LIMIT))
    assert FULL == refusal(house, b"a")
    assert 1 == house.topic("t").refused_count
    consumer.finish(consumer.messages())
    assert "" == refusal(house, b"a")


@pytest.mark.parametrize("how", ["no channel", "paused"])
def test_the_oldest_that_no_channel_sees_go(how: str) -> None:
    """Messages that no channel sees yet are dropped, oldest first.

    A channel that is created or resumed later gets the newest ones.
    """
    house = House(max_topic_messages=LIMIT, drop_oldest=True)
    if how == "paused":
        house.consumer("t", "c").close()
        house.broker.pause_topic("t", True, house.clock.now())
        house.turn()
    for number in range(25):
        assert "" == refusal(house, b"%d" % number)
    assert 15 == house.topic("t").given_up_count
    house.crash()
    if how == "paused":
        house.broker.pause_topic("t", False, house.clock.now())
    assert numbered(15, LIMIT) == house.consumer("t", "c", rdy=50).bodies()


@pytest.mark.parametrize("has_channel", [False, True])
def test_bytes_go_in_whole_files(has_channel: bool) -> None:
    """With `max_topic_bytes` and `drop_oldest` every publish is stored; the newest are kept."""
    house = House(max_topic_bytes=400_000, drop_oldest=True)
    if has_channel:
        house.consumer("t", "c").close()
    for number in range(300):
        assert "" == refusal(house, BODY + b"%d" % number)
        if number % 20 == 0:
            house.pass_time(1.1)
    for _ in range(4):
        house.pass_time(1.1)
    assert house.topic("t").log_bytes <= 400_000
    house.crash()
    bodies = house.consumer("t", "c", rdy=2_500).bodies()
    assert 30 < len(bodies) < 70
    last = 300 - len(bodies)
    assert [BODY + b"%d" % number for number in range(last, 300)] == bodies


def test_the_limit_is_lowered() -> None:
    """A lower limit takes effect with the next publish, which drops the surplus."""
    house = House()
    house.consumer("t", "c").close()
    assert "" == refusal(house, *numbered(0, 100))
    house.crash(max_topic_messages=LIMIT, drop_oldest=True)
    assert 100 == house.channel("t", "c").depth
    assert "" == refusal(house, b"new")
    assert [*numbered(91, 9), b"new"] == house.consumer("t", "c", rdy=50).bodies()


def test_a_batch_larger_than_the_limit() -> None:
    """A batch larger than the limit is refused, and nothing is dropped for it."""
    house = House(max_topic_messages=LIMIT, drop_oldest=True)
    house.consumer("t", "c").close()
    assert "" == refusal(house, *numbered(0, 5))
    assert FULL == refusal(house, *numbered(5, LIMIT + 1))
    assert 5 == house.channel("t", "c").depth


@pytest.mark.parametrize("seed", range(10))
def test_never_more_than_the_limit(seed: int) -> None:
    """Depth and in-flight messages never exceed the limit; first deliveries are in order.

    Publishes, consumers and crashes follow a random schedule. The newest message is never dropped.
    """
    chosen = random.Random(seed)
    house = House(max_topic_messages=LIMIT, drop_oldest=True)
    consumer = house.consumer("t", "c", rdy=chosen.choice((1, 4)))
    last, count = -1, 0
    for _ in range(150):
        action = chosen.randrange(8)
        if action < 4:
            batch = numbered(count, chosen.randrange(1, 5))
            refused = refusal(house, *batch)
            count += 0 if refused else len(batch)
            held = house.channel("t", "c")
            assert held.depth + held.in_flight_count <= LIMIT
            assert held.depth or refused or held.in_flight_count
        elif action == 4:
            house.crash()
            consumer = house.consumer("t", "c", rdy=chosen.choice((1, 4)))
        for message in consumer.messages():
            if message.attempts == 1:
                assert int(message.body) > last
                last = int(message.body)
            if chosen.random() < 0.5:
                consumer.finish([message])


def fill(house: House, topic: str) -> int:
    """Publish until a publish is refused; returns the number of messages stored."""
    count = 0
    while not refusal(house, LARGE, topic=topic):
        count += 1
        assert count < 1000
    return count


def test_bytes_of_a_topic_without_a_channel() -> None:
    """A topic without channels fills up to `max_topic_bytes` and then refuses publishes.

    Other topics are not affected, and the refusal survives a crash.
    """
    house = House(max_topic_bytes=TOPIC_BYTES)

    count = fill(house, "t")
    size = house.broker.topics["t"].stream.log.size_bytes
    assert TOPIC_BYTES // 2 < count * len(LARGE) < size <= TOPIC_BYTES * 1.1
    assert count == fill(house, "u")
    why = f"the limit of {TOPIC_BYTES} bytes for topic t is reached"
    client = house.connect()
    client.say(commands.pub("t", LARGE) + commands.pub("t#ephemeral", LARGE))
    assert [f"E_PUB_FAILED PUB failed {why}".encode(), b"OK"] == client.answers()
    house.crash()
    assert f"PUB failed {why}" == refusal(house, LARGE)


def test_bytes_that_are_finished_make_room() -> None:
    """Finished messages make room for others, also those in the segment being written."""
    house = House(max_topic_bytes=TOPIC_BYTES)
    consumer = house.consumer("t", "c", rdy=100)
    for _ in range(3):
        fill(house, "t")
        consumer.finish(consumer.messages())
        house.pass_time(5)
        assert "" == refusal(house, LARGE * 18)
        consumer.finish(consumer.messages())
        house.pass_time(5)


def test_bytes_that_wait_for_the_disk_count() -> None:
    """The publishes of one turn cannot exceed `max_topic_bytes` in total."""
    house = House(max_topic_bytes=TOPIC_BYTES)
    ticket = Ticket()
    for _ in range(100):
        house.broker.publish("t", BodySlices.of([LARGE]), house.clock.now(), ticket)
    house.turn()

    stored = ticket.answers.count(None)
    assert 100 == len(ticket.answers)
    assert TOPIC_BYTES // 2 < stored * len(LARGE) <= TOPIC_BYTES
    assert stored == house.broker.topics["t"].message_count
