"""What is told of a dead letter, who sees it, and how one goes back to where it came from."""

from __future__ import annotations

import numpy as np
import pytest

from sparq.broker import fates
from sparq.broker.fates import CONNECTION_LOST, REQUEUED, TIMED_OUT, UNKNOWN
from sparq.broker.letters import Letters, Only
from sparq.protocol import commands
from sparq.protocol.dead_letters import unseal
from tests.broker.house import BEGIN_WALL_NS, Client, House, Message, Ticket

MOST = 3
ME = {"client_id": "worker-1", "hostname": "east", "feature_negotiation": True}
WHO = "worker-1@east (10.0.0.1:5555)"


def requeue(client: Client, messages: list[Message]) -> None:
    for message in messages:
        client.say(commands.req(message.id, 0))


def exhaust(client: Client) -> None:
    for _ in range(MOST):
        requeue(client, client.messages())


def histories(house: House, topic: str = "t.dead") -> list[tuple[dict[str, str], bytes]]:
    """What a consumer that asks for envelopes is given, of all that are there."""
    reader = house.consumer(topic, "histories", dead_letter_envelopes=True)
    house.broker.seek_channel(topic, "histories", "earliest", house.clock.now())
    reader.say(commands.rdy(2_500))
    found = [unseal(message.body) for message in reader.messages()]
    reader.close()
    house.broker.delete_channel(topic, "histories", house.clock.now())
    house.turn()
    return [(dict(fields), body) for fields, body in found]


def send_back(
    house: House, channel: str, messages: list[Message], to: Only, topic: str = "t"
) -> list[bytes]:
    """Have letters of `t.dead`, a channel's, sent back; returns the bodies."""
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


def test_the_history() -> None:
    """Where it was, which it was, how often it was delivered, to whom last, and how that ended."""
    house = House(max_attempts=MOST)
    consumer = house.consumer("t", "c", rdy=1, **ME)
    house.publish("t", b"bad")
    (message,) = consumer.messages()
    requeue(consumer, [message])
    house.advance(5)
    for _ in range(MOST - 1):
        requeue(consumer, consumer.messages())
    ((fields, body),) = histories(house)
    assert b"bad" == body
    assert {
        "dead_letter": "1",
        "topic": "t",
        "channel": "c",
        "id": message.id.decode(),
        "attempts": "3",
        "published": "2026-09-21T14:13:20.000000000Z",
        "last_returned": "2026-09-21T14:13:25.000000000Z",
        "consumer": WHO,
        "reason": REQUEUED,
        "redriven": "0",
    } == fields
    assert BEGIN_WALL_NS == message.timestamp_ns


def test_consumers_get_the_body() -> None:
    """Of new messages and of those that come again, from memory and from the disk."""
    house = House(max_attempts=MOST, cache_bytes=1, commit_bytes=100)
    consumer = house.consumer("t", "c", rdy=10)
    bodies = [b"%03d" % number * 50 for number in range(9)]
    for body in bodies:
        house.publish("t", body)
    for _ in range(3):
        exhaust(consumer)
    house.publish("t.dead", b"no letter", b"\0sparq\x01\0\x02{}nor this")
    reader = house.consumer("t.dead", "reader", rdy=4)
    seen: dict[bytes, int] = {}
    while messages := reader.messages():
        for message in messages:
            seen[message.body] = max(message.attempts, seen.get(message.body, 0))
        again = [message for message in messages if message.attempts < 2]
        reader.finish([message for message in messages if message.attempts > 1])
        requeue(reader, again)
    expected = [*bodies, b"no letter", b"\0sparq\x01\0\x02{}nor this"]
    assert dict.fromkeys(expected, 2) == seen


def test_only_who_asks_is_told_of_envelopes() -> None:
    """IDENTIFY's answer is NSQ's for all others."""
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


def test_a_timeout() -> None:
    """The last consumer had it too long."""
    house = House(max_attempts=MOST)
    consumer = house.consumer("t", "c", rdy=1, **ME)
    house.publish("t", b"bad")
    for _ in range(MOST):
        house.pass_time(61)
    ((fields, _),) = histories(house)
    assert (TIMED_OUT, WHO, "3") == (fields["reason"], fields["consumer"], fields["attempts"])
    assert [1, 2, 3] == [message.attempts for message in consumer.messages()]


@pytest.mark.parametrize("requeues", [False, True])
def test_three_lost_connections(requeues: bool) -> None:
    """A message that takes its consumers with it goes long before it has used up its attempts."""
    house = House(max_attempts=100, requeue_on_disconnect=requeues)
    house.consumer("t", "c").close()
    house.publish("t", b"killer")
    attempts = []
    for _ in range(10):
        consumer = house.consumer("t", "c", rdy=1, **ME)
        attempts += [message.attempts for message in consumer.messages()]
        consumer.close()
        house.pass_time(61)
    assert [1, 2, 3] == attempts
    ((fields, body),) = histories(house)
    assert (b"killer", CONNECTION_LOST, WHO) == (body, fields["reason"], fields["consumer"])


@pytest.mark.parametrize("times_out", [False, True])
def test_lost_connections_in_between(times_out: bool) -> None:
    """What comes back otherwise meanwhile is no killer."""
    house = House(max_attempts=100)
    house.consumer("t", "c").close()
    house.publish("t", b"innocent")
    for _ in range(6):
        for _ in range(2):
            consumer = house.consumer("t", "c", rdy=1)
            assert 1 == len(consumer.messages())
            consumer.close()
            house.pass_time(61)
        consumer = house.consumer("t", "c", rdy=1)
        (message,) = consumer.messages()
        consumer.say(commands.rdy(0))
        if times_out:
            house.pass_time(61)
        else:
            requeue(consumer, [message])
        consumer.close()
    assert "t.dead" not in house.broker.topics


def test_so_many_messages_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that came back last."""
    monkeypatch.setattr(fates, "FATES_MAX", 5)
    house = House(max_attempts=MOST)
    consumer = house.consumer("t", "c", rdy=10)
    house.publish("t", *[b"x"] * 10)
    messages = consumer.messages()
    consumer.say(commands.rdy(0))
    requeue(consumer, messages)
    remembered = house.broker.topics["t"].channels["c"].fates.by_index
    assert [message.index for message in messages[5:]] == list(remembered)


def test_a_restart_forgets_who_had_it() -> None:
    """The rest is in the ledger and in the message."""
    house = House()
    consumer = house.consumer("t", "c", rdy=1)
    house.publish("t", b"bad")
    exhaust(consumer)
    house.crash(max_attempts=2)
    house.consumer("t", "c", rdy=1)
    ((fields, _),) = histories(house)
    assert (UNKNOWN, "", "") == (fields["reason"], fields["consumer"], fields["last_returned"])


def test_what_is_remembered_goes() -> None:
    """With FIN, and with the channel's content."""
    house = House(max_attempts=MOST)
    consumer = house.consumer("t", "c", rdy=2_500)
    remembered = house.broker.topics["t"].channels["c"].fates.by_index
    for _ in range(3):
        house.publish("t", *[b"x"] * 2_000)
        messages = consumer.messages()
        requeue(consumer, [message for message in messages if message.attempts == 1])
        consumer.finish(consumer.messages())
        assert not remembered
    house.publish("t", b"x")
    requeue(consumer, consumer.messages())
    assert remembered
    house.broker.empty_channel("t", "c", house.clock.now())
    assert not remembered


def test_it_goes_back_to_its_channel_alone() -> None:
    """Once, with attempts from 1; the others have had it. That holds over a crash."""
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
    """By the next letter of it, whatever happens to nsqd in between."""
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
    """What a consumer has, what is finished, what is not there; what is given up waits again."""
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
    """Then all channels get it: too often is better than never."""
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
    """The letter waits where it was."""
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
