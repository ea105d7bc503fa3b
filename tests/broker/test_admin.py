"""Requeue, finish and cancel of single messages, in any state; the effect survives restarts."""

from __future__ import annotations

import pytest

from sparq.broker import admin
from sparq.broker.admin import CANCELLED, FINISHED, GONE, NOT_DEFERRED, UNSEEN
from sparq.protocol import commands
from sparq.protocol.errors import RemoteError
from tests.broker.house import House
from tests.broker.single_messages import (
    act,
    channel_of,
    checkpoint,
    house_with,
    states,
    stored,
)

# One action at a time


def test_a_message_is_finished_ahead_of_the_cursor() -> None:
    """A message finished before its delivery is never delivered, even after a crash."""
    house, client = house_with(b"a", b"b", b"c", b"d")
    indexes = stored(house)
    assert act(house, "finish", indexes[1], indexes[3]) == {}
    assert (house.channel("t", "c").depth, states(house)) == (
        2,
        ["WAITING", "FINISHED", "WAITING", "FINISHED"],
    )

    assert act(house, "finish", indexes[1]) == {indexes[1]: FINISHED}
    house.crash()
    client = house.consumer("t", "c", rdy=9)

    assert client.bodies() == [b"a", b"c"]


def test_a_replay_counts_what_was_finished_ahead_of_the_cursor() -> None:
    """A seek's `again` counts messages finished ahead of the cursor, but not requeued ones."""
    house, _ = house_with(*[b"x"] * 6)
    indexes = stored(house)
    act(house, "finish", *indexes[1:5])
    act(house, "requeue", indexes[2])
    for target, again, waiting in (("earliest", 3, 6), (indexes[4], 1, 2), (indexes[5], 0, 1)):
        seek = house.broker.seek("t", "c", target, house.clock.now(), dry_run=True)
        house.turn()
        assert seek.landing is not None
        assert (seek.landing.again, seek.landing.waiting) == (again, waiting)


def test_a_message_in_flight_is_taken_from_its_consumer() -> None:
    """Requeue and finish also act on messages in flight.

    A requeued one is delivered with one more attempt, a finished one is not delivered again. The
    consumer's late FIN gets E_FIN_FAILED.
    """
    house, client = house_with(b"a", b"b", rdy=2)
    first, second = client.messages()
    client.say(commands.rdy(0))
    assert act(house, "requeue", first.index) == {}
    assert act(house, "finish", second.index) == {}
    assert (client.session.in_flight_count, house.channel("t", "c").depth) == (0, 1)

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
    house, client = house_with(b"a", b"b", b"c", rdy=3)
    messages = client.messages()
    client.say(commands.rdy(0))
    for message in messages:
        client.say(commands.req(message.id, 60_000))
    assert states(house) == ["DEFERRED"] * 3
    a, b, c = (message.index for message in messages)
    assert act(house, "requeue", a) == {}
    assert act(house, "cancel", b) == {}
    assert act(house, "finish", c) == {}
    assert states(house) == ["WAITING", "FINISHED", "FINISHED"]

    house.crash()
    assert states(house) == ["WAITING", "FINISHED", "FINISHED"]
    (message,) = house.consumer("t", "c", rdy=9).messages()
    assert (message.body, message.attempts) == (b"a", 2)


def test_a_deferred_publish_leaves_one_channel_and_stays_for_the_other() -> None:
    """Requeue and cancel of a deferred publish affect only the named channel.

    The other channel delivers it when it is due, not before, also after a crash.
    """
    house, _ = house_with()
    house.consumer("t", "other")
    house.publish("t", b"a", b"b", defer_ms=60_000)
    a, b = stored(house)
    assert act(house, "requeue", a) == {}
    assert act(house, "cancel", b) == {}
    assert act(house, "cancel", b) == {b: NOT_DEFERRED}
    for _ in range(2):
        assert states(house) == ["WAITING", "FINISHED"]
        assert states(house, "other") == ["DEFERRED", "DEFERRED"]
        assert house.channel("t", "c").deferred_count == 0
        house.crash()

    checkpoint(house)
    house.crash()
    client, other = house.consumer("t", "c", rdy=9), house.consumer("t", "other", rdy=9)
    messages = client.messages()
    assert ([message.body for message in messages], other.bodies()) == ([b"a"], [])
    client.finish(messages)
    house.pass_time(61)
    assert (client.bodies(), other.bodies()) == ([], [b"a", b"b"])


def test_a_deferred_publish_is_cancelled_for_all() -> None:
    """A deferred publish that is cancelled for all channels is never delivered.

    This includes channels created later, crashes and replays.
    """
    house = House()
    house.broker.create_topic("t", house.clock.now())
    house.publish("t", b"a", b"b", defer_ms=60_000)
    a, _ = stored(house)
    assert act(house, "cancel", a, channel=None) == {}
    assert act(house, "cancel", a, channel=None) == {a: NOT_DEFERRED}
    house.crash()
    client = house.consumer("t", "late", rdy=9)
    house.pass_time(61)
    assert client.bodies() == [b"b"]
    assert act(house, "requeue", a, channel="late") == {a: CANCELLED}

    house.broker.seek("t", "late", "earliest", house.clock.now())
    house.turn()
    assert client.bodies() == [b"b"]


def test_what_is_cancelled_behind_others_is_shown_as_cancelled() -> None:
    """A cancelled deferred publish is shown as finished, not as deferred, before its due time.

    It is still in the due list then, after an entry that is due earlier.
    """
    house, _ = house_with()
    for seconds in (1, 2, 3):
        house.publish("t", b"x", defer_ms=1000 * seconds)
    _, b, _ = stored(house)
    assert act(house, "cancel", b, channel=None) == {}

    assert states(house) == ["DEFERRED", "FINISHED", "DEFERRED"]
    assert house.channel("t", "c").deferred_count == 2
    assert act(house, "requeue", b) == {b: CANCELLED}
    house.pass_time(5)
    assert states(house) == ["WAITING", "FINISHED", "WAITING"]


@pytest.mark.parametrize("by_checkpoint", [False, True])
@pytest.mark.parametrize("channel", ["c", None])
def test_what_is_cancelled_stays_so_behind_its_time(
    channel: str | None, by_checkpoint: bool
) -> None:
    """A cancelled message is not delivered by a restart after its due time.

    This holds for messages before and after the cursor, with and without a checkpoint.
    """
    house, client = house_with()
    house.publish("t", b"a", defer_ms=60_000)
    house.publish("t", b"x")
    house.publish("t", b"b", defer_ms=60_000)
    a, _, b = stored(house)
    client.say(commands.rdy(1))
    messages = client.messages()
    client.say(commands.rdy(0))
    client.finish(messages)
    assert act(house, "cancel", a, b, channel=channel) == {}
    if by_checkpoint:
        checkpoint(house)
    house.crash()
    assert states(house) == ["FINISHED"] * 3
    assert house.channel("t", "c").depth == 0
    house.advance(61)
    house.crash()
    assert house.consumer("t", "c", rdy=9).bodies() == []
    assert house.channel("t", "c").deferred_count == 0


@pytest.mark.parametrize("action", ["requeue", "finish"])
def test_what_one_channel_has_ready_is_not_cancelled_with_the_others(action: str) -> None:
    """Cancelling for all channels spares a channel in which the message is ready.

    It was requeued there before. It survives checkpoints and restarts, and can be requeued or
    finished.
    """
    house, _ = house_with()
    house.consumer("t", "other")
    house.publish("t", b"a", defer_ms=60_000)
    (a,) = stored(house)
    assert act(house, "requeue", a) == {}
    assert act(house, "cancel", a, channel=None) == {}
    for _ in range(2):
        checkpoint(house)
        house.crash()
        assert (states(house), states(house, "other")) == (["WAITING"], ["FINISHED"])
    assert act(house, action, a) == {}
    assert act(house, "requeue", a, channel="other") == {a: CANCELLED}
    assert house.consumer("t", "c", rdy=9).bodies() == ([b"a"] if action == "requeue" else [])


def test_a_replay_counts_no_cancelled_message() -> None:
    """A replay does not count or deliver a message that was cancelled for all channels.

    A message that was cancelled for this channel alone is deferred again.
    """
    house, client = house_with()
    house.publish("t", b"a", b"b", defer_ms=60_000)
    house.publish("t", b"x")
    a, b, _ = stored(house)
    act(house, "cancel", a, channel=None)
    act(house, "cancel", b)
    dry, real = (
        house.broker.seek("t", "c", "earliest", house.clock.now(), dry_run=dry)
        for dry in (True, False)
    )
    house.turn()
    assert dry.landing == real.landing
    assert real.landing is not None
    assert real.landing.waiting == 1
    assert states(house) == ["FINISHED", "DEFERRED", "WAITING"]
    house.pass_time(61)
    client.say(commands.rdy(9))
    assert sorted(client.bodies()) == [b"b", b"x"]


@pytest.mark.parametrize("by_checkpoint", [False, True])
def test_requeued_before_its_start_a_channel_gets_nothing_else(by_checkpoint: bool) -> None:
    """A requeue of one deferred publish before the channel's start makes only that one ready.

    The channel does not get its neighbour; the other channel still waits for both.
    """
    house, _ = house_with()
    house.consumer("t", "other")
    house.publish("t", b"a", b"b", defer_ms=60_000)
    house.publish("t", b"x")
    a, _, x = stored(house)
    house.broker.seek("t", "c", x, house.clock.now())
    house.turn()
    assert act(house, "requeue", a) == {}
    if by_checkpoint:
        checkpoint(house)
    house.crash()
    assert states(house) == ["WAITING", "FINISHED", "WAITING"]
    assert states(house, "other") == ["DEFERRED", "DEFERRED", "WAITING"]
    house.pass_time(61)
    assert sorted(house.consumer("t", "c", rdy=9).bodies()) == [b"a", b"x"]


def test_a_finished_message_comes_again() -> None:
    """A finished message, before the cursor or the channel's start, can be requeued.

    Its attempts start at 1 again, and the requeue survives crashes.
    """
    house, client = house_with(b"a", b"b", b"c", rdy=9)
    client.finish(client.messages())
    first = stored(house)[0]
    assert act(house, "requeue", first) == {}
    (again,) = client.messages()
    assert (again.body, again.attempts) == (b"a", 1)
    client.finish([again])

    client.say(commands.rdy(0))
    assert act(house, "requeue", first) == {}
    for _ in range(2):
        house.crash()
        assert states(house) == ["WAITING", "FINISHED", "FINISHED"]
    assert house.consumer("t", "c", rdy=9).bodies() == [b"a"]


def test_what_cannot_be_done_is_told() -> None:
    """Each refused index gets its reason, and the other messages are processed.

    The reasons: not in the log, not visible to the channel yet, not deferred.
    """
    house, _ = house_with(b"a")
    house.broker.pause_topic("t", True, house.clock.now())
    house.publish("t", b"b")
    a, b = stored(house)
    assert act(house, "finish", 5, a, b) == {5: GONE, b: UNSEEN}
    assert act(house, "cancel", a) == {a: NOT_DEFERRED}
    assert states(house) == ["FINISHED", "WAITING"]


def test_a_range_readers_channel_is_left_alone() -> None:
    """All actions are refused on a channel that a range reader holds."""
    house = House()
    house.publish("t", b"a")
    house.connect().say(commands.attach("t", "c"))
    for action in admin.ACTIONS:
        with pytest.raises(RemoteError, match="range reader"):
            act(house, action, stored(house)[0])


def test_an_ephemeral_channel_is_acted_on_in_memory() -> None:
    """Finish and requeue work on an ephemeral channel, which has no ledger."""
    house = House()
    client = house.consumer("t", "c#ephemeral")
    house.publish("t", b"a", b"b")
    a, b = stored(house)
    assert act(house, "finish", a, channel="c#ephemeral") == {}
    assert act(house, "finish", b, channel="c#ephemeral") == {}
    assert act(house, "requeue", b, channel="c#ephemeral") == {}
    client.say(commands.rdy(9))
    assert client.bodies() == [b"b"]


def test_a_lag_limit_passes_what_was_finished_ahead() -> None:
    """Messages finished ahead of the cursor are not counted a second time when they are dropped.

    The depth stays the number of waiting messages.
    """
    house, client = house_with(b"a", b"b", b"c", b"d", b"e")
    indexes = stored(house)
    assert act(house, "finish", *indexes[1:4]) == {}
    channel = channel_of(house)
    assert channel.overrun(indexes[2]) == 1
    house.turn()
    assert house.channel("t", "c").depth == 1
    assert states(house) == [*["FINISHED"] * 4, "WAITING"]
    client.say(commands.rdy(9))
    assert client.bodies() == [b"e"]
