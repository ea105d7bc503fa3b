"""The low mark: how far event time has advanced on all nsqds, by the batches' own times."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.pipeline.sessions.low_mark import QUIET_S, LowMark

NOW_MS = 1_800_000_000_000


def advanced(*batches, mark=None):
    """The mark after batches of (marks, seconds since NOW_MS)."""
    mark = mark or LowMark()
    for marks, second in batches:
        mark.advance([marks], NOW_MS + 1000 * second)
    return mark


BUSY = [({"a": 100 + second}, second) for second in range(5, QUIET_S + 5, 5)]
AWAY = [({"a": 100 + second}, second) for second in range(10, 50, 10)]
BOTH = ({"a": 100, "b": 40}, 0)


@pytest.mark.parametrize(
    ("batches", "low_s"),
    [
        pytest.param([BOTH, ({"a": 900}, 1)], 40, id="the slowest nsqd's"),
        pytest.param([BOTH, *BUSY], 40, id="also if it was quiet for 30 s"),
        pytest.param([BOTH, *BUSY, ({"a": 500}, QUIET_S + 1)], 500, id="but no longer"),
        pytest.param([BOTH, *AWAY, ({"b": 60}, 50), ({"a": 900}, 51)], 140, id="never back"),
        pytest.param(
            [BOTH, *AWAY, ({"b": 60}, 50), ({"a": 900}, 51), ({"b": 300}, 52)], 300,
            id="it counts again from its next click",
        ),
        pytest.param([BOTH, ({"a": 900}, 3600)], 40, id="a pause of the query counts as STEP_S"),
        pytest.param([BOTH, ({"a": 200}, 86_400), ({"a": 300}, 0)], 40, id="so do clocks' jumps"),
        pytest.param([({}, 0)], 0, id="no clicks yet"),
        pytest.param([({"a": 100}, 0), ({}, 1)], 100, id="rejected messages only"),
    ],
)  # fmt: skip
def test_the_mark_is_what_all_nsqds_have_reached(batches, low_s):
    """The mark is the minimum over the nsqds, without those that were quiet for 30 s."""
    assert low_s == advanced(*batches).low_s


def test_quiet_nsqds_are_removed_from_the_mark():
    """Quiet nsqds are removed: new names at every restart must not fill the state."""
    mark = advanced(*(({f"nsqd-{second}": second}, second) for second in range(0, 1000, 5)))

    assert len(mark.newest_s) <= QUIET_S // 5 + 1
    assert mark.newest_s.keys() == mark.seen_ms.keys()


BATCHES = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from("abc"), st.integers(0, 1000), max_size=3),
        st.integers(0, 200),
    ),
    max_size=12,
)


@given(BATCHES, st.integers(0, 12))
def test_a_restored_mark_continues_as_the_original(batches, cut):
    """A mark restored from its fields continues as the original; it never decreases."""
    mark, lows = LowMark(), [0]
    for number, batch in enumerate(batches):
        if number == cut:
            mark = msgspec.json.decode(msgspec.json.encode(mark), type=LowMark)
        lows.append(advanced(batch, mark=mark).low_s)

    assert lows == sorted(lows)
    assert mark == advanced(*batches)
