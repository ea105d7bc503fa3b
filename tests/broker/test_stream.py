"""Ranges that a cursor jumps."""

from __future__ import annotations

from sparq.broker.options import NEVER
from sparq.broker.stream import Skips


def test_a_cursor_jumps_ranges_that_it_stands_before() -> None:
    """Only those: what lies further ahead stays, and the counts follow."""
    skips = Skips()
    assert (bool(skips), skips.next_start(), skips.end(4)) == (False, NEVER, 4)
    skips.add(10, 20, 5)
    skips.add(30, 40, 10)
    assert (skips.count, skips.next_start(), skips.end(4)) == (15, 10, 40)

    assert skips.jump(9) == (9, 0)
    assert skips.jump(10) == (20, 5)
    assert (skips.count, skips.ranges()) == (10, [(30, 40)])


def test_neighbours_become_one_range() -> None:
    """A channel that drops one batch after the other has one range of them."""
    skips = Skips()
    skips.add(10, 20, 10)
    skips.add(20, 25, 5)

    assert (skips.ranges(), skips.count) == ([(10, 25)], 15)
    assert skips.jump(10) == (25, 15)


def test_ranges_behind_a_cursor_that_moved_otherwise() -> None:
    """They are forgotten without moving it back."""
    skips = Skips()
    skips.add(10, 20, 10)

    assert skips.jump(30) == (30, 0)
    assert (bool(skips), skips.count) == (False, 0)


def test_clear() -> None:
    """Nothing is skipped any more."""
    skips = Skips()
    skips.add(10, 20, 10)
    skips.clear()

    assert (bool(skips), skips.count) == (False, 0)
