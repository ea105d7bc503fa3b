"""A dead letter's history: how the last deliveries of the message ended."""

from __future__ import annotations

import pytest

from sparq.broker import fates
from sparq.broker.fates import CONNECTION_LOST, REQUEUED, TIMED_OUT, UNKNOWN
from sparq.protocol import commands
from tests.broker.house import BEGIN_WALL_NS, House
from tests.broker.letters import MOST, exhaust, histories, requeue

ME = {"client_id": "worker-1", "hostname": "east", "feature_negotiation": True}
WHO = "worker-1@east (10.0.0.1:5555)"


def test_the_history() -> None:
    """A history has the origin, id, attempts, times, last consumer and reason of a dead letter."""
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


def test_a_timeout() -> None:
    """The reason is a timeout if the last consumer did not respond in time."""
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
    """Three lost connections in a row make a message a dead letter.

    This happens before its attempts are used up, with and without `requeue_on_disconnect`.
    """
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
    """Two lost connections followed by a requeue or a timeout make no dead letter."""
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
    """Only the `FATES_MAX` messages that were returned last are remembered."""
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
    """After a crash the reason, the last consumer and the time of return are unknown.

    Everything else is in the ledger and in the message.
    """
    house = House()
    consumer = house.consumer("t", "c", rdy=1)
    house.publish("t", b"bad")
    exhaust(consumer)
    house.crash(max_attempts=2)
    house.consumer("t", "c", rdy=1)
    ((fields, _),) = histories(house)
    assert (UNKNOWN, "", "") == (fields["reason"], fields["consumer"], fields["last_returned"])


def test_what_is_remembered_goes() -> None:
    """FIN and emptying the channel delete the remembered history of a message."""
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
