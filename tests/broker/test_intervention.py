"""Single messages are requeued, finished and cancelled, wherever they are; looking takes nothing.

What a channel's picture says is held against its figures and against what a restart finds, after
every step of random lives of a channel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparq.broker import intervention, picture
from sparq.broker.channel import Channel, SeekTarget
from sparq.broker.intervention import CANCELLED, FINISHED, GONE, NOT_DEFERRED, UNSEEN
from sparq.broker.picture import State
from sparq.broker.recovery import state_of
from sparq.broker.topic import Topic
from sparq.protocol import commands
from sparq.protocol.errors import RemoteError
from tests.broker.house import SECOND_NS, Client, House

Indexes = list[int]


def topic_of(house: House) -> Topic:
    return house.broker.topics["t"]


def channel_of(house: House, name: str = "c") -> Channel:
    return topic_of(house).channels[name]


def act(house: House, action: str, *indexes: int, channel: str | None = "c") -> dict[int, str]:
    """Do it, and let the turn end."""
    chosen = np.unique(np.array(indexes, np.int64))
    refused = house.broker.act_on_messages(action, "t", channel, chosen, house.clock.now())
    house.turn()
    assert house.broker.unsettled("t") is None
    return refused


def stored(house: House) -> Indexes:
    """The indexes of all messages in the log."""
    return topic_of(house).stream.log.looking.stored_from(0, 1 << 54, 10_000)


def states(house: House, name: str = "c") -> list[str]:
    """How each message of the log stands."""
    indexes = stored(house)
    found = picture.take(channel_of(house, name), house.clock.now()).standings(indexes)
    return [found[index].state.name for index in indexes]


def checkpoint(house: House) -> None:
    """Have the ledger's records replaced by their state."""
    books = topic_of(house).books
    assert books is not None
    books.checkpoint(house.clock.now())
    house.turn()


def house_with(*bodies: bytes, rdy: int = 0, **options: Any) -> tuple[House, Client]:
    house = House(**options)
    client = house.consumer("t", "c", rdy=rdy)
    if bodies:
        house.publish("t", *bodies)
    return house, client


# One action at a time


def test_a_message_is_finished_ahead_of_the_cursor() -> None:
    """It is never delivered, its neighbours are; also after a crash."""
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
    """It comes again; one that was requeued since waits anyway."""
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
    """Requeued it comes again with one more attempt, finished it does not; a late FIN fails."""
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
    """REQ with a delay: requeue makes it ready, cancel and finish drop it; all for good."""
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
    """Requeue and cancel of a DPUB concern their channel; the other gets it when it is due, also
    after a crash, and not before."""
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
    """Nobody gets it: no channel, none that is made later, not after a crash nor by a replay."""
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


@pytest.mark.parametrize("by_checkpoint", [False, True])
@pytest.mark.parametrize("channel", ["c", None])
def test_what_is_cancelled_stays_so_behind_its_time(
    channel: str | None, by_checkpoint: bool
) -> None:
    """A start that finds it due delivers it to nobody, wherever the cursor stands."""
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
    house.clock.advance(61)
    house.crash()
    assert house.consumer("t", "c", rdy=9).bodies() == []
    assert house.channel("t", "c").deferred_count == 0


def test_a_replay_counts_no_cancelled_message() -> None:
    """Cancelled for all it does not come; cancelled for the channel it waits for its time again."""
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
    """One deferred publish comes at once; its neighbour does not, and others wait for both."""
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
    """Behind the cursor and before the channel's start, with its attempts from 1; durably."""
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
    """Not in the log, not to be seen yet, not deferred: each with its reason; the rest is done."""
    house, _ = house_with(b"a")
    house.broker.pause_topic("t", True, house.clock.now())
    house.publish("t", b"b")
    a, b = stored(house)
    assert act(house, "finish", 5, a, b) == {5: GONE, b: UNSEEN}
    assert act(house, "cancel", a) == {a: NOT_DEFERRED}
    assert states(house) == ["FINISHED", "WAITING"]


def test_a_range_readers_channel_is_left_alone() -> None:
    """What it reads is between it and its commits."""
    house = House()
    house.publish("t", b"a")
    house.connect().say(commands.attach("t", "c"))
    for action in intervention.ACTIONS:
        with pytest.raises(RemoteError, match="range reader"):
            act(house, action, stored(house)[0])


def test_an_ephemeral_channel_is_acted_on_in_memory() -> None:
    """It has no ledger, and needs none."""
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
    """What is voided and what was finished are counted once: the depth stays what waits."""
    house, client = house_with(b"a", b"b", b"c", b"d", b"e")
    indexes = stored(house)
    assert act(house, "finish", *indexes[1:4]) == {}
    channel = channel_of(house)
    assert channel.overrun(indexes[2]) == 1
    house.turn()
    assert (house.channel("t", "c").depth, house.channel("t", "c").voided_count) == (1, 1)
    assert states(house) == [*["FINISHED"] * 4, "WAITING"]
    client.say(commands.rdy(9))
    assert client.bodies() == [b"e"]


# Random lives


def fingerprint(house: House) -> list[Any]:
    """All that looking must not change, down to the order of what is ready and of the cache."""
    topic, channel = topic_of(house), channel_of(house)
    stream = topic.stream
    again = [column.tolist() for column in channel.again.all()]
    flying = channel.in_flight.rows(0, 1 << 20)
    return [
        replace(house.channel("t", "c"), oldest_waiting_seconds=None),  # more exact once it is read
        replace(house.topic("t"), channels=[]),
        state_of(channel, house.clock.now()),
        again,
        [column.tolist() for column in flying[:5]],
        channel.delays.entries(),
        stream.due.entries(),
        (stream.end, channel.cursor, channel.noted_cursor, channel.skips.ranges()),
        list(stream.log._cache._entries),
    ]


def look_at_everything(house: House) -> dict[int, State]:
    """Every question that can be asked of a channel; how each message stands."""
    channel, now = channel_of(house), house.clock.now()
    taken = picture.take(channel, now)
    indexes = stored(house)
    picture.fresh_after(channel, -1, 1000)
    taken.again_after(-1, 1000)
    taken.due_after((0, 0), 1000)
    topic_of(house).stream.log.looking.curve()
    return {index: found.state for index, found in taken.standings(indexes).items()}


def pages(house: House) -> dict[State, Indexes]:
    """What is listed, state by state."""
    channel = channel_of(house)
    taken = picture.take(channel, house.clock.now())
    fresh = picture.fresh_after(channel, -1, 1000)
    again = taken.again_after(-1, 1000).tolist()
    assert not set(fresh) & set(again)
    return {
        State.WAITING: sorted(fresh + again),
        State.IN_FLIGHT: taken.in_flight.indexes.tolist(),
        State.DEFERRED: sorted(taken.due_after((-(1 << 62), -1), 1000)[0].tolist()),
    }


OPERATIONS = (
    *("publish", "defer", "take", "fin", "req", "wait"),
    *("seek", "pause", "checkpoint", "crash", "restart"),
)
ACTIONS = ("requeue", "finish", "cancel", "cancel_all")


class Life:
    """A channel that things happen to."""

    def __init__(self) -> None:
        self.house = House()
        self.client = self.house.consumer("t", "c")
        self.house.publish("t", b"first")
        self.held: list[bytes] = []
        self.paused = False

    def do(self, operation: str, number: int) -> None:
        """One thing."""
        house, client = self.house, self.client
        if operation == "publish":
            house.publish("t", *[b"x"] * (1 + number % 3))
        elif operation == "defer":
            house.publish("t", *[b"y"] * (1 + number % 2), defer_ms=1000 * (1 + number))
        elif operation == "take":
            client.say(commands.rdy(client.session.in_flight_count + 1 + number % 2))
            client.say(commands.rdy(0))
            self.held += [message.id for message in client.messages()]
        elif operation in ("fin", "req") and self.held:
            held = self.held.pop(number % len(self.held))
            client.say(
                commands.fin(held) if operation == "fin" else commands.req(held, 1000 * number)
            )
        elif operation == "wait":
            house.pass_time(number)
        elif operation == "seek":
            indexes = stored(house) or [0]
            targets: tuple[SeekTarget, ...] = (
                *("earliest", "latest", ("last", number)),
                *(
                    indexes[number % len(indexes)],
                    ("time", house.clock.wall_ns - number * SECOND_NS),
                ),
            )
            self.seek(targets[number % len(targets)])
        elif operation == "pause":
            self.paused = not self.paused
            house.broker.pause_topic("t", self.paused, house.clock.now())
            house.turn()
        elif operation == "checkpoint":
            checkpoint(house)
        elif operation in ("crash", "restart"):
            self.begin_anew(operation)
        elif operation in ACTIONS and (indexes := stored(house)):
            chosen = [indexes[(number + at) % len(indexes)] for at in range(1 + number % 2)]
            if operation == "cancel_all":
                act(house, "cancel", *chosen, channel=None)
            else:
                act(house, operation, *chosen)

    def seek(self, target: SeekTarget) -> None:
        """Move the channel; a dry run has told where it goes and what that comes to."""
        house = self.house
        dry, real = (
            house.broker.seek("t", "c", target, house.clock.now(), dry_run=dry_run)
            for dry_run in (True, False)
        )
        house.turn()
        assert dry.landing == real.landing

    def begin_anew(self, operation: str) -> None:
        """Another process: what was in flight waits, nothing else has changed."""
        before = look_at_everything(self.house)
        if operation == "crash":
            self.house.crash()
        else:
            self.house.restart()
        self.client, self.held = self.house.consumer("t", "c"), []
        after = look_at_everything(self.house)
        expected = {
            index: State.WAITING if state is State.IN_FLIGHT else state
            for index, state in before.items()
        }
        assert expected == after


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from((*OPERATIONS, *ACTIONS)), st.integers(0, 7)),
        min_size=3,
        max_size=25,
    )
)
def test_looking_takes_nothing_and_tells_what_is(steps: list[tuple[str, int]]) -> None:
    """After each step: nothing has changed by looking, the states are those of the figures, the
    pages list them, and a restart finds them again."""
    life = Life()
    for operation, number in steps:
        life.do(operation, number)
        house = life.house
        before = fingerprint(house)
        found = look_at_everything(house)
        assert before == fingerprint(house)
        house.broker.seek("t", "c", "earliest", house.clock.now(), dry_run=True)
        house.turn()
        assert before[:-1] == fingerprint(house)[:-1]  # but for the cache: it reads as a seek does

        end = topic_of(house).stream.end
        listed = pages(house)
        figures = house.channel("t", "c")
        for state, count in (
            (State.WAITING, figures.depth),
            (State.IN_FLIGHT, figures.in_flight_count),
            (State.DEFERRED, figures.deferred_count),
        ):
            assert listed[state] == [i for i, s in found.items() if s is state and i < end]
            assert len(listed[state]) == count
    life.begin_anew("crash")
