"""Waiting messages: a channel's requeue queue, what waits for a time, and a topic's due list."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.broker import waiting
from sparq.broker.options import NEVER
from sparq.broker.waiting import OUTDATED_MIN, DueList, DueTimes, RequeueQueue

operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 30), st.integers(0, 60)),
        st.tuples(st.just("all"), st.integers(0, 30), st.integers(0, 60)),
        st.tuples(st.just("take"), st.sets(st.integers(0, 30), max_size=9), st.just(0)),
        st.tuples(st.just("pop"), st.integers(0, 60), st.just(0)),
    ),
    max_size=60,
)


@pytest.mark.behaviour("pqueue.TestPriorityQueue", "pqueue.TestUnsortedInsert", "pqueue.TestRemove")
@given(operations)
def test_due_times_equal_a_plain_list(steps: list[tuple[str, Any, int]]) -> None:
    """What is due comes out in order of its time, once, and never early or after it was taken."""
    times: DueTimes[int] = DueTimes()
    plain: dict[int, tuple[int, int, int]] = {}
    for number, (what, value, due_ns) in enumerate(steps):
        if what == "add" or (what == "all" and value not in plain):
            plain[value] = (due_ns, value, number)
            if what == "add":
                times.add(value, due_ns, number)
            else:
                times.add_all(iter([plain[value]]))
        elif what == "take":
            taken = [plain.pop(index) for index in value if index in plain]
            assert sorted(times.take(value)) == sorted((i, n) for _, i, n in taken)
        elif what == "pop":
            due = sorted(entry for entry in plain.values() if entry[0] <= value)
            assert times.pop_due(value) == [(index, count) for _, index, count in due]
            plain = {index: entry for index, entry in plain.items() if entry not in due}
        assert sorted(times) == sorted(plain)
        assert sorted(times.entries()) == sorted(plain.values())
        assert times.next_due_ns() <= min((due for due, *_ in plain.values()), default=NEVER)
        assert (times.next_due_ns() == NEVER) == (not plain)


def test_outdated_entries_do_not_pile_up() -> None:
    """Neither keys with a new time nor keys that are taken out let the heap grow."""
    times: DueTimes[int] = DueTimes()
    times.add_all((NEVER - 1, index, 1) for index in range(100))
    for turn in range(1000):
        for index in range(1000, 1010):
            times.add(index, NEVER - 2 - turn)
        times.add(0, NEVER - turn)
        assert len(times.take({*range(1000, 1010)})) == 10
    assert len(times._heap) <= 2 * 110 + OUTDATED_MIN + 1
    times.take({*range(100)})
    assert len(times._heap) <= OUTDATED_MIN


def test_due_messages_after_the_mark_are_held_back() -> None:
    """A due message at or after P is held back until P has passed it, also one due at a start."""
    due = DueList()
    none = np.zeros(2, np.bool_)
    due.fill(np.array([3, 12]), np.array([1, 1]), ~none, 10, none)
    assert (due.skipped, due.overdue, len(due.pending)) == ([3, 12], [12], 0)
    due.add(5, 14)
    due.add(5, 20)
    assert due.hold_back(due.pop_due(9), 15) == [12, 14]
    assert (due.overdue, due.joined_from(0, 99)) == ([20], [3, 12, 14])

    assert due.hold_back([], 15) == []
    assert due.hold_back([], 21) == [20]


def test_void_removes_a_range() -> None:
    """Deferred publishes in a voided range are neither delivered nor skipped."""
    due = DueList()
    for index in range(10):
        due.add(index, index)
    due.hold_back(due.pop_due(2), 0)
    due.void(1, 5)

    assert (due.skipped, due.overdue) == ([0, 5, 6, 7, 8, 9], [0])
    assert due.pop_due(100) == [5, 6, 7, 8, 9]


def test_compact_keeps_pending_and_held_back_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """`compact` removes entries that every cursor has passed.

    Pending and held-back ones stay.
    """
    monkeypatch.setattr(waiting, "COMPACT_MIN", 4)
    due = DueList()
    for index in range(10):
        due.add(index, index)
    due.hold_back(due.pop_due(7), 7)
    due.compact(3)
    assert len(due.skipped) == 10

    due.compact(9)

    assert due.skipped == [7, 8, 9]


indexes = st.lists(st.integers(0, 40), unique=True).map(sorted)


@given(indexes, indexes, st.integers(0, 41))
def test_deferred_publishes_are_cancelled(added: list[int], gone: list[int], at: int) -> None:
    """Cancelled publishes are not pending, and cursors still skip them."""
    due = DueList()
    for index in added:
        due.add(1000 - index, index)
    assert due.cancel(set(gone)) == {*added} & {*gone}

    left = [index for index in added if index not in gone]
    assert due.pending_between(0, 99).tolist() == left
    assert due.joined_from(0, 99) == []
    following = at
    while following in added:
        following += 1
    assert due.next_unskipped(at) == following
    assert due.pop_due(1000) == left[::-1]
    assert due.joined_from(0, 99) == left
    due.compact(99, first_index=20)
    assert due.cancelled == {index for index in added if index in gone and index >= 20}
    due.void(0, 99)
    assert not due.cancelled


pairs = st.lists(st.tuples(st.integers(0, 1 << 53), st.integers(0, 65_535)), max_size=8)
queue_steps = st.lists(
    st.one_of(
        st.tuples(st.just("push"), pairs),
        st.tuples(st.just("burst"), pairs),
        st.tuples(st.just("take"), st.integers(0, 9)),
        st.tuples(st.just("return"), st.integers(0, 9)),
        st.tuples(st.just("remove"), st.integers(0, 9)),
    ),
    max_size=30,
)


@given(queue_steps)
def test_a_requeue_queue_is_a_list(script: list[tuple[str, object]]) -> None:
    """Messages leave in the order they were added in; single ones, bursts and removed ones."""
    queue, model = RequeueQueue(), list[tuple[int, int]]()
    for act, value in script:
        if isinstance(value, list):
            if act == "push":
                for index, attempts in value:
                    queue.push(index, attempts)
            else:
                columns = np.array(value, np.int64).reshape(-1, 2).T
                queue.push_many(columns[0], columns[1].astype(np.uint16))
            model += value
        elif act == "remove" and isinstance(value, int):
            named = sorted({index for index, _ in model[value::2]} | {7})
            gone = queue.remove(np.array(named, np.int64))[0]
            assert gone.tolist() == [index for index, _ in model if index in named]
            model = [pair for pair in model if pair[0] not in named]
        elif isinstance(value, int):
            taken_indexes, attempts_so_far = queue.take(value)
            taken, model = model[:value], model[value:]
            assert list(zip(taken_indexes.tolist(), attempts_so_far.tolist(), strict=True)) == taken
            if act == "return":
                queue.push_front(taken_indexes, attempts_so_far)
                model = taken + model
        assert len(queue) == len(model)
        everything = [column.tolist() for column in queue.all()]
        assert list(zip(*everything, strict=True)) == model
