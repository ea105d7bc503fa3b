"""The parts that looking is made of agree with plain versions of themselves, whatever they hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.broker.in_flight import InFlight
from sparq.broker.options import NEVER
from sparq.broker.slots import PAGE_SIZE
from sparq.broker.stream import Skips
from sparq.broker.waiting import Delays, DueList, RequeueQueue, among
from sparq.inspection import snapshot as pictures
from tests.broker.house import House

indexes = st.lists(st.integers(0, 40), unique=True).map(sorted)


@given(indexes, indexes, st.integers(0, 41))
def test_single_messages_among_skipped_ranges(first: list[int], later: list[int], at: int) -> None:
    """Ranges ascend, do not touch, and hold what was put there, in two turns."""
    skips = Skips()
    skips.insert(first)
    skips.insert([index for index in later if index not in first])
    held = sorted({*first, *later})

    ranges = skips.ranges()
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


@given(indexes, indexes, st.integers(0, 41))
def test_deferred_publishes_are_cancelled(added: list[int], gone: list[int], at: int) -> None:
    """What was pending is not any more, and cursors pass over it as before."""
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
def test_delays_are_taken_out(added: list[int], gone: list[int]) -> None:
    """The others stay, by when they are due."""
    delays = Delays()
    for index in added:
        delays.add(100 - index, index, index + 1)
    assert sorted(delays.take(gone)) == [(i, i + 1) for i in added if i in gone]
    assert delays.pop_due(NEVER) == [(i, i + 1) for i in reversed(added) if i not in gone]


@given(st.lists(indexes), indexes)
def test_messages_leave_the_queue(chunks: list[list[int]], gone: list[int]) -> None:
    """Those that are named, wherever they stand; the order of the others stays."""
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
def test_many_values_among_few(values: list[int], few: list[int]) -> None:
    """As `in` has it, one by one."""
    found = among(np.array(values, np.int64), np.array(few, np.int64))
    assert found.tolist() == [value in few for value in values]


places = st.lists(
    st.integers(0, 60).map(lambda place: place % 6 * PAGE_SIZE + place), unique=True
).map(sorted)


@given(places, places, st.integers(0, 3), st.integers(0, 9), st.integers(0, 6 * PAGE_SIZE))
def test_messages_in_flight_as_rows(
    held: list[int], named: list[int], pages_kept: int, count: int, first: int
) -> None:
    """From pages and scattered ones alike: all that is known of each, and nothing of others."""
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


def test_a_picture_makes_its_columns_a_slice_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call goes through all of what very many deferred or skipped messages are."""
    count = 3 * pictures.SLICE + 5
    sizes: list[int] = []

    def noting(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(values: Any, *arguments: Any, **named: Any) -> Any:
            array = make(values, *arguments, **named)
            # What is made of arrays lets other threads run.
            if not isinstance(values, np.ndarray) and array.ndim:
                sizes.append(len(array))
            return array

        return made

    house = House()
    house.consumer("t", "c")
    channel, now = house.broker.topics["t"].channels["c"], house.clock.now()
    found = replace(
        pictures.take(channel, now),
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

    assert (states == pictures.MessageState.DEFERRED).sum() == count + count // 2
    assert max(sizes) == pictures.SLICE
