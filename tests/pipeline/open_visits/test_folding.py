"""Folded pages give the same evidence as the pages themselves."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sparq.pipeline.open_visits import judge
from sparq.pipeline.open_visits.folding import (
    Fold,
    folds_of,
    folds_table,
    merged_windows,
    windows_from,
    windows_of,
    windows_table,
)
from sparq.pipeline.open_visits.rows import Pages, take
from sparq.pipeline.open_visits.tiers import WINDOW_OVER_S
from sparq.pipeline.visits import PAGE, ROBOTS_TXT, UNDECLARED, VISIT_GAP_S

TEXTS = {page: f"/{page % 3}{page}" for page in range(6)}  # not in the order of the hashes


@st.composite
def visit(draw):
    """The pages of one visit: some at even gaps, some in bursts, some repeated."""
    runs = draw(
        st.lists(
            st.tuples(
                st.integers(0, VISIT_GAP_S), st.sampled_from((0, 1, 5, 30, 100)),
                st.integers(1, 30), st.integers(1, 6), st.booleans(),
            ),
            min_size=1, max_size=6,
        )
    )  # fmt: skip
    second, rows = 100_000, []
    for pause_s, gap_s, count, different, robots_txt in runs:
        second += pause_s
        kind = ROBOTS_TXT if robots_txt and count < 4 else PAGE
        for number in range(count):
            rows.append((9, second + number * gap_s, kind, number % different, len(rows)))
        second += (count - 1) * gap_s
    return pages_of(rows)


def pages_of(rows):
    columns = np.array(rows, np.int64).reshape(-1, 5).T
    return Pages(*columns[:2], columns[2].astype(np.int8), columns[3], columns[4].astype(np.uint64))


def known(evidence, before):
    """Evidence without ids, as a finding takes it in; `before`: the finding exists already."""
    return {
        (one.reason, one.amount, one.first_s, one.last_s, str(one.details.get("page")))
        for one in evidence
        if one.reason != UNDECLARED or one.ids or before
    }


@given(visit(), st.lists(st.floats(0, 1), min_size=1, max_size=3), st.booleans())
def test_evidence_does_not_depend_on_folds(pages, cuts, declared):
    """Evidence does not depend on where the pages of a visit are folded."""
    fold, windows, start = None, [], 0
    for cut in sorted(cuts):
        over_s = pages.second[0] + int(cut * (pages.second[-1] - pages.second[0])) - 1
        end = int(np.searchsorted(pages.second, over_s, side="right"))
        if end <= start:
            continue
        left = take(pages, slice(start, None))
        new = windows_of(left, end - start, TEXTS, declared=declared)
        windows = merged_windows([*windows, *new])
        asked = take(pages, slice(start, end))
        asked = take(asked, asked.kind == PAGE)
        if len(asked.second):
            fold = fold.plus(asked) if fold else Fold.of(asked)
        start = end
    windows = windows_from(windows_table(windows))
    (fold,) = folds_of(folds_table([fold])) if fold else (None,)
    rest = take(pages, slice(start, None))

    whole = judge.at_once(pages, [], TEXTS, declared=declared)
    parts = judge.at_once(rest, windows, TEXTS, declared=declared)
    assert known(whole, before=True) == known(parts, before=True)
    for resources in (0, 3):
        assert judge.of_visit(pages, resources, None) == judge.of_visit(rest, resources, fold)


def test_pages_are_old_when_no_timely_click_can_join_their_window():
    """A page is old after 1,800 + 600 s: the latest click on time plus the widest window."""
    assert WINDOW_OVER_S == 1_800 + 600
