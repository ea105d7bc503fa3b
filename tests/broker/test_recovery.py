"""Restoring a channel's state with arrays gives the same result as index by index."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sparq.broker.channel import Channel
from sparq.broker.recovery import restore, were_due
from sparq.log.records import ChannelState, TopicState, merge_ranges
from tests.broker.harness import BrokerHarness

Restored = tuple[list[tuple[int, int]], list[tuple[int, int, int]], list[tuple[int, int]], int]


def three_runs() -> BrokerHarness:
    """A log of three runs of nsqd with deferred messages; its indexes have gaps."""
    harness = BrokerHarness(max_bytes_per_file=6_000)
    harness.broker.create_topic("t", harness.clock.now())
    harness.broker.create_channel("t", "other", harness.clock.now())
    for run in range(3):
        for number in range(4):
            harness.publish("t", *[b"%d/%d/%d" % (run, number, at) * 20 for at in range(7)])
            harness.publish("t", b"later", defer_ms=(10_000, 60_000)[number % 2])
        harness.crash()
    harness.pass_time(30)
    return harness


HARNESS = three_runs()
STREAM = HARNESS.broker.topics["t"].stream
STORED = [
    index
    for first, end in zip(*STREAM.log.stored_runs(0, 1 << 54), strict=True)
    for index in range(int(first), int(end))
]
AROUND = sorted({index + step for index in STORED for step in (-1, 0, 1)})


@st.composite
def states(draw: st.DrawFn) -> ChannelState:
    """A channel state that a ledger of this log may contain."""
    place = st.sampled_from(AROUND)
    start = draw(place)
    cursor = min(draw(place), STREAM.end)
    bounds = draw(st.lists(st.tuples(place, st.integers(1, 20)), max_size=6))
    ranges = [(max(first, start), first + size) for first, size in bounds if first + size > start]
    finished = merge_ranges(*zip(*ranges, strict=True)) if ranges else []
    finished = [pair for pair in finished if pair[0] > start]
    free = [i for i in STORED if i >= start and not any(a <= i < b for a, b in finished)]
    chosen = draw(st.lists(st.sampled_from(free), max_size=8, unique=True)) if free else []
    wall_ns = HARNESS.clock.wall_ns
    dues = st.sampled_from([0, wall_ns, wall_ns + 5_000])
    requeued = {index: (draw(dues), draw(st.sampled_from([0, 1, 2, 65_535]))) for index in chosen}
    return ChannelState(start, max(cursor, start), finished, requeued)


def by_arrays(state: ChannelState, past_due: list[int]) -> Restored:
    """The result of `restore`."""
    channel = new_channel()
    restore(channel, state, np.array(past_due, np.int64), HARNESS.clock.now())
    indexes, attempts = channel.requeued.all()
    again = list(zip(indexes.tolist(), attempts.tolist(), strict=True))
    return again, sorted(channel.delays.entries()), channel.skips.bounds(), channel.skips.count


def new_channel() -> Channel:
    """A new channel."""
    return HARNESS.broker.topics["t"]._make_channel("twin")


def one_by_one(state: ChannelState, past_due: list[int]) -> Restored:
    """The same result, computed index by index."""
    now, pending = HARNESS.clock.now(), STREAM.due.pending
    ready = {i: tries for i, (due, tries) in state.requeued.items() if due <= now.wall_ns}
    delays = [
        (now.mono_ns + due - now.wall_ns, i, tries)
        for i, (due, tries) in state.requeued.items()
        if due > now.wall_ns
    ]
    elsewhere = state.requeued.keys() | pending | set(past_due)

    def is_finished(index: int) -> bool:
        return any(first <= index < end for first, end in state.finished)

    for index in STORED:
        in_reach = state.start <= index < state.cursor and index not in elsewhere
        if in_reach and not is_finished(index):
            ready[index] = 1
    for index in past_due:
        if state.start <= index < STREAM.end and not is_finished(index):
            ready.setdefault(index, 0) if index not in state.requeued else None
    ranges = [(max(a, state.cursor), b) for a, b in state.finished if b > state.cursor]
    ranges += [(i, i + 1) for i in state.requeued if i >= state.cursor]
    skipped = merge_ranges(*zip(*ranges, strict=True)) if ranges else []
    log, due = STREAM.log, STREAM.due
    count = sum(log.ordinal_at(b) - log.ordinal_at(a) - due.count_between(a, b) for a, b in skipped)
    return sorted(ready.items()), sorted(delays), skipped, count


@settings(max_examples=400)
@given(states(), st.lists(st.sampled_from(STREAM.due.skipped), max_size=4, unique=True))
def test_restoring_with_arrays_equals_restoring_one_by_one(
    state: ChannelState, past_due: list[int]
) -> None:
    """The requeued, delayed and skipped messages and their attempts are the same."""
    past_due = sorted(set(past_due).difference(STREAM.due.pending))

    assert one_by_one(state, past_due) == by_arrays(state, past_due)


@settings(max_examples=200)
@given(states(), states())
def test_were_due_finds_requeued_and_finished_messages_of_any_channel(
    one: ChannelState, other: ChannelState
) -> None:
    """`were_due` finds the messages that any channel has requeued or finished."""
    state = TopicState(channels={"one": one, "other": other})
    due = STREAM.due.skipped

    expected = [
        any(
            index in channel.requeued or any(a <= index < b for a, b in channel.finished)
            for channel in (one, other)
        )
        for index in due
    ]

    assert expected == were_due(np.array(due, np.int64), state).tolist()


def test_restoring_500_requeued_messages_takes_few_ordinal_lookups() -> None:
    """Restoring 500 scattered requeued messages takes fewer than 5 ordinal lookups."""
    harness = BrokerHarness()
    harness.broker.create_topic("t", harness.clock.now())
    harness.broker.create_channel("t", "c", harness.clock.now())
    harness.publish("t", *[b"x"] * 1_000)
    stream = harness.broker.topics["t"].stream
    calls = 0
    ordinal_at = stream.log.ordinal_at

    def counted(index: int) -> int:
        nonlocal calls
        calls += 1
        return ordinal_at(index)

    first = stream.log.first_index
    state = ChannelState(first, first, [], {first + 2 * n: (0, 2) for n in range(500)})
    channel = harness.broker.topics["t"]._make_channel("twin")
    stream.log.ordinal_at = counted  # type: ignore[method-assign] # counted here, then forgotten
    restore(channel, state, np.empty(0, np.int64), harness.clock.now())

    assert 500 == len(channel.requeued)
    assert calls < 5
