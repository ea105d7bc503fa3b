"""Records add up to the same state, however large the ranges are and in whatever turn they come."""

from hypothesis import given, settings
from hypothesis import strategies as st

from sparq.log import records
from sparq.log.records import Kind, Replay

INDEXES = st.integers(0, 60)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("requeue"), INDEXES, st.integers(0, 3)),
        st.tuples(st.just("finish"), INDEXES, st.integers(1, 40)),
        st.tuples(st.just("seek"), INDEXES, st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=400)
@given(STEPS)
def test_what_is_finished_is_requeued_no_more(steps: list[tuple[str, int, int]]) -> None:
    """Small ranges are taken out index by index, large ones by the order of what there is."""
    expected: dict[int, tuple[int, int]] = {}
    replay = Replay()
    written = [records.encode_index(Kind.CREATED, "c", 0)]
    for what, at, number in steps:
        if what == "requeue":
            expected[at] = (number, 1)
            written.append(records.encode_requeued("c", [at], [number], [1]))
        elif what == "finish":
            expected = {i: due for i, due in expected.items() if not at <= i < at + number}
            written.append(records.encode_ranges(Kind.FINISHED, "c", [at], [at + number]))
        else:
            expected = {}
            written.append(records.encode_index(Kind.SEEK, "c", at))
    replay.apply(memoryview(b"".join(written)))

    assert expected == replay.state().channels["c"].requeued
