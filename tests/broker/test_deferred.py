"""Delays of a channel and the due list of a topic."""

from __future__ import annotations

import numpy as np
import pytest

from sparq.broker import deferred
from sparq.broker.deferred import Delays, DueList
from sparq.broker.options import NEVER


@pytest.mark.behaviour("pqueue.TestPriorityQueue", "pqueue.TestUnsortedInsert")
def test_delays_come_in_order_of_their_time() -> None:
    """Earliest first, whatever order they were added in; nothing before its time."""
    delays = Delays()
    delays.add(30, 1, 2)
    delays.add_all([(10, 2, 1), (20, 3, 5)])
    assert (len(delays), delays.next_due_ns()) == (3, 10)
    assert delays.indexes().tolist() == [1, 2, 3]
    assert sorted(delays.entries()) == [(10, 2, 1), (20, 3, 5), (30, 1, 2)]

    assert delays.pop_due(9) == []
    assert delays.pop_due(20) == [(2, 1), (3, 5)]
    delays.clear()
    assert (len(delays), delays.next_due_ns()) == (0, NEVER)


def test_what_is_due_is_still_skipped_by_cursors() -> None:
    """A deferred publish that is due stays in `skipped`: it has joined the ready lists."""
    due = DueList()
    due.add(50, 100)
    due.add(40, 107)
    assert (due.contains(100), due.contains(101), due.next_due_ns()) == (True, False, 40)
    assert due.pop_due(45) == [107]

    assert (due.next_skipped(101), due.next_skipped(108)) == (107, NEVER)
    assert due.count_between(100, 107) == 1
    assert due.pending_between(0, 200).tolist() == [100]
    assert due.joined_from(0, 200) == [107]


def test_what_is_behind_the_mark_is_held_back() -> None:
    """Due, but not visible: it comes once the mark has passed it, and no earlier."""
    due = DueList()
    due.add(5, 10)
    due.add(5, 20)
    assert due.hold_back(due.pop_due(9), 15) == [10]
    assert (due.overdue, due.joined_from(0, 99)) == ([20], [10])

    assert due.hold_back([], 15) == []
    assert due.hold_back([], 21) == [20]
    assert due.overdue == []


def test_what_a_restart_finds_due() -> None:
    """It is skipped by cursors; behind the mark it is held back as well."""
    due = DueList()
    due.fill(np.array([3, 12]), np.array([1, 1]), np.array([True, True]), 10)

    assert (due.skipped, due.overdue, len(due.pending)) == ([3, 12], [12], 0)


@pytest.mark.behaviour("pqueue.TestRemove")
def test_void_forgets_a_range() -> None:
    """An emptied topic's deferred publishes neither come nor are skipped."""
    due = DueList()
    for index in range(10):
        due.add(index, index)
    due.hold_back(due.pop_due(2), 0)
    due.void(1, 5)

    assert due.skipped == [0, 5, 6, 7, 8, 9]
    assert due.overdue == [0]
    assert due.pop_due(100) == [5, 6, 7, 8, 9]


def test_compact_keeps_what_somebody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What every cursor has passed goes, unless it is pending or held back."""
    monkeypatch.setattr(deferred, "COMPACT_MIN", 4)
    due = DueList()
    for index in range(10):
        due.add(index, index)
    due.hold_back(due.pop_due(7), 7)
    due.compact(3)
    assert len(due.skipped) == 10

    due.compact(9)

    assert due.skipped == [7, 8, 9]
