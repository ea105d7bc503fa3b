"""The low mark: how far event time has advanced on all nsqds, by the batches' own times."""

from dataclasses import asdict

from hypothesis import given
from hypothesis import strategies as st

from sparq.pipeline.sessions.low_mark import QUIET_S, STEP_S, LowMark

NOW_MS = 1_800_000_000_000


def advanced(*batches, mark=None):
    """The mark after batches of (marks, seconds since NOW_MS)."""
    mark = mark or LowMark()
    for marks, second in batches:
        mark.advance(marks, NOW_MS + 1000 * second)
    return mark


def test_the_slowest_nsqd_determines_the_mark():
    """The mark is the minimum over the nsqds: a slow one may still send older clicks."""
    assert advanced(({"a": 100, "b": 40}, 0), ({"a": 900}, 1)).low_s == 40


def test_an_nsqd_that_is_quiet_for_more_than_30_seconds_no_longer_counts():
    """An nsqd without clicks for more than 30 s no longer holds the mark back."""
    mark = advanced(({"a": 100, "b": 40}, 0))
    for second in range(5, QUIET_S + 5, 5):
        advanced(({"a": 100 + second}, second), mark=mark)

    assert mark.low_s == 40

    advanced(({"a": 500}, QUIET_S + 1), mark=mark)

    assert mark.low_s == 500


def test_a_quiet_nsqd_counts_again_from_its_next_click():
    """A quiet nsqd counts again from its next click; the mark does not go back to it."""
    mark = advanced(({"a": 100, "b": 40}, 0))
    for second in range(10, 50, 10):
        advanced(({"a": 100 + second}, second), mark=mark)
    advanced(({"b": 60}, 50), ({"a": 900}, 51), mark=mark)

    assert mark.low_s == 140

    advanced(({"b": 300}, 52), mark=mark)

    assert mark.low_s == 300


def test_a_pause_of_the_query_makes_no_nsqd_quiet():
    """After an hour without batches no nsqd is quiet, whichever ones the first batch contains."""
    assert advanced(({"a": 100, "b": 40}, 0), ({"a": 900}, 3600)).low_s == 40


def test_a_clock_that_jumps_makes_no_nsqd_quiet():
    """A jump of the clock by a day, ahead or back, counts as STEP_S at most."""
    mark = advanced(({"a": 100, "b": 40}, 0), ({"a": 200}, 86_400), ({"a": 300}, 0))

    assert mark.low_s == 40
    assert mark.clock_ms == 2 * STEP_S * 1000


def test_a_batch_without_clicks_does_not_move_the_mark():
    """A batch without clicks, such as one of rejected messages only, does not move the mark."""
    assert advanced(({}, 0)).low_s == 0
    assert advanced(({"a": 100}, 0), ({}, 1)).low_s == 100


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


@given(BATCHES)
def test_the_mark_never_decreases(batches):
    """The mark never decreases, with older clicks or with nsqds that join late."""
    mark, lows = LowMark(), [0]
    lows += [advanced(batch, mark=mark).low_s for batch in batches]

    assert lows == sorted(lows)


@given(BATCHES, st.integers(0, 12))
def test_a_restored_mark_continues_as_the_original(batches, cut):
    """A mark restored from its fields continues as the original would."""
    whole = advanced(*batches)
    fields = asdict(advanced(*batches[:cut]))
    again = advanced(*batches[cut:], mark=LowMark(**fields))

    assert whole == again
    assert asdict(advanced(*batches[:cut])) == fields
