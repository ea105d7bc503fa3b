"""Clicks become visits: gaps, late arrivals, and the visit that contains a click."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sparq.pipeline.open_visits.intervals import merged, visit_of
from sparq.pipeline.open_visits.rows import Visits
from sparq.pipeline.visits import VISIT_GAP_S


def rows_of(visits):
    columns = (visits.visitor, visits.first_s, visits.last_s, visits.clicks, visits.pages)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def visits(rows):
    """Visits from rows of (visitor, first_s, last_s, clicks, pages)."""
    columns = np.array(rows, np.int64).reshape(-1, 5).T
    return Visits(*columns[:4], np.zeros(len(rows), np.int64), columns[4])


def one_by_one(batches):
    """The plain twin: the visits of batches of (low mark before, clicks as (visitor, second))."""
    over, held = [], {}
    for low_s, clicks in batches:
        for visitor, seconds in list(held.items()):
            held[visitor] = [one for one in seconds if one[-1] + VISIT_GAP_S > low_s]
            over += [(visitor, one) for one in seconds if one[-1] + VISIT_GAP_S <= low_s]
        for visitor, second in clicks:
            everything = sorted([*(at for one in held.get(visitor, []) for at in one), second])
            held[visitor] = [[everything[0]]]
            for at in everything[1:]:
                if at - held[visitor][-1][-1] > VISIT_GAP_S:
                    held[visitor].append([])
                held[visitor][-1].append(at)
    left = [(visitor, one) for visitor, some in held.items() for one in some]
    return sorted((visitor, one[0], one[-1], len(one), len(one)) for visitor, one in over + left)


BATCHES = st.lists(
    st.tuples(
        st.integers(0, 6_000),  # increase of the low mark before the batch
        st.lists(st.tuples(st.integers(-2, 2), st.integers(-VISIT_GAP_S + 1, 4_000)), max_size=6),
    ),
    max_size=8,
)


@given(BATCHES, st.integers(0, 8))
def test_batches_merged_together_equal_batches_merged_one_by_one(made, base):
    """Batches merged together give the same visits as batches merged one by one.

    A visit that was over when a late click arrived does not get that click.
    """
    low_s, batches = 10_000, []
    for rise, clicks in made:
        low_s += rise
        batches.append((low_s, [(visitor, low_s + after) for visitor, after in clicks]))
    expected = one_by_one(batches)
    rows = [
        (at, low, (visitor, second, second, 1, 1))
        for at, (low, clicks) in enumerate(batches)
        for visitor, second in clicks
    ]

    # The first batches may have been merged earlier; their visits that are over are set aside.
    early = [row for at, _, row in rows if at < base]
    late = [(low, row) for at, low, row in rows if at >= base]
    lows = [low for at, low, _ in rows if at < base]
    before = merged(visits(early), np.array(lows, np.int64))
    over = batches[base][0] if base < len(batches) else low_s
    done = [row for row in rows_of(before) if row[2] + VISIT_GAP_S <= over]
    open_rows = [row for row in rows_of(before) if row not in done]
    parts = visits([*open_rows, *(row for _, row in late)])
    low_marks = np.array([0] * len(open_rows) + [low for low, _ in late], np.int64)

    assert expected == sorted(done + rows_of(merged(parts, low_marks)))


def test_a_gap_of_half_an_hour_continues_a_visit():
    """A gap of VISIT_GAP_S continues a visit; one second more ends it."""
    at = 50_000
    rows = [(1, at, at, 1, 0), (1, at + VISIT_GAP_S, at + VISIT_GAP_S, 1, 1)]
    further = (1, at + 2 * VISIT_GAP_S + 1, at + 2 * VISIT_GAP_S + 1, 1, 1)

    found = rows_of(merged(visits([further, *rows]), np.zeros(3, np.int64)))

    assert [(1, at, at + VISIT_GAP_S, 2, 1), further] == found


def test_far_times_do_not_mix_visitors():
    """Times up to the year 9999 and extreme hashes do not mix visitors."""
    far_s = 253_402_300_799
    rows = [(-(2**63), 0, far_s, 1, 0), (-1, 5, 6, 1, 0), (2**63 - 1, 7, 7, 1, 0)]
    whole = merged(visits(rows), np.zeros(3, np.int64))

    assert rows == rows_of(whole)
    asked = np.array([2**63 - 1, -(2**63), -1, -1, 3, -1], np.int64)
    seconds = np.array([7, far_s, 6, 7, 7, 4], np.int64)
    assert [2, 0, 1, -1, -1, -1] == visit_of(whole, asked, seconds).tolist()


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 9_000)), max_size=12),
    st.lists(st.tuples(st.integers(-4, 4), st.integers(-10, 12_000)), max_size=12),
)
def test_a_click_outside_all_visits_has_no_visit(made, asked):
    """A click between visits, or of an unknown visitor, has no visit (-1)."""
    whole = merged(visits([(who, at, at + 60, 1, 1) for who, at in made]), np.zeros(len(made)))
    bounds = list(zip(whole.visitor, whole.first_s, whole.last_s, strict=True))
    expected = [
        next((at for at, (v, f, z) in enumerate(bounds) if v == who and f <= second <= z), -1)
        for who, second in asked
    ]
    columns = np.array(asked, np.int64).reshape(-1, 2).T

    assert expected == visit_of(whole, *columns).tolist()
