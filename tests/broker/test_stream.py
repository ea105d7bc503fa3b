"""Ranges that a cursor skips, and the bodies of dead letters."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sparq.broker.options import NEVER
from sparq.broker.stream import Skips
from tests.broker.dead_letters import MAX_ATTEMPTS, exhaust, requeue
from tests.broker.harness import BrokerHarness


def test_a_cursor_jumps_over_a_range_that_starts_at_it() -> None:
    """A cursor jumps over a range that starts at it; ranges further ahead stay."""
    skips = Skips()
    assert (bool(skips.ranges), skips.next_start(), skips.end(4)) == (False, NEVER, 4)
    skips.add(10, 20, 5)
    skips.add(30, 40, 10)
    assert (skips.count, skips.next_start(), skips.end(4)) == (15, 10, 40)

    assert skips.jump(9) == (9, 0)
    assert skips.jump(10) == (20, 5)
    assert (skips.count, skips.bounds()) == (10, [(30, 40)])


def test_adjacent_ranges_are_merged() -> None:
    """Adjacent ranges are merged."""
    skips = Skips()
    skips.add(10, 20, 10)
    skips.add(20, 25, 5)

    assert (skips.bounds(), skips.count) == ([(10, 25)], 15)
    assert skips.jump(10) == (25, 15)


indexes = st.lists(st.integers(0, 40), unique=True).map(sorted)


@given(indexes, indexes, st.integers(0, 41))
def test_single_messages_among_skipped_ranges(first: list[int], later: list[int], at: int) -> None:
    """Ranges built in two steps are ascending, disjoint and complete."""
    skips = Skips()
    skips.insert(first)
    skips.insert([index for index in later if index not in first])
    held = sorted({*first, *later})

    ranges = skips.bounds()
    assert held == [index for begin, end in ranges for index in range(begin, end)]
    assert skips.count == len(held)
    assert all(left[1] < right[0] for left, right in pairwise(ranges))
    end = at
    while end in held:
        end += 1
    assert skips.end_at(at) == end
    cursor, jumped = skips.jump(at)
    assert (cursor, jumped) == (
        end,
        len([i for b, e in ranges if b <= at < e for i in range(b, e)]),
    )
    assert skips.count == len([index for index in held if index >= end])


def test_consumers_get_the_body() -> None:
    """Consumers of a dead-letter topic get the original body, also of redeliveries.

    Messages without a valid envelope are delivered unchanged.
    """
    harness = BrokerHarness(max_attempts=MAX_ATTEMPTS, cache_bytes=1, commit_bytes=100)
    consumer = harness.consumer("t", "c", rdy=10)
    bodies = [b"%03d" % number * 50 for number in range(9)]
    for body in bodies:
        harness.publish("t", body)
    for _ in range(3):
        exhaust(consumer)
    harness.publish("t.dead", b"no letter", b"\0sparq\x01\0\x02{}nor this")
    reader = harness.consumer("t.dead", "redrive", rdy=4)
    seen: dict[bytes, int] = {}
    while messages := reader.messages():
        for message in messages:
            seen[message.body] = max(message.attempts, seen.get(message.body, 0))
        again = [message for message in messages if message.attempts < 2]
        reader.finish([message for message in messages if message.attempts > 1])
        requeue(reader, again)
    expected = [*bodies, b"no letter", b"\0sparq\x01\0\x02{}nor this"]
    assert dict.fromkeys(expected, 2) == seen
