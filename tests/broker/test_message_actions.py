"""Requeue, finish and cancel of single messages, in any state; the effect survives restarts."""

from __future__ import annotations

import pytest

from sparq.broker import message_actions
from sparq.broker.message_actions import CANCELLED, FINISHED, GONE, NOT_DEFERRED, UNSEEN
from sparq.protocol import commands
from sparq.protocol.errors import RemoteError
from tests.broker.harness import BrokerHarness
from tests.broker.single_messages import (
    act,
    channel_of,
    checkpoint,
    states,
    stored,
    subscribed_harness,
)

# One action at a time


def test_a_message_is_finished_ahead_of_the_cursor() -> None:
    """A message finished before its delivery is never delivered, even after a crash."""
    harness, client = subscribed_harness(b"a", b"b", b"c", b"d")
    indexes = stored(harness)
    assert act(harness, "finish", indexes[1], indexes[3]) == {}
    assert (harness.channel("t", "c").depth, states(harness)) == (
        2,
        ["WAITING", "FINISHED", "WAITING", "FINISHED"],
    )

    assert act(harness, "finish", indexes[1]) == {indexes[1]: FINISHED}
    harness.crash()
    client = harness.consumer("t", "c", rdy=9)

    assert client.bodies() == [b"a", b"c"]


def test_a_replay_counts_messages_finished_ahead_of_the_cursor() -> None:
    """A seek's `again` counts messages finished ahead of the cursor, but not requeued ones."""
    harness, _ = subscribed_harness(*[b"x"] * 6)
    indexes = stored(harness)
    act(harness, "finish", *indexes[1:5])
    act(harness, "requeue", indexes[2])
    for target, again, waiting in (("earliest", 3, 6), (indexes[4], 1, 2), (indexes[5], 0, 1)):
        seek = harness.broker.seek("t", "c", target, harness.clock.now(), dry_run=True)
        harness.turn()
        assert seek.landing is not None
        assert (seek.landing.again, seek.landing.waiting) == (again, waiting)


def test_a_message_in_flight_is_taken_from_its_consumer() -> None:
    """Requeue and finish also act on messages in flight.

    A requeued one is delivered with one more attempt, a finished one is not delivered again. The
    consumer's late FIN gets E_FIN_FAILED.
    """
    harness, client = subscribed_harness(b"a", b"b", rdy=2)
    first, second = client.messages()
    client.say(commands.rdy(0))
    assert act(harness, "requeue", first.index) == {}
    assert act(harness, "finish", second.index) == {}
    assert (client.session.in_flight_count, harness.channel("t", "c").depth) == (0, 1)

    client.answers()
    client.finish([second])
    assert client.answers()[0].startswith(b"E_FIN_FAILED")
    client.say(commands.rdy(2))
    (again,) = client.messages()
    assert (again.body, again.attempts) == (b"a", 2)


def test_a_delayed_message_is_ready_at_once_or_dropped() -> None:
    """A message that waits for a REQ delay can be requeued, cancelled or finished.

    Requeue makes it ready immediately; cancel and finish drop it. All three survive a crash.
    """
    harness, client = subscribed_harness(b"a", b"b", b"c", rdy=3)
    messages = client.messages()
    client.say(commands.rdy(0))
    for message in messages:
        client.say(commands.req(message.id, 60_000))
    assert states(harness) == ["DEFERRED"] * 3
    a, b, c = (message.index for message in messages)
    assert act(harness, "requeue", a) == {}
    assert act(harness, "cancel", b) == {}
    assert act(harness, "finish", c) == {}
    assert states(harness) == ["WAITING", "FINISHED", "FINISHED"]

    harness.crash()
    assert states(harness) == ["WAITING", "FINISHED", "FINISHED"]
    (message,) = harness.consumer("t", "c", rdy=9).messages()
    assert (message.body, message.attempts) == (b"a", 2)


def test_acting_on_a_deferred_publish_affects_only_the_named_channel() -> None:
    """Requeue and cancel of a deferred publish affect only the named channel.

    The other channel delivers it when it is due, not before, also after a crash.
    """
    harness, _ = subscribed_harness()
    harness.consumer("t", "other")
    harness.publish("t", b"a", b"b", defer_ms=60_000)
    a, b = stored(harness)
    assert act(harness, "requeue", a) == {}
    assert act(harness, "cancel", b) == {}
    assert act(harness, "cancel", b) == {b: NOT_DEFERRED}
    for _ in range(2):
        assert states(harness) == ["WAITING", "FINISHED"]
        assert states(harness, "other") == ["DEFERRED", "DEFERRED"]
        assert harness.channel("t", "c").deferred_count == 0
        harness.crash()

    checkpoint(harness)
    harness.crash()
    client, other = harness.consumer("t", "c", rdy=9), harness.consumer("t", "other", rdy=9)
    messages = client.messages()
    assert ([message.body for message in messages], other.bodies()) == ([b"a"], [])
    client.finish(messages)
    harness.pass_time(61)
    assert (client.bodies(), other.bodies()) == ([], [b"a", b"b"])


def test_a_deferred_publish_is_cancelled_for_all() -> None:
    """A deferred publish that is cancelled for all channels is never delivered.

    This includes channels created later, crashes and replays.
    """
    harness = BrokerHarness()
    harness.broker.create_topic("t", harness.clock.now())
    harness.publish("t", b"a", b"b", defer_ms=60_000)
    a, _ = stored(harness)
    assert act(harness, "cancel", a, channel=None) == {}
    assert act(harness, "cancel", a, channel=None) == {a: NOT_DEFERRED}
    harness.crash()
    client = harness.consumer("t", "late", rdy=9)
    harness.pass_time(61)
    assert client.bodies() == [b"b"]
    assert act(harness, "requeue", a, channel="late") == {a: CANCELLED}

    harness.broker.seek("t", "late", "earliest", harness.clock.now())
    harness.turn()
    assert client.bodies() == [b"b"]


def test_a_cancelled_publish_is_shown_as_finished_before_its_due_time() -> None:
    """A cancelled deferred publish is shown as finished, not as deferred, before its due time.

    It is still in the due list then, after an entry that is due earlier.
    """
    harness, _ = subscribed_harness()
    for seconds in (1, 2, 3):
        harness.publish("t", b"x", defer_ms=1000 * seconds)
    _, b, _ = stored(harness)
    assert act(harness, "cancel", b, channel=None) == {}

    assert states(harness) == ["DEFERRED", "FINISHED", "DEFERRED"]
    assert harness.channel("t", "c").deferred_count == 2
    assert act(harness, "requeue", b) == {b: CANCELLED}
    harness.pass_time(5)
    assert states(harness) == ["WAITING", "FINISHED", "WAITING"]


@pytest.mark.parametrize("by_checkpoint", [False, True])
@pytest.mark.parametrize("channel", ["c", None])
def test_a_cancelled_message_is_not_delivered_by_a_restart_after_its_due_time(
    channel: str | None, by_checkpoint: bool
) -> None:
    """A cancelled message is not delivered by a restart after its due time.

    This holds for messages before and after the cursor, with and without a checkpoint.
    """
    harness, client = subscribed_harness()
    harness.publish("t", b"a", defer_ms=60_000)
    harness.publish("t", b"x")
    harness.publish("t", b"b", defer_ms=60_000)
    a, _, b = stored(harness)
    client.say(commands.rdy(1))
    messages = client.messages()
    client.say(commands.rdy(0))
    client.finish(messages)
    assert act(harness, "cancel", a, b, channel=channel) == {}
    if by_checkpoint:
        checkpoint(harness)
    harness.crash()
    assert states(harness) == ["FINISHED"] * 3
    assert harness.channel("t", "c").depth == 0
    harness.advance(61)
    harness.crash()
    assert harness.consumer("t", "c", rdy=9).bodies() == []
    assert harness.channel("t", "c").deferred_count == 0


@pytest.mark.parametrize("action", ["requeue", "finish"])
def test_cancelling_for_all_spares_a_channel_where_the_message_is_ready(action: str) -> None:
    """Cancelling for all channels spares a channel in which the message is ready.

    It was requeued there before. It survives checkpoints and restarts, and can be requeued or
    finished.
    """
    harness, _ = subscribed_harness()
    harness.consumer("t", "other")
    harness.publish("t", b"a", defer_ms=60_000)
    (a,) = stored(harness)
    assert act(harness, "requeue", a) == {}
    assert act(harness, "cancel", a, channel=None) == {}
    for _ in range(2):
        checkpoint(harness)
        harness.crash()
        assert (states(harness), states(harness, "other")) == (["WAITING"], ["FINISHED"])
    assert act(harness, action, a) == {}
    assert act(harness, "requeue", a, channel="other") == {a: CANCELLED}
    assert harness.consumer("t", "c", rdy=9).bodies() == ([b"a"] if action == "requeue" else [])


def test_a_replay_counts_no_cancelled_message() -> None:
    """A replay does not count or deliver a message that was cancelled for all channels.

    A message that was cancelled for this channel alone is deferred again.
    """
    harness, client = subscribed_harness()
    harness.publish("t", b"a", b"b", defer_ms=60_000)
    harness.publish("t", b"x")
    a, b, _ = stored(harness)
    act(harness, "cancel", a, channel=None)
    act(harness, "cancel", b)
    dry, real = (
        harness.broker.seek("t", "c", "earliest", harness.clock.now(), dry_run=dry)
        for dry in (True, False)
    )
    harness.turn()
    assert dry.landing == real.landing
    assert real.landing is not None
    assert real.landing.waiting == 1
    assert states(harness) == ["FINISHED", "DEFERRED", "WAITING"]
    harness.pass_time(61)
    client.say(commands.rdy(9))
    assert sorted(client.bodies()) == [b"b", b"x"]


@pytest.mark.parametrize("by_checkpoint", [False, True])
def test_a_requeue_before_the_channels_start_makes_only_that_message_ready(
    by_checkpoint: bool,
) -> None:
    """A requeue of one deferred publish before the channel's start makes only that one ready.

    The channel does not get its neighbour; the other channel still waits for both.
    """
    harness, _ = subscribed_harness()
    harness.consumer("t", "other")
    harness.publish("t", b"a", b"b", defer_ms=60_000)
    harness.publish("t", b"x")
    a, _, x = stored(harness)
    harness.broker.seek("t", "c", x, harness.clock.now())
    harness.turn()
    assert act(harness, "requeue", a) == {}
    if by_checkpoint:
        checkpoint(harness)
    harness.crash()
    assert states(harness) == ["WAITING", "FINISHED", "WAITING"]
    assert states(harness, "other") == ["DEFERRED", "DEFERRED", "WAITING"]
    harness.pass_time(61)
    assert sorted(harness.consumer("t", "c", rdy=9).bodies()) == [b"a", b"x"]


def test_a_finished_message_can_be_requeued() -> None:
    """A finished message, before the cursor or the channel's start, can be requeued.

    Its attempts start at 1 again, and the requeue survives crashes.
    """
    harness, client = subscribed_harness(b"a", b"b", b"c", rdy=9)
    client.finish(client.messages())
    first = stored(harness)[0]
    assert act(harness, "requeue", first) == {}
    (again,) = client.messages()
    assert (again.body, again.attempts) == (b"a", 1)
    client.finish([again])

    client.say(commands.rdy(0))
    assert act(harness, "requeue", first) == {}
    for _ in range(2):
        harness.crash()
        assert states(harness) == ["WAITING", "FINISHED", "FINISHED"]
    assert harness.consumer("t", "c", rdy=9).bodies() == [b"a"]


def test_each_refused_index_gets_its_reason() -> None:
    """Each refused index gets its reason, and the other messages are processed.

    The reasons: not in the log, not visible to the channel yet, not deferred.
    """
    harness, _ = subscribed_harness(b"a")
    harness.broker.pause_topic("t", True, harness.clock.now())
    harness.publish("t", b"b")
    a, b = stored(harness)
    assert act(harness, "finish", 5, a, b) == {5: GONE, b: UNSEEN}
    assert act(harness, "cancel", a) == {a: NOT_DEFERRED}
    assert states(harness) == ["FINISHED", "WAITING"]


def test_actions_on_a_range_readers_channel_are_refused() -> None:
    """All actions are refused on a channel that a range reader holds."""
    harness = BrokerHarness()
    harness.publish("t", b"a")
    harness.connect().say(commands.attach("t", "c"))
    for action in message_actions.ACTIONS:
        with pytest.raises(RemoteError, match="range reader"):
            act(harness, action, stored(harness)[0])


def test_finish_and_requeue_work_on_an_ephemeral_channel() -> None:
    """Finish and requeue work on an ephemeral channel, which has no ledger."""
    harness = BrokerHarness()
    client = harness.consumer("t", "c#ephemeral")
    harness.publish("t", b"a", b"b")
    a, b = stored(harness)
    assert act(harness, "finish", a, channel="c#ephemeral") == {}
    assert act(harness, "finish", b, channel="c#ephemeral") == {}
    assert act(harness, "requeue", b, channel="c#ephemeral") == {}
    client.say(commands.rdy(9))
    assert client.bodies() == [b"b"]


def test_a_lag_limit_does_not_count_messages_finished_ahead_twice() -> None:
    """Messages finished ahead of the cursor are not counted a second time when they are dropped.

    The depth stays the number of waiting messages.
    """
    harness, client = subscribed_harness(b"a", b"b", b"c", b"d", b"e")
    indexes = stored(harness)
    assert act(harness, "finish", *indexes[1:4]) == {}
    channel = channel_of(harness)
    assert channel.overrun(indexes[2]) == 1
    harness.turn()
    assert harness.channel("t", "c").depth == 1
    assert states(harness) == [*["FINISHED"] * 4, "WAITING"]
    client.say(commands.rdy(9))
    assert client.bodies() == [b"e"]
