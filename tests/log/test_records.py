"""Records give the same state, whatever the size of their ranges and runs."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparq.log import records
from sparq.log.records import RecordKind, Replay, merge_ranges, merge_ranges_scalar

INDEXES = st.integers(0, 60)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("requeue"), INDEXES, st.integers(0, 3)),
        st.tuples(st.just("finish"), INDEXES, st.integers(1, 40)),
        st.tuples(st.just("seek"), INDEXES, st.just(0)),
    ),
    max_size=25,
)

PAIRS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 6)), max_size=60)


@settings(max_examples=400)
@given(STEPS)
def test_a_finished_message_is_no_longer_requeued(steps: list[tuple[str, int, int]]) -> None:
    """A finished message is no longer requeued.

    Small and large finished ranges are removed by different algorithms.
    """
    expected: dict[int, tuple[int, int]] = {}
    replay = Replay()
    written = [records.encode_index(RecordKind.CREATED, "c", 0)]
    for what, at, number in steps:
        if what == "requeue":
            expected[at] = (number, 1)
            written.append(records.encode_requeued("c", [at], [number], [1]))
        elif what == "finish":
            expected = {i: due for i, due in expected.items() if not at <= i < at + number}
            written.append(records.encode_ranges(RecordKind.FINISHED, "c", [at], [at + number]))
        else:
            expected = {}
            written.append(records.encode_index(RecordKind.SEEK, "c", at))
    replay.apply(memoryview(b"".join(written)))

    assert expected == replay.state().channels["c"].requeued


SINGLE_RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["requeue", "requeue", "requeue", "cursor"]),
        st.sampled_from(["c", "d", "long-name"]),
        INDEXES,
        st.integers(-(1 << 62), 1 << 62),
        st.integers(0, 65_535),
        st.integers(1, 30),
    ),
    max_size=12,
)


@given(SINGLE_RECORDS)
def test_the_last_requeue_record_of_a_message_counts(
    steps: list[tuple[str, str, int, int, int, int]],
) -> None:
    """Of several requeue records of a message the last one counts.

    They come in runs of several lengths and channels.
    """
    expected: dict[str, dict[int, tuple[int, int]]] = {}
    written = []
    highest = -1
    for what, name, index, due, attempts, count in steps:
        requeued = expected.setdefault(name, {})
        if what == "cursor":
            written.append(records.encode_index(RecordKind.CURSOR, name, 0))
            continue
        for number in range(count):
            requeued[index + number] = due, attempts
            written.append(records.encode_requeued(name, [index + number], [due], [attempts]))
            highest = max(highest, index + number)
    replay = Replay()
    replay.apply(memoryview(b"".join(written)))
    state = replay.state()

    assert expected == {name: channel.requeued for name, channel in state.channels.items()}
    assert state.highest_index == highest


def test_a_run_of_requeue_records_is_read_with_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of 5,000 single requeue records is read with arrays, not in a loop."""
    calls = 0
    requeue_each = Replay._requeue_each

    def counted(replay: Replay, *place: Any) -> int:
        nonlocal calls
        calls += 1
        return requeue_each(replay, *place)

    monkeypatch.setattr(Replay, "_requeue_each", counted)
    run = b"".join(records.encode_requeued("c", [n], [n + 5], [1]) for n in range(5_000))
    replay = Replay()
    replay.apply(memoryview(run))

    assert calls == 1
    assert replay.state().channels["c"].requeued == {n: (n + 5, 1) for n in range(5_000)}


@settings(max_examples=400)
@given(pairs=PAIRS)
def test_arrays_and_loops_agree(pairs: list[tuple[int, int]]) -> None:
    """`merge_ranges` and its scalar twin give the same ranges as a set of indexes."""
    firsts = [first for first, _ in pairs]
    ends = [first + size for first, size in pairs]

    merged = merge_ranges(np.array(firsts, np.int64), np.array(ends, np.int64))

    assert merged == merge_ranges_scalar(firsts, ends) == merge_ranges(firsts, ends)
    members = {
        index for first, end in zip(firsts, ends, strict=True) for index in range(first, end)
    }
    assert {index for first, end in merged for index in range(first, end)} == members
    edges = [edge for pair in merged for edge in pair]
    assert edges == sorted(set(edges))
