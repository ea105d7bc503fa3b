"""Messages with too many attempts go to the dead-letter topic once, and can be redriven."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from sparq.broker.dead_letters import Letters, Only
from sparq.broker.policies import Policy
from sparq.protocol import commands
from tests.broker.house import House, Message, Ticket
from tests.broker.letters import MOST, exhaust, histories, requeue


def house_with_limit(**options: int) -> House:
    return House(max_attempts=MOST, **options)


def letters(house: House, topic: str = "t.dead") -> list[bytes]:
    """The bodies that a new channel of the dead-letter topic delivers."""
    if topic not in house.broker.topics:
        return []
    reader = house.consumer(topic, "reader", rdy=2_500)
    messages = reader.messages()
    reader.finish(messages)
    reader.close()
    return [message.body for message in messages]


def test_after_so_many_deliveries() -> None:
    """After `max_attempts` deliveries a message becomes a dead letter and is finished for good.

    It is not delivered again, and it is counted.
    """
    house = house_with_limit()
    consumer = house.consumer("t", "c", rdy=10)
    house.publish("t", b"bad", b"good")
    seen = []
    while messages := consumer.messages():
        seen += [(message.body, message.attempts) for message in messages]
        consumer.finish([message for message in messages if message.body == b"good"])
        requeue(consumer, [message for message in messages if message.body == b"bad"])

    assert [(b"bad", 1), (b"good", 1), (b"bad", 2), (b"bad", 3)] == seen
    figures = house.channel("t", "c")
    assert (1, 0, 0) == (figures.dead_letter_count, figures.depth, figures.in_flight_count)
    assert [b"bad"] == letters(house)
    for ends in (house.crash, house.restart):
        ends()
        consumer = house.consumer("t", "c", rdy=10)
        house.pass_time(61)
        assert [] == consumer.messages()
        assert [] == letters(house)


def test_without_the_option_it_comes_for_ever() -> None:
    """Without `max_attempts` a message is delivered without limit, as in NSQ."""
    house = House()
    consumer = house.consumer("t", "c", rdy=1)
    house.publish("t", b"bad")
    for attempts in range(1, 50):
        (message,) = consumer.messages()
        assert attempts == message.attempts
        requeue(consumer, [message])
    assert ["t"] == list(house.broker.topics)


def test_timeouts_and_lost_connections_count() -> None:
    """Timeouts and lost connections count as attempts, as requeues do."""
    house = house_with_limit()
    house.publish("t", b"bad")
    for _ in range(MOST):
        consumer = house.consumer("t", "c", rdy=1)
        house.pass_time(61)
        if not consumer.messages():
            break
        consumer.close()
        house.pass_time(61)
    house.consumer("t", "c", rdy=1)
    house.pass_time(61)
    assert [b"bad"] == letters(house)
    assert 0 == house.channel("t", "c").depth


def test_a_dead_letter_topic_has_none_itself() -> None:
    """Messages of a dead-letter topic have no attempts limit."""
    house = House()
    ticket = Ticket()
    house.broker.choose_policies([Policy("*", "", {"max_attempts": MOST})], ticket)
    reader = house.consumer("t.dead", "c", rdy=1)
    house.publish("t.dead", b"bad")
    for _ in range(20):
        requeue(reader, reader.messages())
    assert 21 == reader.messages()[0].attempts
    assert ["t.dead"] == list(house.broker.topics)


def test_each_channel_by_itself() -> None:
    """Each channel counts attempts for itself.

    A message that fails in two channels becomes two dead letters; the third channel finishes it.
    """
    house = house_with_limit()
    clients = [house.consumer("t", name, rdy=1) for name in ("a", "b", "c")]
    house.publish("t", b"bad")
    for client in clients[:2]:
        for _ in range(MOST):
            requeue(client, client.messages())
    clients[2].finish(clients[2].messages())
    assert [b"bad", b"bad"] == letters(house)
    assert [1, 1, 0] == [house.channel("t", name).dead_letter_count for name in ("a", "b", "c")]


def test_a_dead_letter_topic_that_refuses() -> None:
    """A dead letter that its topic refuses waits and is retried.

    It is not delivered meanwhile, and the refusal is logged once a minute.
    """
    house = house_with_limit(max_topics=1)
    consumer = house.consumer("t", "c", rdy=1)
    house.publish("t", b"bad")
    exhaust(consumer)
    for _ in range(10):
        house.pass_time(1.1)
        figures = house.channel("t", "c")
        assert 1 == figures.depth + figures.in_flight_count + figures.deferred_count
    assert [] == consumer.messages()
    why = "topic t.dead refused 1 dead letters: the limit of 1 topics is reached"
    assert [why] == [note for note in house.broker.notes if "dead letters" in note]
    house.crash(max_topics=0)
    consumer = house.consumer("t", "c", rdy=1)
    house.pass_time(1.1)
    assert [] == consumer.messages()
    assert [b"bad"] == letters(house)


def test_an_emptied_channel_forgets() -> None:
    """Emptying a channel also drops its messages that wait for a refusing dead-letter topic."""
    house = house_with_limit(max_topics=1)
    consumer = house.consumer("t", "c", rdy=1)
    house.publish("t", b"bad")
    exhaust(consumer)
    house.broker.empty_channel("t", "c", house.clock.now())
    house.turn()
    house.pass_time(2)
    figures = house.channel("t", "c")
    assert (0, 0, 0) == (figures.depth, figures.in_flight_count, figures.deferred_count)


def test_a_lowered_limit_takes_what_waits() -> None:
    """A lower limit applies to waiting messages.

    One that has reached it becomes a dead letter when its next delivery is due.
    """
    house = House()
    consumer = house.consumer("t", "c", rdy=1)
    house.publish("t", b"bad", b"good")
    for _ in range(6):
        messages = consumer.messages()
        requeue(consumer, [message for message in messages if message.body == b"bad"])
        consumer.finish([message for message in messages if message.body == b"good"])
    house.crash(max_attempts=2)
    assert [] == house.consumer("t", "c", rdy=1).messages()
    assert [b"bad"] == letters(house)


def test_ephemeral_topics() -> None:
    """Dead letters of an ephemeral topic go to an ephemeral topic."""
    house = house_with_limit()
    consumer = house.consumer("t#ephemeral", "c", rdy=1)
    house.publish("t#ephemeral", b"bad")
    exhaust(consumer)
    assert [b"bad"] == letters(house, "t.dead#ephemeral")


def test_many_that_are_not_in_memory() -> None:
    """Dead letters whose bodies must be read from disk keep their own bodies."""
    house = house_with_limit(cache_bytes=1, commit_bytes=50_000)
    consumer = house.consumer("t", "c", rdy=2_500)
    bodies = [b"%05d" % number * 400 for number in range(60)]
    for body in bodies:
        house.publish("t", body)
    exhaust(consumer)
    for _ in range(5):
        house.pass_time(1)
    found = letters(house)
    assert sorted(bodies) == sorted(found)
    assert 60 == house.channel("t", "c").dead_letter_count


@pytest.mark.parametrize("seed", range(15))
def test_none_is_lost(seed: int) -> None:
    """Each message is finished or becomes a dead letter.

    Without a crash, each becomes only one of the two, and a dead letter exists once.
    """
    chosen = random.Random(seed)
    house = house_with_limit(max_bytes_per_file=chosen.choice((3_000, 1 << 20)))
    crashes = seed % 3 == 0
    consumer = house.consumer("t", "c", rdy=chosen.choice((1, 30)))
    finished: set[bytes] = set()
    deliveries: Counter[bytes] = Counter()
    count = 0

    def see_to(finishes: float) -> None:
        while messages := consumer.messages():
            for message in messages:
                deliveries[message.body] += 1
                assert message.attempts <= MOST
                assert message.body not in finished
                if int(message.body) % 7 and chosen.random() < finishes:
                    consumer.finish([message])
                    finished.add(message.body)
                else:
                    requeue(consumer, [message], chosen.choice((0, 0, 500)))

    for _ in range(80):
        action = chosen.randrange(6)
        if action < 3:
            batch = [b"%d" % (count + number) for number in range(chosen.randrange(1, 6))]
            house.publish("t", *batch)
            count += len(batch)
        elif action == 3:
            house.pass_time(chosen.choice((0.3, 2)))
        elif action == 4 and crashes:
            house.crash()
            consumer = house.consumer("t", "c", rdy=chosen.choice((1, 30)))
        see_to(0.8)
    for _ in range(20):
        house.pass_time(2)
        see_to(1)
    found = letters(house)
    assert {b"%d" % number for number in range(count)} == finished | set(found)
    if not crashes:
        assert not finished & set(found)
        assert len(found) == len(set(found))
        assert {MOST} == {deliveries[body] for body in found}
    assert {body for body in map(b"%d".__mod__, range(0, count, 7))} <= set(found)


def send_back(
    house: House, channel: str, messages: list[Message], to: Only, topic: str = "t"
) -> list[bytes]:
    """Redrive dead letters from a channel of `t.dead`; returns their bodies."""
    indexes = np.array(sorted(message.index for message in messages), np.int64)
    now = house.clock.now()
    assert {} == house.broker.claim("t.dead", channel, indexes, now)
    held = house.broker.topics["t.dead"].channels[channel]
    ticket = Ticket()
    bodies = [message.body for message in messages]
    house.broker.send_back(Letters(held, indexes, bodies, to), topic, now, ticket)
    house.turn()
    assert [None] == ticket.answers
    return bodies


def test_only_who_asks_is_told_of_envelopes() -> None:
    """IDENTIFY's answer mentions `dead_letter_envelopes` only to clients that request them."""
    house = House()
    for asks in (False, True):
        client = house.connect()
        client.say(
            commands.identify(
                b'{"feature_negotiation": true%s}'
                % (b', "dead_letter_envelopes": true' if asks else b"")
            )
        )
        (answer,) = client.answers()
        assert asks == (b'"dead_letter_envelopes": true' in answer)


def test_it_goes_back_to_its_channel_alone() -> None:
    """A redriven message is delivered only by its original channel, with attempts from 1.

    This holds after a crash and after a restart.
    """
    house = House(max_attempts=MOST)
    failing = house.consumer("t", "failing", rdy=10)
    other = house.consumer("t", "other", rdy=10)
    house.publish("t", b"a", b"b")
    other.finish(other.messages())
    exhaust(failing)
    reader = house.consumer("t.dead", "redrive", rdy=10)
    messages = reader.messages()
    reader.close()
    house.pass_time(61)
    assert 2 == house.channel("t.dead", "redrive").depth
    bodies = send_back(house, "redrive", messages, Only("failing", [1, 1]))
    found = failing.messages()
    assert (bodies, [1, 1]) == ([m.body for m in found], [m.attempts for m in found])
    assert [] == other.messages()
    assert (0, 0) == (house.channel("t", "other").depth, house.channel("t.dead", "redrive").depth)
    assert 2 == house.channel("t.dead", "redrive").redriven_count
    for ends in (house.crash, house.restart):
        ends()
        assert 0 == house.channel("t", "other").depth + house.channel("t.dead", "redrive").depth
        assert 2 == house.channel("t", "failing").depth


@pytest.mark.parametrize("between", ["nothing", "crash", "checkpoint", "restart"])
def test_it_is_told_how_often_it_went_back(between: str) -> None:
    """A dead letter's history counts how often the message was redriven.

    The count survives crashes, checkpoints and restarts.
    """
    house = House(max_attempts=MOST)
    house.publish("t", b"bad")
    for times in range(1, 4):
        failing = house.consumer("t", "c", rdy=1)
        exhaust(failing)
        failing.close()
        reader = house.consumer("t.dead", "redrive", rdy=1)
        messages = reader.messages()
        reader.close()
        house.pass_time(61)
        send_back(house, "redrive", messages, Only("c", [times]))
        if between == "checkpoint":
            house.checkpoint("t")
        if between in ("crash", "checkpoint"):
            house.crash()
        if between == "restart":
            house.restart()
    exhaust(house.consumer("t", "c", rdy=1))
    assert "3" == histories(house)[-1][0]["redriven"]
    channel = house.broker.topics["t"].channels["c"]
    assert {} == channel.redriven


def test_what_cannot_be_claimed() -> None:
    """Messages in flight, finished or not in the log cannot be claimed.

    Claimed messages are not delivered until they are unclaimed.
    """
    house = House(max_attempts=MOST)
    consumer = house.consumer("t.dead", "c", rdy=2)
    house.publish("t.dead", b"1", b"2", b"3", b"4")
    one, two = consumer.messages()
    consumer.say(commands.rdy(0))
    consumer.finish([two])
    indexes = np.array([one.index + at for at in (0, 1, 2, 3, 9)], np.int64)
    now = house.clock.now()
    refused = house.broker.claim("t.dead", "c", indexes, now)
    assert [
        "it is in flight",
        "it is finished",
        "not in the log",
    ] == [refused[one.index + at] for at in (0, 1, 9)]
    assert 3 == len(refused)
    consumer.say(commands.rdy(10))
    assert [] == consumer.messages()
    channel = house.broker.topics["t.dead"].channels["c"]
    house.broker.unclaim(channel, indexes)
    house.turn()
    assert [b"3", b"4"] == consumer.bodies()


def test_a_channel_that_has_gone() -> None:
    """If its channel is deleted, a redriven message is delivered by all channels.

    An unwanted delivery is better than none.
    """
    house = House(max_attempts=MOST)
    exhausted = house.consumer("t", "c", rdy=1)
    house.publish("t", b"bad")
    exhaust(exhausted)
    reader = house.consumer("t.dead", "redrive", rdy=1)
    messages = reader.messages()
    reader.close()
    house.pass_time(61)
    other = house.consumer("t", "other", rdy=1)
    house.broker.delete_channel("t", "c", house.clock.now())
    send_back(house, "redrive", messages, Only("c", [1]))
    assert [b"bad"] == other.bodies()


def test_a_topic_that_refuses() -> None:
    """A dead letter stays in its channel if the target topic refuses it."""
    house = House(max_attempts=MOST)
    consumer = house.consumer("t", "c", rdy=1)
    house.publish("t", b"bad")
    exhaust(consumer)
    reader = house.consumer("t.dead", "redrive", rdy=1)
    messages = reader.messages()
    reader.close()
    house.pass_time(61)
    house.crash(max_topics=2)
    indexes = np.array([message.index for message in messages], np.int64)
    now = house.clock.now()
    assert {} == house.broker.claim("t.dead", "redrive", indexes, now)
    held = house.broker.topics["t.dead"].channels["redrive"]
    ticket = Ticket()
    letters = Letters(held, indexes, [b"bad"], Only("c", [1]))
    house.broker.send_back(letters, "another", now, ticket)
    house.turn()
    (error,) = ticket.answers
    assert error is not None
    house.pass_time(1.1)
    assert [b"bad"] == house.consumer("t.dead", "redrive", rdy=1).bodies()
