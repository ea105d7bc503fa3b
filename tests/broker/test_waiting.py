"""Waiting messages: a channel's requeue queue and delays, and a topic's due list."""

from __future__ import annotations

import heapq
from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.broker import waiting
from sparq.broker.options import NEVER
from sparq.broker.waiting import SWEPT_PER_TAKEN, Delays, DueList, RequeueQueue, among


@pytest.mark.behaviour("pqueue.TestPriorityQueue", "pqueue.TestUnsortedInsert")
def test_delayed_messages_are_returned_in_order_of_their_due_time() -> None:
    """Delayed messages are returned in order of their due time, and never before it."""
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


def test_due_publishes_are_still_skipped_by_cursors() -> None:
    """A deferred publish that is due stays in `skipped`.

    Cursors must not deliver it: the channels have it in their ready lists.
    """
    due = DueList()
    due.add(50, 100)
    due.add(40, 107)
    assert (due.contains(100), due.contains(101), due.next_due_ns()) == (True, False, 40)
    assert due.pop_due(45) == [107]

    assert (due.next_skipped(101), due.next_skipped(108)) == (107, NEVER)
    assert due.count_between(100, 107) == 1
    assert due.pending_between(0, 200).tolist() == [100]
    assert due.joined_from(0, 200) == [107]


def test_due_messages_after_the_mark_are_held_back() -> None:
    """A due message at or after P is held back until P has passed it."""
    due = DueList()
    due.add(5, 10)
    due.add(5, 20)
    assert due.hold_back(due.pop_due(9), 15) == [10]
    assert (due.overdue, due.joined_from(0, 99)) == ([20], [10])

    assert due.hold_back([], 15) == []
    assert due.hold_back([], 21) == [20]
    assert due.overdue == []


def test_messages_due_at_a_restart_are_skipped_by_cursors() -> None:
    """Messages due at a restart are skipped by cursors, and held back if at or after P."""
    due = DueList()
    due.fill(np.array([3, 12]), np.array([1, 1]), np.array([True, True]), 10)

    assert (due.skipped, due.overdue, len(due.pending)) == ([3, 12], [12], 0)


@pytest.mark.behaviour("pqueue.TestRemove")
def test_void_removes_a_range() -> None:
    """Deferred publishes in a voided range are neither delivered nor skipped."""
    due = DueList()
    for index in range(10):
        due.add(index, index)
    due.hold_back(due.pop_due(2), 0)
    due.void(1, 5)

    assert due.skipped == [0, 5, 6, 7, 8, 9]
    assert due.overdue == [0]
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


operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 30), st.integers(0, 60)),
        st.tuples(st.just("all"), st.integers(0, 30), st.integers(0, 60)),
        st.tuples(st.just("take"), st.sets(st.integers(0, 30), max_size=9), st.just(0)),
        st.tuples(st.just("pop"), st.integers(0, 60), st.just(0)),
    ),
    max_size=60,
)


@given(operations)
def test_delays_equal_a_plain_list(steps: list[tuple[str, Any, int]]) -> None:
    """Delays equal a plain list under random operations.

    A message taken out is not delivered; one deferred again is delivered once, at its new time.
    """
    delays = Delays()
    plain: dict[int, tuple[int, int, int]] = {}
    for number, (what, value, due_ns) in enumerate(steps):
        if what in ("add", "all") and value not in plain:
            entry = plain[value] = (due_ns, value, number)
            if what == "add":
                delays.add(*entry)
            else:
                delays.add_all(iter([entry]))
        elif what == "take":
            taken = [plain.pop(index) for index in value if index in plain]
            assert sorted(delays.take(value)) == sorted((i, n) for _, i, n in taken)
        elif what == "pop":
            due = sorted(entry for entry in plain.values() if entry[0] <= value)
            assert delays.pop_due(value) == [(index, count) for _, index, count in due]
            plain = {index: entry for index, entry in plain.items() if entry not in due}
        assert len(delays) == len(plain)
        assert sorted(delays.entries()) == sorted(plain.values())
        assert delays.indexes().tolist() == sorted(plain)
        assert delays.next_due_ns() <= min((due for due, *_ in plain.values()), default=NEVER)
        assert (delays.next_due_ns() == NEVER) == (not plain)


class NoIterationList(list[Any]):
    """A list that must not be iterated."""

    def __iter__(self) -> NoReturn:
        raise AssertionError("all entries are walked")


def test_the_cost_of_removing_deferred_messages_depends_on_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cost of removing messages depends on their number, not on the number waiting.

    Otherwise it would block the event loop.
    """
    count = 20_000
    delays, due = Delays(), DueList()
    delays.add_all((count - index, index, 1) for index in range(count))
    for index in range(count):
        due.add(count - index, index)
    delays._heap = NoIterationList(delays._heap)
    due._heap = NoIterationList(due._heap)
    moved = 0
    push, pop = heapq.heappush, heapq.heappop

    def counted_push(heap: list[Any], entry: Any) -> None:
        nonlocal moved
        moved += 1
        push(heap, entry)

    def counted_pop(heap: list[Any]) -> Any:
        nonlocal moved
        moved += 1
        return pop(heap)

    def rebuilt(_heap: list[Any]) -> NoReturn:
        raise AssertionError("the heap is rebuilt")

    with monkeypatch.context() as patch:
        patch.setattr(heapq, "heappush", counted_push)
        patch.setattr(heapq, "heappop", counted_pop)
        patch.setattr(heapq, "heapify", rebuilt)
        assert len(delays.take({*range(5000, 6000)})) == 1000
        assert moved <= SWEPT_PER_TAKEN * 1000
        assert len(due.cancel({*range(count - 1100, count - 100)})) == 1000
        moved = 0
        assert len(due.cancel({*range(count - 100, count)})) == 100
        assert moved == SWEPT_PER_TAKEN * 100
    assert (len(delays), len(due.pending)) == (count - 1000, count - 1100)
    assert due.next_due_ns() <= 1101


def test_a_message_deferred_again_is_due_only_at_its_new_time() -> None:
    """A message deferred again is due at its new time only, even if its old entry remains."""
    delays = Delays()
    delays.add_all((due_ns, due_ns, 1) for due_ns in range(10, 20))
    assert delays.take({10}) == [(10, 1)]
    delays.add(100, 10, 2)
    assert delays.pop_due(50) == [(index, 1) for index in range(11, 20)]
    assert delays.pop_due(100) == [(10, 2)]


def test_adding_and_removing_delays_does_not_let_memory_grow() -> None:
    """Repeatedly adding and removing delays does not let memory grow."""
    delays = Delays()
    delays.add_all((NEVER - 1, index, 1) for index in range(100))
    for turn in range(1000):
        for index in range(1000, 1010):
            delays.add(NEVER - 2, index, turn)
        assert len(delays.take({*range(1000, 1010)})) == 10
    assert len(delays._heap) + len(delays._unswept) < 400
    assert len(delays.take({*range(100)})) == 100
    assert not delays._heap
    assert not delays._unswept


def test_entries_with_withdrawn_includes_cancelled_messages() -> None:
    """`entries_with_withdrawn` includes cancelled messages until their due time.

    They are never due.
    """
    due = DueList()
    for index in (1, 2, 3):
        due.add(index * 10, index)
    assert due.cancel({2}) == {2}
    assert sorted(due.entries()) == [(10, 1), (30, 3)]
    assert sorted(due.entries_with_withdrawn()) == [(10, 1), (20, 2), (30, 3)]
    assert due.withdrawn == {2}
    assert due.pop_due(20) == [1]
    assert (due.withdrawn, due.cancelled, due.next_due_ns()) == (set(), {2}, 30)
    assert due.cancel({3}) == {3}
    assert (due.withdrawn, due.next_due_ns(), due.pop_due(99)) == (set(), NEVER, [])


def test_nothing_is_due_if_all_messages_are_cancelled() -> None:
    """If all messages are cancelled nothing is due, whatever the heap contains.

    `void` removes the cancelled entries too.
    """
    due = DueList()
    for index in range(1, 7):
        due.add(index * 10, index)
    assert due.cancel({2, 3, 4, 5, 6}) == {2, 3, 4, 5, 6}
    assert due.next_due_ns() == 10
    assert due.cancel({1}) == {1}
    assert due.withdrawn == {3, 4, 5, 6}
    assert due.next_due_ns() == NEVER
    due.void(0, 99)
    assert (due.withdrawn, due.entries_with_withdrawn()) == (set(), [])


pairs = st.lists(st.tuples(st.integers(0, 1 << 53), st.integers(0, 65_535)), max_size=8)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("push"), pairs),
        st.tuples(st.just("burst"), pairs),
        st.tuples(st.just("take"), st.integers(0, 9)),
        st.tuples(st.just("return"), st.integers(0, 9)),
        st.tuples(st.just("clear"), st.none()),
    ),
    max_size=30,
)


def arrays(of: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """A burst as arrays of indexes and attempts."""
    return np.array([i for i, _ in of], np.int64), np.array([a for _, a in of], np.uint16)


@given(steps)
def test_a_requeue_queue_is_a_list(script: list[tuple[str, object]]) -> None:
    """Messages leave in the order they were added in, single ones and bursts alike."""
    queue, model = RequeueQueue(), list[tuple[int, int]]()
    for act, value in script:
        if isinstance(value, list):
            if act == "push":
                for index, attempts in value:
                    queue.push(index, attempts)
            else:
                queue.push_many(*arrays(value))
            model += value
        elif isinstance(value, int):
            indexes, attempts = queue.take(value)
            taken, model = model[:value], model[value:]
            assert list(zip(indexes.tolist(), attempts.tolist(), strict=True)) == taken
            if act == "return":
                queue.push_front(indexes, attempts)
                model = taken + model
        else:
            queue.clear()
            model = []
        assert len(queue) == len(model)
        assert queue.indexes().tolist() == sorted(index for index, _ in model)
        everything = [column.tolist() for column in queue.all()]
        assert list(zip(*everything, strict=True)) == model


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
    assert sorted(due.entries()) == sorted((1000 - index, index) for index in left)
    assert due.next_due_ns() == (1000 - left[-1] if left else NEVER)
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


@given(indexes, indexes)
def test_removing_delays_keeps_the_others_in_order(added: list[int], gone: list[int]) -> None:
    """Removing delays leaves the others, in order of their due time."""
    delays = Delays()
    for index in added:
        delays.add(100 - index, index, index + 1)
    assert sorted(delays.take(gone)) == [(i, i + 1) for i in added if i in gone]
    assert delays.pop_due(NEVER) == [(i, i + 1) for i in reversed(added) if i not in gone]


@given(st.lists(indexes), indexes)
def test_remove_takes_out_the_named_messages(chunks: list[list[int]], gone: list[int]) -> None:
    """`remove` takes out the named messages; the others keep their order."""
    again = RequeueQueue()
    held: list[int] = []
    for number, chunk in enumerate(chunks):
        added = [index + 100 * number for index in chunk][::-1]
        held += added
        if number % 2:
            again.push_many(np.array(added, np.int64), np.array(added, np.uint16))
        else:
            for index in added:
                again.push(index, index)
    named = np.array(sorted({*gone, *held[::3]}), np.int64)
    assert again.oldest() == min(held, default=None)
    assert sorted(again.having(named).tolist()) == sorted(i for i in held if i in named)
    assert sorted(again.remove(named)[0].tolist()) == sorted(i for i in held if i in named)
    left = [index for index in held if index not in named]
    assert len(again) == len(left)
    assert [column.tolist() for column in again.all()] == [left, left]
    assert np.concatenate([np.empty(0), *(c for c, _ in again.chunks())]).tolist() == left


@given(st.lists(st.integers(-5, 50)), indexes)
def test_among_equals_the_in_operator(values: list[int], few: list[int]) -> None:
    """`among` gives the same results as `in`."""
    found = among(np.array(values, np.int64), np.array(few, np.int64))
    assert found.tolist() == [value in few for value in values]
