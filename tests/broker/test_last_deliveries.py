"""A dead letter's history: how the last deliveries of the message ended."""

from __future__ import annotations

import pytest

from sparq.broker import last_deliveries
from sparq.broker.last_deliveries import CONNECTION_LOST, REQUEUED, TIMED_OUT, UNKNOWN
from sparq.protocol import commands
from tests.broker.dead_letters import MAX_ATTEMPTS, exhaust, histories, requeue
from tests.broker.harness import BEGIN_WALL_NS, BrokerHarness

IDENTITY = {"client_id": "worker-1", "hostname": "east", "feature_negotiation": True}
CONSUMER = "worker-1@east (10.0.0.1:5555)"


def test_a_history_has_all_its_fields() -> None:
    """A history has the origin, id, attempts, times, last consumer and reason of a dead letter."""
    harness = BrokerHarness(max_attempts=MAX_ATTEMPTS)
    consumer = harness.consumer("t", "c", rdy=1, **IDENTITY)
    harness.publish("t", b"bad")
    (message,) = consumer.messages()
    requeue(consumer, [message])
    harness.advance(5)
    for _ in range(MAX_ATTEMPTS - 1):
        requeue(consumer, consumer.messages())
    ((fields, body),) = histories(harness)
    assert b"bad" == body
    assert {
        "dead_letter": "1",
        "topic": "t",
        "channel": "c",
        "id": message.id.decode(),
        "attempts": "3",
        "published": "2026-09-21T14:13:20.000000000Z",
        "last_returned": "2026-09-21T14:13:25.000000000Z",
        "consumer": CONSUMER,
        "reason": REQUEUED,
        "redriven": "0",
    } == fields
    assert BEGIN_WALL_NS == message.timestamp_ns


def test_the_reason_is_a_timeout_if_the_consumer_did_not_respond() -> None:
    """The reason is a timeout if the last consumer did not respond in time."""
    harness = BrokerHarness(max_attempts=MAX_ATTEMPTS)
    consumer = harness.consumer("t", "c", rdy=1, **IDENTITY)
    harness.publish("t", b"bad")
    for _ in range(MAX_ATTEMPTS):
        harness.pass_time(61)
    ((fields, _),) = histories(harness)
    assert (TIMED_OUT, CONSUMER, "3") == (fields["reason"], fields["consumer"], fields["attempts"])
    assert [1, 2, 3] == [message.attempts for message in consumer.messages()]


@pytest.mark.parametrize("requeues", [False, True])
def test_three_lost_connections_make_a_dead_letter(requeues: bool) -> None:
    """Three lost connections in a row make a message a dead letter.

    This happens before its attempts are used up, with and without `requeue_on_disconnect`.
    """
    harness = BrokerHarness(max_attempts=100, requeue_on_disconnect=requeues)
    harness.consumer("t", "c").close()
    harness.publish("t", b"killer")
    attempts = []
    for _ in range(10):
        consumer = harness.consumer("t", "c", rdy=1, **IDENTITY)
        attempts += [message.attempts for message in consumer.messages()]
        consumer.close()
        harness.pass_time(61)
    assert [1, 2, 3] == attempts
    ((fields, body),) = histories(harness)
    assert (b"killer", CONNECTION_LOST, CONSUMER) == (body, fields["reason"], fields["consumer"])


@pytest.mark.parametrize("times_out", [False, True])
def test_two_lost_connections_before_a_requeue_or_timeout_make_no_dead_letter(
    times_out: bool,
) -> None:
    """Two lost connections followed by a requeue or a timeout make no dead letter."""
    harness = BrokerHarness(max_attempts=100)
    harness.consumer("t", "c").close()
    harness.publish("t", b"innocent")
    for _ in range(6):
        for _ in range(2):
            consumer = harness.consumer("t", "c", rdy=1)
            assert 1 == len(consumer.messages())
            consumer.close()
            harness.pass_time(61)
        consumer = harness.consumer("t", "c", rdy=1)
        (message,) = consumer.messages()
        consumer.say(commands.rdy(0))
        if times_out:
            harness.pass_time(61)
        else:
            requeue(consumer, [message])
        consumer.close()
    assert "t.dead" not in harness.broker.topics


def test_a_limited_number_of_messages_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the `LAST_DELIVERIES_MAX` messages that were returned last are remembered."""
    monkeypatch.setattr(last_deliveries, "LAST_DELIVERIES_MAX", 5)
    harness = BrokerHarness(max_attempts=MAX_ATTEMPTS)
    consumer = harness.consumer("t", "c", rdy=10)
    harness.publish("t", *[b"x"] * 10)
    messages = consumer.messages()
    consumer.say(commands.rdy(0))
    requeue(consumer, messages)
    remembered = harness.broker.topics["t"].channels["c"].last_deliveries.by_index
    assert [message.index for message in messages[5:]] == list(remembered)


def test_after_a_crash_reason_and_last_consumer_are_unknown() -> None:
    """After a crash the reason, the last consumer and the time of return are unknown.

    Everything else is in the ledger and in the message.
    """
    harness = BrokerHarness()
    consumer = harness.consumer("t", "c", rdy=1)
    harness.publish("t", b"bad")
    exhaust(consumer)
    harness.crash(max_attempts=2)
    harness.consumer("t", "c", rdy=1)
    ((fields, _),) = histories(harness)
    assert (UNKNOWN, "", "") == (fields["reason"], fields["consumer"], fields["last_returned"])


def test_fin_and_emptying_delete_the_remembered_history() -> None:
    """FIN and emptying the channel delete the remembered history of a message."""
    harness = BrokerHarness(max_attempts=MAX_ATTEMPTS)
    consumer = harness.consumer("t", "c", rdy=2_500)
    channel = harness.broker.topics["t"].channels["c"]
    for _ in range(3):
        harness.publish("t", *[b"x"] * 2_000)
        messages = consumer.messages()
        requeue(consumer, [message for message in messages if message.attempts == 1])
        consumer.finish(consumer.messages())
        assert not channel.last_deliveries.by_index
    harness.publish("t", b"x")
    requeue(consumer, consumer.messages())
    assert channel.last_deliveries.by_index
    harness.broker.empty_channel("t", "c", harness.clock.now())
    assert not channel.last_deliveries.by_index
