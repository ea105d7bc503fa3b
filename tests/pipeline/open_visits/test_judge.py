"""The rules on the data of a bucket: for which visitors a rule may give evidence."""

from collections import Counter

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from sparq.pipeline.open_visits import judge
from sparq.pipeline.open_visits.rows import Pages
from sparq.pipeline.visits import BURST_PAGES, BURST_S, PAGE, REPEAT_CLICKS, REPEATS, ROBOTS_TXT

# Visitor, second, page.
CLICKS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 4 * BURST_S), st.integers(0, 3)), max_size=40
)


def pages_of(clicks, kind=PAGE):
    """Clicks in time order, as columns; the id of each is its number."""
    rows = [(who, second, kind, page, at) for at, (who, second, page) in enumerate(sorted_(clicks))]
    kinds = (np.int64, np.int64, np.int8, np.int64, np.uint64)
    columns = zip(*rows, strict=True) if rows else [()] * 5
    return Pages(*(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)))


def sorted_(clicks):
    return sorted(clicks, key=lambda click: click[1])


def most_at_once(seconds):
    """The largest number of clicks within BURST_S."""
    return max((sum(0 <= two - one <= BURST_S for two in seconds) for one in seconds), default=0)


@given(CLICKS, st.integers(2, 9))
@example([(0, 0, 0), (0, BURST_S, 1)], 2)
@example([(0, 0, 0), (0, BURST_S + 1, 1)], 2)
def test_busy_visitors_equal_those_of_a_plain_count(clicks, count):
    """Busy visitors have `count` clicks on one page, or on any pages within BURST_S."""
    expected = set()
    for visitor, _, _ in clicks:
        theirs = [click for click in clicks if click[0] == visitor]
        same = max(Counter(page for _, _, page in theirs).values())
        if max(same, most_at_once([second for _, second, _ in theirs])) >= count:
            expected.add(visitor)

    assert sorted(expected) == judge.busy(pages_of(clicks), count).tolist()


@given(CLICKS, st.integers(0, BURST_PAGES))
@example([*((0, 0, page) for page in range(1, BURST_PAGES)), (0, BURST_S, 0)], 0)
@example([*((0, 0, page) for page in range(1, BURST_PAGES)), (0, BURST_S + 1, 0)], 0)
def test_unseen_pages_count_towards_a_rules_threshold(clicks, unseen):
    """Pages may prove something if, with `unseen` more, they reach a rule's threshold."""
    mine = [(0, second, page) for _, second, page in clicks]
    same = max(Counter(page for _, _, page in mine).values(), default=0)
    quick = most_at_once([second for _, second, _ in mine])
    enough = same + unseen >= REPEAT_CLICKS or quick + unseen >= BURST_PAGES

    assert (bool(mine) and enough) == judge.may_prove(pages_of(mine), unseen)
    assert not judge.may_prove(pages_of(mine, ROBOTS_TXT), unseen)


def test_visitors_that_may_break_a_rule_need_to_be_judged():
    """Visitors with enough pages, with robots.txt or with a stored window need to be judged."""
    many = pages_of([(1, second, 5) for second in range(4)])
    asked = pages_of([(2, 7, 9)], ROBOTS_TXT)
    few = pages_of([(3, 1, 1)])
    visitor = np.concatenate([many.visitor, asked.visitor, few.visitor])
    kind = np.concatenate([many.kind, asked.kind, few.kind])

    assert [1, 2, 4] == judge.suspect_visitors(visitor, kind, 4, [4]).tolist()
    assert [2] == judge.suspect_visitors(visitor, kind, 5, []).tolist()


def test_evidence_has_the_first_page_by_text_and_message_ids():
    """Of two pages with equal clicks, evidence names the first by text; it has message ids."""
    clicks = [(1, 30 * at, page) for at in range(REPEAT_CLICKS) for page in (30, 20)]
    pages = pages_of(clicks)
    texts = {20: "/z", 30: "/a"}
    (found,) = (
        one for one in judge.at_once(pages, [], texts, declared=False) if one.reason == REPEATS
    )

    assert "/a" == found.details["page"]
    assert texts == judge.texts_of(pages, {**texts, 40: "/other"})
    assert all(len(one) == 16 for one in found.ids)
