"""A channel's snapshot: taking it changes nothing, and it is correct.

A channel gets random operations. After each one its snapshot is compared with its stats and with
the state after a restart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparq.broker.channel import SeekTarget
from sparq.broker.recovery import state_of
from sparq.inspection import snapshot
from sparq.inspection.snapshot import MessageState
from sparq.protocol import commands
from tests.broker.house import SECOND_NS, House
from tests.broker.single_messages import Indexes, act, channel_of, checkpoint, stored, topic_of


def fingerprint(house: House) -> list[Any]:
    """All state that a snapshot must not change, including the order in the queue and the cache."""
    topic, channel = topic_of(house), channel_of(house)
    stream = topic.stream
    again = [column.tolist() for column in channel.requeued.all()]
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


def look_at_everything(house: House) -> dict[int, MessageState]:
    """Call every inspection function; returns the state of each message."""
    channel, now = channel_of(house), house.clock.now()
    taken = snapshot.take(channel, now)
    indexes = stored(house)
    snapshot.fresh_after(channel, -1, 1000)
    taken.again_after(-1, 1000)
    taken.due_after((0, 0), 1000)
    topic_of(house).stream.log.looking.curve()
    return {index: found.state for index, found in taken.standings(indexes).items()}


def pages(house: House) -> dict[MessageState, Indexes]:
    """The indexes that the pages list, by state."""
    channel = channel_of(house)
    taken = snapshot.take(channel, house.clock.now())
    fresh = snapshot.fresh_after(channel, -1, 1000)
    again = taken.again_after(-1, 1000).tolist()
    assert not set(fresh) & set(again)
    return {
        MessageState.WAITING: sorted(fresh + again),
        MessageState.IN_FLIGHT: taken.in_flight.indexes.tolist(),
        MessageState.DEFERRED: sorted(taken.due_after((-(1 << 62), -1), 1000)[0].tolist()),
    }


OPERATIONS = (
    *("publish", "defer", "take", "fin", "req", "wait"),
    *("seek", "pause", "checkpoint", "crash", "restart"),
)
ACTIONS = ("requeue", "finish", "cancel", "cancel_all")


class Life:
    """A channel for random operations."""

    def __init__(self) -> None:
        self.house = House()
        self.client = self.house.consumer("t", "c")
        self.house.publish("t", b"first")
        self.held: list[bytes] = []
        self.paused = False

    def do(self, operation: str, number: int) -> None:
        """Perform one operation."""
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
        """Move the channel; a dry run must predict the same landing."""
        house = self.house
        dry, real = (
            house.broker.seek("t", "c", target, house.clock.now(), dry_run=dry_run)
            for dry_run in (True, False)
        )
        house.turn()
        assert dry.landing == real.landing

    def begin_anew(self, operation: str) -> None:
        """Start another process: messages in flight are waiting then, all else is unchanged."""
        before = look_at_everything(self.house)
        if operation == "crash":
            self.house.crash()
        else:
            self.house.restart()
        self.client, self.held = self.house.consumer("t", "c"), []
        after = look_at_everything(self.house)
        expected = {
            index: MessageState.WAITING if state is MessageState.IN_FLIGHT else state
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
# Cancelled and due while its topic is paused: an earlier version showed it as waiting until a
# restart.
@example([("pause", 0), ("defer", 0), ("cancel", 1), ("wait", 1)])
def test_looking_takes_nothing_and_tells_what_is(steps: list[tuple[str, int]]) -> None:
    """After each operation a snapshot changes nothing and is correct.

    The states agree with the stats, the pages list them, and a restart finds the same ones.
    """
    life = Life()
    for operation, number in steps:
        life.do(operation, number)
        house = life.house
        before = fingerprint(house)
        found = look_at_everything(house)
        assert before == fingerprint(house)
        house.broker.seek("t", "c", "earliest", house.clock.now(), dry_run=True)
        house.turn()
        assert before[:-1] == fingerprint(house)[:-1]  # except the cache: it reads as a seek does

        end = topic_of(house).stream.end
        listed = pages(house)
        figures = house.channel("t", "c")
        for state, count in (
            (MessageState.WAITING, figures.depth),
            (MessageState.IN_FLIGHT, figures.in_flight_count),
            (MessageState.DEFERRED, figures.deferred_count),
        ):
            assert listed[state] == [i for i, s in found.items() if s is state and i < end]
            assert len(listed[state]) == count
    life.begin_anew("crash")


def test_a_picture_makes_its_columns_a_slice_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No NumPy call converts more than `SLICE` deferred or skipped messages.

    Other threads cannot run during such a call.
    """
    count = 3 * snapshot.SLICE + 5
    sizes: list[int] = []

    def noting(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(values: Any, *arguments: Any, **named: Any) -> Any:
            array = make(values, *arguments, **named)
            # Conversions of arrays let other threads run.
            if not isinstance(values, np.ndarray) and array.ndim:
                sizes.append(len(array))
            return array

        return made

    house = House()
    house.consumer("t", "c")
    channel, now = house.broker.topics["t"].channels["c"], house.clock.now()
    found = replace(
        snapshot.take(channel, now),
        delays=[(index, index, 1) for index in range(count)],
        dues=[(index, index) for index in range(count, 2 * count)],
        apart={*range(count, 2 * count, 2)},
        skipped=[*range(count)],
        overdue=[*range(0, count, 2)],
        skips=[(index, index + 1) for index in range(0, 2 * count, 2)],
    )
    monkeypatch.setattr(np, "fromiter", noting(np.fromiter))
    monkeypatch.setattr(np, "array", noting(np.array))
    states, _ = found.states(np.arange(2 * count))

    assert (states == snapshot.MessageState.DEFERRED).sum() == count + count // 2
    assert max(sizes) == snapshot.SLICE
