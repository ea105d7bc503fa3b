"""InFlight's arrays and its plain code give the same answers as a dictionary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.broker.in_flight import NOT_IN_FLIGHT, NOT_OWNED, Freed, InFlight
from sparq.broker.options import NEVER
from sparq.broker.slots import PAGE_SIZE, ranges_of_few

BASE = 5 * PAGE_SIZE - 40
"""The runs of these tests cross a page boundary."""

indexes_near = st.integers(BASE, BASE + 80)
runs = st.lists(indexes_near, max_size=60)


def plain(freed: Freed) -> tuple[Any, ...]:
    """The result as plain values, whether its ranges are lists or arrays."""
    return [*freed.starts], [*freed.ends], freed.freed, freed.failures


def expected_finish(state: dict[int, int], run: list[int], owner: int) -> tuple[Any, ...]:
    """The result of a run of finishes on a dictionary index -> owner, which is changed."""
    freed, failures = [], []
    for position, index in enumerate(run):
        if state.get(index) == owner:
            freed.append(index)
            del state[index]
        else:
            failures.append((position, NOT_OWNED if index in state else NOT_IN_FLIGHT))
    starts, ends = ranges_of_few(sorted(freed))
    return starts, ends, len(freed), failures


def filled(state: dict[int, int]) -> InFlight:
    """An InFlight with that state; each message is delivered at its index and due 1000 later."""
    in_flight = InFlight()
    for index, owner in state.items():
        in_flight.note_run(index, index + 1, owner, now_ns=index, deadline_ns=index + 1000)
    return in_flight


states = st.dictionaries(indexes_near, st.integers(1, 2), max_size=80)


@pytest.mark.behaviour("in_flight.TestRemove")
@given(states, st.lists(runs, max_size=4))
def test_finish_array_and_list_equal_a_dictionary(
    state: dict[int, int], run_list: list[list[int]]
) -> None:
    """A run of FINs frees and refuses the same messages as an array and as a list."""
    arrays, lists = filled(state), filled(state)
    for run in run_list:
        if not run:
            continue
        expected = expected_finish(state, run, 1)

        assert plain(arrays.finish(np.array(run, np.int64), 1)) == expected
        assert plain(lists.finish(run, 1)) == expected
        assert arrays.count == lists.count == len(state)
        assert arrays.indexes().tolist() == lists.indexes().tolist() == sorted(state)


@given(states, indexes_near, st.integers(1, 60))
def test_finish_of_a_range_equals_a_dictionary(
    state: dict[int, int], first: int, count: int
) -> None:
    """A range of indexes gives the same result as its indexes one by one."""
    in_flight = filled(state)
    run = range(first, first + count)

    freed = in_flight.finish(run, 1)

    assert plain(freed) == expected_finish(state, list(run), 1)
    assert in_flight.indexes().tolist() == sorted(state)


def test_a_reused_page_keeps_no_old_data() -> None:
    """A reused page keeps no data of the messages it held before."""
    before, after = InFlight(), InFlight()
    published = np.full(3, 7, np.int64)
    before.note_many(np.arange(3), np.full(3, 9), 1, now_ns=1, deadline_ns=2)
    before.note_published(np.arange(3), published)
    assert before.finish(range(3), 1).freed == 3

    after.note_run(0, 2, 4, now_ns=5, deadline_ns=100)

    assert after.next_deadline_ns() == 100
    assert after.indexes().tolist() == [0, 1]
    assert after.release(1, 4) == 1
    after.note_published(np.arange(1), published[:1] + 1)
    assert after.published(range(1), 4).tolist() == [8]


@given(st.integers(1, 60), st.integers(0, 60), st.integers(0, 60))
def test_consecutive_run_equals_scattered_path(count: int, skip: int, stray: int) -> None:
    """The fast path for consecutive runs gives the general path's results, gaps included."""
    state = {BASE + i: 2 if i == stray else 1 for i in range(60) if i != skip}
    run = list(range(BASE, BASE + count))
    quick = filled(state).finish(np.array(run, np.int64), 1)

    assert plain(quick) == expected_finish(dict(state), run, 1)


def test_a_foreign_nodes_id_is_not_in_flight() -> None:
    """Indexes far out of range, including negative ones, are not in flight."""
    in_flight = filled({BASE: 1})
    strange = [-1, -(1 << 62), (1 << 62), BASE]

    freed = in_flight.finish(np.array(strange, np.int64), 1)

    assert freed.failures == [(0, NOT_IN_FLIGHT), (1, NOT_IN_FLIGHT), (2, NOT_IN_FLIGHT)]
    assert freed.freed == 1


def test_a_duplicate_in_one_run_is_freed_once_and_fails_once() -> None:
    """A duplicate id in a FIN run succeeds once and fails once."""
    for run in ([BASE, BASE], np.array([BASE, BASE], np.int64)):
        freed = filled({BASE: 1}).finish(run, 1)

        assert (freed.freed, freed.failures) == (1, [(1, NOT_IN_FLIGHT)])


@pytest.mark.behaviour("in_flight.TestPriorityQueue", "in_flight.TestUnsortedInsert")
@given(states, indexes_near)
def test_exactly_the_due_messages_expire(state: dict[int, int], now: int) -> None:
    """Exactly the due messages expire, with owners and attempts; the next deadline is right."""
    in_flight = filled(state)
    due = sorted(index for index in state if index <= now)

    expired = in_flight.expire(now + 1000)

    assert expired.indexes.tolist() == due
    assert expired.owners.tolist() == [state[index] for index in due]
    assert expired.attempts.tolist() == [1] * len(due)
    assert in_flight.count == len(state) - len(due)
    later = [index + 1000 for index in state if index > now]
    assert in_flight.next_deadline_ns() == min(later, default=NEVER)


@given(states)
def test_releasing_one_owners_messages_keeps_the_others(state: dict[int, int]) -> None:
    """Releasing one owner's messages does not affect other owners."""
    in_flight = filled(state)

    released = in_flight.release_owner(1)

    assert released.indexes.tolist() == sorted(i for i, owner in state.items() if owner == 1)
    assert in_flight.indexes().tolist() == sorted(i for i, owner in state.items() if owner == 2)


def test_release_and_touch_refuse_messages_of_other_owners() -> None:
    """Release and touch distinguish messages of another owner from those not in flight."""
    in_flight = filled({BASE: 1})

    assert in_flight.release(BASE, 2) == NOT_OWNED
    assert in_flight.release(BASE + 1, 2) == NOT_IN_FLIGHT
    assert in_flight.touch(BASE, 2, 1, 1) == NOT_OWNED
    assert in_flight.touch(BASE + 1, 1, 1, 1) == NOT_IN_FLIGHT
    assert in_flight.release(BASE, 1) == 1
    assert in_flight.count == 0


def test_touch_moves_the_deadline_up_to_its_cap() -> None:
    """A touch moves the deadline, but not beyond the cap after the delivery."""
    in_flight = InFlight()
    in_flight.note_run(7, 8, 1, now_ns=100, deadline_ns=200)

    in_flight.touch(7, 1, 250, 500)
    early = in_flight.expire(249).indexes.tolist()
    in_flight.touch(7, 1, 900, 500)
    capped = in_flight.expire(599).indexes.tolist()

    assert (early, capped, in_flight.expire(600).indexes.tolist()) == ([], [], [7])


def test_shares_of_a_run_are_first_deliveries() -> None:
    """Each owner's share of a run has its own deadline.

    Attempts restart at 1, whatever an earlier message at the same place had.
    """
    in_flight = InFlight()
    again = np.arange(100, dtype=np.int64)
    in_flight.note_many(again, np.full(100, 5), 9, now_ns=0, deadline_ns=1)
    assert 90 == in_flight.finish(range(10, 100), 9).freed
    in_flight.note_shares(10, [1, 3, 2], [7, 8, 7], [500, 400, 600], 300)

    assert 16 == in_flight.count
    late = in_flight.expire(450)
    assert [*range(10), 11, 12, 13] == late.indexes.tolist()
    assert [5] * 10 + [1] * 3 == late.attempts.tolist()
    assert [9] * 10 + [8] * 3 == late.owners.tolist()
    assert [10, 14, 15] == in_flight.release_owner(7).indexes.tolist()


def test_a_page_holds_first_deliveries_and_redeliveries() -> None:
    """A page holds first deliveries and redeliveries; a reused place starts at 1 attempt."""
    in_flight = InFlight()
    in_flight.note_run(0, 4, 1, now_ns=0, deadline_ns=10)
    in_flight.note_many(
        np.array([6, 8], np.int64), np.array([3, 65535], np.uint16), 1, now_ns=0, deadline_ns=5
    )

    indexes, attempts = in_flight.all()
    assert dict(zip(indexes.tolist(), attempts.tolist(), strict=True)) == {
        0: 1,
        1: 1,
        2: 1,
        3: 1,
        6: 3,
        8: 65535,
    }
    assert in_flight.release(6, 1) == 3
    in_flight.note_run(6, 7, 1, now_ns=0, deadline_ns=5)
    assert in_flight.release(6, 1) == 1


def test_a_page_without_messages_in_flight_is_freed() -> None:
    """A page is freed when all its messages are finished."""
    in_flight = InFlight()
    in_flight.note_run(0, 3 * PAGE_SIZE, 1, now_ns=0, deadline_ns=1)
    in_flight.finish(np.arange(3 * PAGE_SIZE), 1)

    assert (in_flight.count, len(in_flight._pages)) == (0, 0)
    assert in_flight.next_deadline_ns() == NEVER


places = st.lists(
    st.integers(0, 60).map(lambda place: place % 6 * PAGE_SIZE + place), unique=True
).map(sorted)


@given(places, places, st.integers(0, 3), st.integers(0, 9), st.integers(0, 6 * PAGE_SIZE))
def test_rows_and_take_return_exactly_the_named_messages(
    held: list[int], named: list[int], pages_kept: int, count: int, first: int
) -> None:
    """`rows_of`, `rows` and `take` return exactly the named messages with all their fields.

    This holds for messages in pages and for scattered ones.
    """
    flying = InFlight(pages_kept)
    for at, index in enumerate(held):
        now_ns, deadline_ns = 1000 + at, 2000 + at
        if at % 2:
            flying.note_run(index, index + 1, at + 1, now_ns=now_ns, deadline_ns=deadline_ns)
        else:
            one = np.array([index], np.int64)
            flying.note_many(
                one, np.array([at + 1]), at + 1, now_ns=now_ns, deadline_ns=deadline_ns
            )
    known = {
        index: (index, at + 1, 2000 + at, 1000 + at, 1 if at % 2 else at + 1)
        for at, index in enumerate(held)
    }
    chosen = np.array(named, np.int64)
    rows = flying.rows_of(chosen)
    assert [known[i] for i in named if i in known] == list(
        zip(*(column.tolist() for column in rows[:5]), strict=True)
    )
    later = [index for index in held if index >= first][:count]
    assert flying.rows(first, count).indexes.tolist() == later

    taken = flying.take(chosen)
    assert taken.indexes.tolist() == [index for index in named if index in known]
    assert taken.owners.tolist() == [known[index][1] for index in named if index in known]
    assert taken.attempts.tolist() == [known[index][4] for index in named if index in known]
    left = [index for index in held if index not in named]
    assert (flying.count, flying.indexes().tolist()) == (len(left), left)
