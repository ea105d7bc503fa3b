"""Messages in flight: in pages or scattered, they behave as a dictionary, in bounded memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.broker.in_flight import NOT_IN_FLIGHT, NOT_OWNED, PAGE_SIZE, PAGES_KEPT, InFlight
from sparq.broker.options import NEVER

BASE = 9 * PAGE_SIZE
SPREAD = [BASE + page * PAGE_SIZE + at for page in range(6) for at in range(7)]
BYTES_MAX = 300
PAGE_BYTES = 22 * PAGE_SIZE
CAP_NS = 500

places = st.integers(0, len(SPREAD) - 1).map(SPREAD.__getitem__)
owners = st.integers(1, 3)
times = st.integers(0, 1_000)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("run"), places, st.integers(1, 5), owners, times),
        st.tuples(st.just("many"), st.lists(places, max_size=20), owners, times),
        st.tuples(st.just("finish"), st.lists(places, min_size=1, max_size=30), owners),
        st.tuples(st.just("range"), places, st.integers(1, 40), owners),
        st.tuples(st.just("release"), places, owners),
        st.tuples(st.just("touch"), places, owners, times),
        st.tuples(st.just("expire"), times),
        st.tuples(st.just("leave"), owners),
        st.tuples(st.just("take"), st.lists(places, max_size=20, unique=True).map(sorted)),
    ),
    max_size=30,
)


class DictionaryInFlight:
    """Messages in flight as a dictionary: index -> [owner, deadline, delivered at, attempts]."""

    def __init__(self) -> None:
        self.state: dict[int, list[int]] = {}

    def note(self, indexes: list[int], attempts: int, owner: int, now: int) -> None:
        self.state |= {index: [owner, now + 100, now, attempts] for index in indexes}

    def refusal(self, index: int, owner: int) -> int | None:
        found = self.state.get(index)
        if found is None:
            return NOT_IN_FLIGHT
        return None if found[0] == owner else NOT_OWNED

    def finish(self, indexes: list[int], owner: int) -> tuple[list[int], list[tuple[int, int]]]:
        freed, failures = [], []
        for position, index in enumerate(indexes):
            why = self.refusal(index, owner)
            if why is None:
                freed.append(index)
                del self.state[index]
            else:
                failures.append((position, why))
        return sorted(freed), failures

    def release(self, index: int, owner: int) -> int:
        why = self.refusal(index, owner)
        return self.state.pop(index)[3] if why is None else why

    def touch(self, index: int, owner: int, deadline: int) -> int:
        why = self.refusal(index, owner)
        if why is None:
            found = self.state[index]
            found[1] = min(deadline, found[2] + CAP_NS)
            return 1
        return why

    def take(self, indexes: list[int]) -> list[tuple[int, ...]]:
        return [(index, *self.state.pop(index)) for index in sorted(indexes)]


def apply(
    step: tuple[Any, ...], forms: list[InFlight], plain: DictionaryInFlight
) -> tuple[Any, list[Any]]:
    """The result of a step on the dictionary, and on each InFlight."""
    kind, *args = step
    if kind == "run":
        first, count, owner, now = args
        free = [i for i in range(first, first + count) if i not in plain.state]
        plain.note(free, 1, owner, now)
        for form in forms:
            for index in free:
                form.note_run(index, index + 1, owner, now_ns=now, deadline_ns=now + 100)
        return None, [None] * len(forms)
    if kind == "many":
        free = sorted({index for index in args[0] if index not in plain.state})
        _, owner, now = args
        plain.note(free, 4, owner, now)
        for form in forms:
            attempts = np.full(len(free), 4)
            form.note_many(
                np.array(free, np.int64), attempts, owner, now_ns=now, deadline_ns=now + 100
            )
        return None, [None] * len(forms)
    if kind in ("finish", "range"):
        run: Any = args[0] if kind == "finish" else range(args[0], args[0] + args[1])
        if kind == "finish" and len(run) > 15:
            run = np.array(run, np.int64)
        found = [form.finish(run, args[-1]) for form in forms]
        spread = [
            ([i for a, b in zip(f.starts, f.ends, strict=True) for i in range(a, b)], f.failures)
            for f in found
        ]
        return plain.finish([int(index) for index in run], args[-1]), spread
    if kind == "release":
        return plain.release(*args), [form.release(*args) for form in forms]
    if kind == "touch":
        return plain.touch(*args), [form.touch(*args, CAP_NS) for form in forms]
    if kind == "take":
        named = np.array(args[0], np.int64)
        expected = plain.take([index for index in args[0] if index in plain.state])
        return expected, [
            list(zip(*(column.tolist() for column in form.take(named)), strict=True))
            for form in forms
        ]
    taken: list[Any] = [
        form.expire(args[0]) if kind == "expire" else form.release_owner(args[0]) for form in forms
    ]
    at = 1 if kind == "expire" else 0
    chosen = [
        index
        for index, found in plain.state.items()
        if (found[at] <= args[0] if at else found[0] == args[0])
    ]
    listed = [list(zip(*(column.tolist() for column in t), strict=True)) for t in taken]
    return plain.take(chosen), listed


@pytest.mark.behaviour(
    "in_flight.TestRemove", "in_flight.TestPriorityQueue", "in_flight.TestUnsortedInsert"
)
@given(steps)
def test_scattered_and_dense_forms_equal_a_dictionary(story: list[tuple[Any, ...]]) -> None:
    """The results do not depend on how messages in flight are stored."""
    forms = [InFlight(pages_kept=0), InFlight(pages_kept=2), InFlight(pages_kept=1 << 60)]
    plain = DictionaryInFlight()
    for step in story:
        expected, answers = apply(step, forms, plain)

        assert answers == [expected] * len(forms), step
        for form in forms:
            assert form.count == len(plain.state)
            assert sorted(form.indexes().tolist()) == sorted(plain.state)
            rows = list(zip(*(column.tolist() for column in form.rows()), strict=True))
            assert rows == [(index, *found) for index, found in sorted(plain.state.items())]
            due = min((found[1] for found in plain.state.values()), default=NEVER)
            assert form.next_deadline_ns() <= due


def bytes_of(messages: int, *, again: bool) -> float:
    """The memory in bytes for this many messages in flight, each in its own page."""
    in_flight = InFlight()
    tracemalloc.start()
    try:
        for number in range(messages):
            first = BASE + number * PAGE_SIZE
            if again:
                one = np.array([first + 5], np.int64)
                in_flight.note_many(one, np.array([2]), 1, now_ns=number, deadline_ns=number + 9)
            else:
                in_flight.note_run(first, first + 9, 1, now_ns=number, deadline_ns=number + 9)
                assert in_flight.finish(range(first + 1, first + 9), 1).freed == 8
        # Only what these modules allocate: the test's process has other threads.
        ours = tracemalloc.Filter(True, "*/sparq/broker/*")
        traces = tracemalloc.take_snapshot().filter_traces([ours])
        return sum(each.size for each in traces.statistics("filename"))
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("again", [False, True], ids=["left over", "redelivered"])
@pytest.mark.parametrize("messages", [2_000, 5_500, 11_000])
def test_a_scattered_message_costs_at_most_300_bytes(messages: int, again: bool) -> None:
    """A scattered message costs at most 300 bytes, apart from the pages always kept."""
    assert bytes_of(messages, again=again) <= PAGES_KEPT * PAGE_BYTES + messages * BYTES_MAX


def test_the_memory_of_scattered_messages_goes_with_the_last_one() -> None:
    """Thousands of scattered messages leave no memory behind when all of them are taken back."""
    in_flight = InFlight()
    spread = np.arange(BASE, BASE + 3_000 * PAGE_SIZE, PAGE_SIZE)
    in_flight.note_many(spread, np.full(3_000, 2), 1, now_ns=0, deadline_ns=9)
    assert in_flight.count == len(in_flight.expire(9).indexes) == 3_000

    assert (in_flight.count, len(in_flight._scattered.owner)) == (0, 0)


def test_pages_with_one_message_left_are_emptied_by_fins_alone() -> None:
    """Pages with one message left each are emptied by FINs alone.

    Only the pages always kept remain.
    """
    in_flight = InFlight()
    pages = 4 * PAGES_KEPT
    in_flight.note_run(BASE, BASE + pages * PAGE_SIZE, 1, now_ns=0, deadline_ns=7)
    for page in range(pages):
        first = BASE + page * PAGE_SIZE
        in_flight.finish(range(first + 1, first + PAGE_SIZE), 1)

    assert in_flight.rows().indexes.tolist() == [BASE + p * PAGE_SIZE for p in range(pages)]
    assert len(in_flight._pages) <= PAGES_KEPT
    assert in_flight.next_deadline_ns() == 7


def test_scattered_messages_keep_their_publish_time() -> None:
    """A message keeps its publish time when its page is emptied."""
    in_flight = InFlight(pages_kept=0)
    in_flight.note_run(BASE, BASE + 500, 1, now_ns=0, deadline_ns=9)
    in_flight.note_published(np.arange(BASE, BASE + 500), np.arange(500))
    in_flight.finish(range(BASE + 1, BASE + 499), 1)
    one = np.array([BASE + PAGE_SIZE], np.int64)
    in_flight.note_many(one, np.array([3]), 1, now_ns=0, deadline_ns=9)
    in_flight.note_published(one, np.array([77]))

    assert in_flight.published([BASE, BASE + 499, BASE + PAGE_SIZE], 1).tolist() == [0, 499, 77]
    assert in_flight.published([BASE], 2).tolist() == []


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
