"""Messages with too many attempts go to the dead-letter topic once, and can be redriven."""

from __future__ import annotations

import numpy as np
import pytest

from sparq.broker.dead_letters import DeadLetterBatch, Only
from sparq.broker.policies import Policy
from sparq.protocol import commands
from sparq.protocol.dead_letters import REDRIVE_CHANNEL
from tests.broker.dead_letters import MAX_ATTEMPTS, exhaust, histories, requeue
from tests.broker.harness import BrokerHarness, Message, Ticket


def harness_with_limit(**options: int) -> BrokerHarness:
    return BrokerHarness(max_attempts=MAX_ATTEMPTS, **options)


def dead_letter_bodies(harness: BrokerHarness, topic: str = "t.dead") -> list[bytes]:
    """The bodies that the channel `redrive` of the dead-letter topic delivers, and finishes."""
    if topic not in harness.broker.topics:
        return []
    reader = harness.consumer(topic, REDRIVE_CHANNEL, rdy=2_500)
    messages = reader.messages()
    reader.finish(messages)
    reader.close()
    return [message.body for message in messages]


def test_a_message_becomes_a_dead_letter_after_max_attempts() -> None:
    """After `max_attempts` deliveries a message becomes a dead letter and is finished for good.

    It is not delivered again, and it is counted.
    """
    harness = harness_with_limit()
    consumer = harness.consumer("t", "c", rdy=10)
    harness.publish("t", b"bad", b"good")
    seen = []
    while messages := consumer.messages():
        seen += [(message.body, message.attempts) for message in messages]
        consumer.finish([message for message in messages if message.body == b"good"])
        requeue(consumer, [message for message in messages if message.body == b"bad"])

    assert [(b"bad", 1), (b"good", 1), (b"bad", 2), (b"bad", 3)] == seen
    figures = harness.channel("t", "c")
    assert (1, 0, 0) == (figures.dead_letter_count, figures.depth, figures.in_flight_count)
    assert [b"bad"] == dead_letter_bodies(harness)
    for ends in (harness.crash, harness.restart):
        ends()
        consumer = harness.consumer("t", "c", rdy=10)
        harness.pass_time(61)
        assert [] == consumer.messages()
        assert [] == dead_letter_bodies(harness)


def test_a_dead_letter_topic_without_a_channel_gets_one_to_redrive_from() -> None:
    """The first dead letter of a topic without a channel creates the channel `redrive`.

    It has all letters, including those from before. A topic that has a channel gets no other.
    """
    harness = harness_with_limit()
    harness.publish("t.dead", b"from before")
    assert [] == list(harness.broker.topics["t.dead"].channels)
    harness.publish("t", b"bad")
    exhaust(harness.consumer("t", "c", rdy=1))
    assert [REDRIVE_CHANNEL] == list(harness.broker.topics["t.dead"].channels)
    harness.crash()
    assert 2 == harness.channel("t.dead", REDRIVE_CHANNEL).depth

    harness.consumer("u.dead", "own").close()
    harness.publish("u", b"bad")
    exhaust(harness.consumer("u", "c", rdy=1))
    assert ["own"] == list(harness.broker.topics["u.dead"].channels)
    assert 1 == harness.channel("u.dead", "own").depth


def test_the_channel_to_redrive_from_waits_for_the_channels_of_nsqlookupd() -> None:
    """A new dead-letter topic first gets the channels that nsqlookupd knows from other nsqds."""
    harness = harness_with_limit(has_lookupd=True)
    harness.publish("t", b"bad")
    now = harness.clock.now
    harness.broker.channels_known("t", ["c"])
    consumer = harness.consumer("t", "c", rdy=1)
    exhaust(consumer)
    topic = harness.broker.topics["t.dead"]
    assert [] == list(topic.channels)
    harness.broker.channels_known("t.dead", ["own"])
    harness.turn()
    assert ["own"] == list(topic.channels)

    harness.broker.delete_channel("t.dead", "own", now())
    harness.publish("t", b"worse")
    exhaust(consumer)
    assert [REDRIVE_CHANNEL] == list(topic.channels)


def test_a_dead_letter_topic_has_no_attempts_limit() -> None:
    """Messages of a dead-letter topic have no attempts limit."""
    harness = BrokerHarness()
    ticket = Ticket()
    harness.broker.choose_policies([Policy("*", "", {"max_attempts": MAX_ATTEMPTS})], ticket)
    reader = harness.consumer("t.dead", "c", rdy=1)
    harness.publish("t.dead", b"bad")
    for _ in range(20):
        requeue(reader, reader.messages())
    assert 21 == reader.messages()[0].attempts
    assert ["t.dead"] == list(harness.broker.topics)


def test_a_dead_letter_refused_by_its_topic_is_retried() -> None:
    """A dead letter that its topic refuses waits and is retried.

    It is not delivered meanwhile, and the refusal is logged once a minute.
    """
    harness = harness_with_limit(max_topics=1)
    consumer = harness.consumer("t", "c", rdy=1)
    harness.publish("t", b"bad")
    exhaust(consumer)
    for _ in range(10):
        harness.pass_time(1.1)
        figures = harness.channel("t", "c")
        assert 1 == figures.depth + figures.in_flight_count + figures.deferred_count
    assert [] == consumer.messages()
    why = "topic t.dead refused 1 dead letters: the limit of 1 topics is reached"
    assert [why] == [note for note in harness.broker.notes if "dead letters" in note]
    harness.crash(max_topics=0)
    consumer = harness.consumer("t", "c", rdy=1)
    harness.pass_time(1.1)
    assert [] == consumer.messages()
    assert [b"bad"] == dead_letter_bodies(harness)


def test_emptying_a_channel_drops_refused_dead_letters() -> None:
    """Emptying a channel also drops its messages that wait for a refusing dead-letter topic."""
    harness = harness_with_limit(max_topics=1)
    consumer = harness.consumer("t", "c", rdy=1)
    harness.publish("t", b"bad")
    exhaust(consumer)
    harness.broker.empty_channel("t", "c", harness.clock.now())
    harness.turn()
    harness.pass_time(2)
    figures = harness.channel("t", "c")
    assert (0, 0, 0) == (figures.depth, figures.in_flight_count, figures.deferred_count)


def test_a_lowered_limit_applies_to_waiting_messages() -> None:
    """A lower limit applies to waiting messages.

    One that has reached it becomes a dead letter when its next delivery is due.
    """
    harness = BrokerHarness()
    consumer = harness.consumer("t", "c", rdy=1)
    harness.publish("t", b"bad", b"good")
    for _ in range(6):
        messages = consumer.messages()
        requeue(consumer, [message for message in messages if message.body == b"bad"])
        consumer.finish([message for message in messages if message.body == b"good"])
    harness.crash(max_attempts=2)
    assert [] == harness.consumer("t", "c", rdy=1).messages()
    assert [b"bad"] == dead_letter_bodies(harness)


def test_dead_letters_of_an_ephemeral_topic_go_to_an_ephemeral_topic() -> None:
    """Dead letters of an ephemeral topic go to an ephemeral topic."""
    harness = harness_with_limit()
    consumer = harness.consumer("t#ephemeral", "c", rdy=1)
    harness.publish("t#ephemeral", b"bad")
    exhaust(consumer)
    assert [b"bad"] == dead_letter_bodies(harness, "t.dead#ephemeral")


def test_uncached_dead_letters_keep_their_bodies() -> None:
    """Dead letters whose bodies must be read from disk keep their own bodies."""
    harness = harness_with_limit(cache_bytes=1, commit_bytes=50_000)
    consumer = harness.consumer("t", "c", rdy=2_500)
    bodies = [b"%05d" % number * 400 for number in range(60)]
    for body in bodies:
        harness.publish("t", body)
    exhaust(consumer)
    for _ in range(5):
        harness.pass_time(1)
    found = dead_letter_bodies(harness)
    assert sorted(bodies) == sorted(found)
    assert 60 == harness.channel("t", "c").dead_letter_count


def redrive(
    harness: BrokerHarness, channel: str, messages: list[Message], to: Only, topic: str = "t"
) -> list[bytes]:
    """Redrive dead letters from a channel of `t.dead`; returns their bodies."""
    indexes = np.array(sorted(message.index for message in messages), np.int64)
    now = harness.clock.now()
    assert {} == harness.broker.claim("t.dead", channel, indexes, now)
    held = harness.broker.topics["t.dead"].channels[channel]
    ticket = Ticket()
    bodies = [message.body for message in messages]
    harness.broker.send_back(DeadLetterBatch(held, indexes, bodies, to), topic, now, ticket)
    harness.turn()
    assert [None] == ticket.answers
    return bodies


def test_identify_mentions_envelopes_only_on_request() -> None:
    """IDENTIFY's answer mentions `dead_letter_envelopes` only to clients that request them."""
    harness = BrokerHarness()
    for asks in (False, True):
        client = harness.connect()
        client.say(
            commands.identify(
                b'{"feature_negotiation": true%s}'
                % (b', "dead_letter_envelopes": true' if asks else b"")
            )
        )
        (answer,) = client.answers()
        assert asks == (b'"dead_letter_envelopes":true' in answer)


def test_a_redriven_message_goes_only_to_its_original_channel() -> None:
    """A redriven message is delivered only by its original channel, with attempts from 1.

    This holds after a crash and after a restart.
    """
    harness = BrokerHarness(max_attempts=MAX_ATTEMPTS)
    failing = harness.consumer("t", "failing", rdy=10)
    other = harness.consumer("t", "other", rdy=10)
    harness.publish("t", b"a", b"b")
    other.finish(other.messages())
    exhaust(failing)
    reader = harness.consumer("t.dead", "redrive", rdy=10)
    messages = reader.messages()
    reader.close()
    harness.pass_time(61)
    assert 2 == harness.channel("t.dead", "redrive").depth
    bodies = redrive(harness, "redrive", messages, Only("failing", [1, 1]))
    found = failing.messages()
    assert (bodies, [1, 1]) == ([m.body for m in found], [m.attempts for m in found])
    assert [] == other.messages()
    assert (0, 0) == (
        harness.channel("t", "other").depth,
        harness.channel("t.dead", "redrive").depth,
    )
    assert {"failing": 4, "other": 2} == {
        name: harness.channel("t", name).message_count for name in ("failing", "other")
    }
    assert 2 == harness.channel("t.dead", "redrive").redriven_count
    for ends in (harness.crash, harness.restart):
        ends()
        assert 0 == harness.channel("t", "other").depth + harness.channel("t.dead", "redrive").depth
        assert 2 == harness.channel("t", "failing").depth


@pytest.mark.parametrize("between", ["nothing", "crash", "checkpoint", "restart"])
def test_a_dead_letters_history_counts_its_redrives(between: str) -> None:
    """A dead letter's history counts how often the message was redriven.

    The count survives crashes, checkpoints and restarts.
    """
    harness = BrokerHarness(max_attempts=MAX_ATTEMPTS)
    harness.publish("t", b"bad")
    for times in range(1, 4):
        failing = harness.consumer("t", "c", rdy=1)
        exhaust(failing)
        failing.close()
        reader = harness.consumer("t.dead", "redrive", rdy=1)
        messages = reader.messages()
        reader.close()
        harness.pass_time(61)
        redrive(harness, "redrive", messages, Only("c", [times]))
        if between == "checkpoint":
            harness.checkpoint("t")
        if between in ("crash", "checkpoint"):
            harness.crash()
        if between == "restart":
            harness.restart()
    exhaust(harness.consumer("t", "c", rdy=1))
    assert "3" == histories(harness)[-1][0]["redriven"]
    channel = harness.broker.topics["t"].channels["c"]
    assert {} == channel.redriven


def test_messages_in_flight_finished_or_missing_cannot_be_claimed() -> None:
    """Messages in flight, finished or not in the log cannot be claimed.

    Claimed messages are not delivered until they are unclaimed.
    """
    harness = BrokerHarness(max_attempts=MAX_ATTEMPTS)
    consumer = harness.consumer("t.dead", "c", rdy=2)
    harness.publish("t.dead", b"1", b"2", b"3", b"4")
    one, two = consumer.messages()
    consumer.say(commands.rdy(0))
    consumer.finish([two])
    indexes = np.array([one.index + at for at in (0, 1, 2, 3, 9)], np.int64)
    now = harness.clock.now()
    refused = harness.broker.claim("t.dead", "c", indexes, now)
    assert [
        "it is in flight",
        "it is finished",
        "not in the log",
    ] == [refused[one.index + at] for at in (0, 1, 9)]
    assert 3 == len(refused)
    consumer.say(commands.rdy(10))
    assert [] == consumer.messages()
    channel = harness.broker.topics["t.dead"].channels["c"]
    harness.broker.unclaim(channel, indexes)
    harness.turn()
    assert [b"3", b"4"] == consumer.bodies()


def test_all_channels_get_a_redriven_message_of_a_deleted_channel() -> None:
    """If its channel is deleted, a redriven message is delivered by all channels.

    An unwanted delivery is better than none.
    """
    harness = BrokerHarness(max_attempts=MAX_ATTEMPTS)
    exhausted = harness.consumer("t", "c", rdy=1)
    harness.publish("t", b"bad")
    exhaust(exhausted)
    reader = harness.consumer("t.dead", "redrive", rdy=1)
    messages = reader.messages()
    reader.close()
    harness.pass_time(61)
    other = harness.consumer("t", "other", rdy=1)
    harness.broker.delete_channel("t", "c", harness.clock.now())
    redrive(harness, "redrive", messages, Only("c", [1]))
    assert [b"bad"] == other.bodies()


def test_a_dead_letter_stays_if_the_target_topic_refuses_it() -> None:
    """A dead letter stays in its channel if the target topic refuses it."""
    harness = BrokerHarness(max_attempts=MAX_ATTEMPTS)
    consumer = harness.consumer("t", "c", rdy=1)
    harness.publish("t", b"bad")
    exhaust(consumer)
    reader = harness.consumer("t.dead", "redrive", rdy=1)
    messages = reader.messages()
    reader.close()
    harness.pass_time(61)
    harness.crash(max_topics=2)
    indexes = np.array([message.index for message in messages], np.int64)
    now = harness.clock.now()
    assert {} == harness.broker.claim("t.dead", "redrive", indexes, now)
    held = harness.broker.topics["t.dead"].channels["redrive"]
    ticket = Ticket()
    letters = DeadLetterBatch(held, indexes, [b"bad"], Only("c", [1]))
    harness.broker.send_back(letters, "another", now, ticket)
    harness.turn()
    (error,) = ticket.answers
    assert error is not None
    harness.pass_time(1.1)
    assert [b"bad"] == harness.consumer("t.dead", "redrive", rdy=1).bodies()
