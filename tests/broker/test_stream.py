"""Ranges that a cursor skips, and the bodies of dead letters."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sparq.broker.options import NEVER
from sparq.broker.stream import Skips
from tests.broker.dead_letters import MAX_ATTEMPTS, exhaust, requeue
from tests.broker.harness import BrokerHarness

indexes = st.lists(st.integers(0, 40), unique=True).map(sorted)


@given(indexes, indexes, indexes, st.integers(0, 41))
def test_skipped_ranges_are_joined_and_passed(
    far: list[int], first: list[int], later: list[int], at: int
) -> None:
    """Ranges added at the end and single messages at any place are one ascending list of ranges."""
    skips = Skips()
    skips.insert(first)
    skips.insert([index for index in later if index not in first])
    for index in far:
        skips.add(50 + index, 51 + index, 1)
    held = sorted({*first, *later, *(50 + index for index in far)})

    ranges = skips.bounds()
    assert held == [index for begin, end in ranges for index in range(begin, end)]
    assert skips.count == len(held)
    assert all(left[1] < right[0] for left, right in pairwise(ranges))
    assert skips.next_start() == (held[0] if held else NEVER)
    assert skips.end(7) == (held[-1] + 1 if held else 7)
    end = at
    while end in held:
        end += 1
    assert skips.end_at(at) == end
    jumped = [i for begin, stop in ranges if begin <= at < stop for i in range(begin, stop)]
    assert skips.jump(at) == (end, len(jumped))
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
