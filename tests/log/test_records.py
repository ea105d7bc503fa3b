"""Records give the same state, whatever the size of their ranges and runs."""

from hypothesis import given, settings
from hypothesis import strategies as st

from sparq.log.records import RecordKind, Replay, encode, merge_ranges

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
    written = [encode(RecordKind.CREATED, "c", [0])]
    for what, at, number in steps:
        if what == "requeue":
            expected[at] = (number, 1)
            written.append(encode(RecordKind.REQUEUED, "c", [at], [number], [1]))
        elif what == "finish":
            expected = {i: due for i, due in expected.items() if not at <= i < at + number}
            written.append(encode(RecordKind.FINISHED, "c", [at], [at + number]))
        else:
            expected = {}
            written.append(encode(RecordKind.SEEK, "c", [at]))
    replay.apply(memoryview(b"".join(written)))

    assert expected == replay.state().channels["c"].requeued


@settings(max_examples=400)
@given(pairs=PAIRS)
def test_merged_ranges_are_the_same_set_of_indexes(pairs: list[tuple[int, int]]) -> None:
    """Merged ranges contain the same indexes, ascend, and neither overlap nor touch."""
    firsts = [first for first, _ in pairs]
    ends = [first + size for first, size in pairs]

    merged = merge_ranges(firsts, ends)

    members = {
        index for first, end in zip(firsts, ends, strict=True) for index in range(first, end)
    }
    assert {index for first, end in merged for index in range(first, end)} == members
    edges = [edge for pair in merged for edge in pair]
    assert edges == sorted(set(edges))
