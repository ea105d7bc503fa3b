"""Minutes as arrays: they can be added in any order, with identical results."""

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.pipeline.minutes_state.minutes import (
    EMPTY,
    SCHEMA,
    SUM_MAX,
    SUMS,
    added_up,
    from_table,
    grouped,
    joined,
    saturated_sums,
)

CLICK = st.tuples(
    st.integers(0, 5), st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5), st.integers(-5, 5)
)
CLICKS = st.lists(CLICK, max_size=30)


def minutes(clicks):
    """Minutes from (minute, visitor, page); each click counts 1 byte."""
    minute, rows = np.unique([click[0] for click in clicks], return_inverse=True)
    sums = np.zeros((len(SUMS), len(minute)), np.int64)
    sums[SUMS.index("clicks")] = sums[SUMS.index("bytes")] = np.bincount(rows)
    columns = [np.array([click[at] for click in clicks], np.int64) for at in (1, 2)]
    pages = (rows, columns[1], np.ones(len(rows), np.int64))
    return grouped(minute.astype(np.int64), sums, (rows, columns[0]), pages) if clicks else EMPTY


def plain(clicks):
    """{minute: (clicks, visitors, pages)}, counted with plain Python."""
    found = defaultdict(lambda: (Counter(), set(), Counter()))
    for minute, visitor, page in clicks:
        sums, visitors, pages = found[minute]
        sums["clicks"] += 1
        visitors.add(visitor)
        pages[page] += 1
    return {
        minute: (sums["clicks"], sorted(visitors), sorted(pages.items()))
        for minute, (sums, visitors, pages) in found.items()
    }


def figures(held):
    return {
        row["minute"]: (
            row["clicks"],
            row["visitors"],
            list(zip(row["pages"], row["page_clicks"], strict=True)),
        )
        for row in held.table().to_pylist()
    }


@given(st.lists(CLICKS, max_size=5))
def test_a_sum_equals_a_plain_count(parts):
    """A sum has each visitor once and each page with all its clicks; minutes ascend."""
    held = added_up([minutes(clicks) for clicks in parts])

    assert figures(held) == plain([click for clicks in parts for click in clicks])
    assert held.minute.tolist() == sorted(held.minute.tolist())


@given(CLICKS, CLICKS, CLICKS, st.permutations(range(3)))
def test_adding_up_is_associative_and_commutative(first, second, third, order):
    """Batches, partitions and the order of the shuffle do not change a sum."""
    parts = [minutes(clicks) for clicks in (first, second, third)]
    whole = added_up(parts).table()

    assert whole == added_up([parts[at] for at in order]).table()
    assert whole == added_up([added_up(parts[:2]), parts[2]]).table()
    assert whole == added_up([parts[0], added_up(parts[1:])]).table()


@given(CLICKS, st.sets(st.integers(0, 5)))
def test_minutes_can_be_selected_and_joined(clicks, some):
    """`where` selects minutes with their visitors and pages; `joined` combines such parts."""
    held = minutes(clicks)
    mask = np.isin(held.minute, list(some))
    taken, rest = held.where(mask), held.where(~mask)

    assert figures(taken) == plain([click for click in clicks if click[0] in some])
    assert figures(joined([rest, taken])) == figures(held)


@given(CLICKS, st.integers(0, 6), st.integers(0, 6))
def test_minutes_survive_a_round_trip_through_arrow(clicks, first, length):
    """Minutes survive a round trip through Arrow, also as a slice of a table."""
    table = minutes(clicks).table()
    part = table.slice(first, length)

    assert table.schema == SCHEMA
    assert from_table(part).table().to_pylist() == part.to_pylist()


SIZE = st.integers(0, SUM_MAX) | st.sampled_from([0, 1, 2**32 - 1, 2**32, 2**62, SUM_MAX])


@given(st.lists(st.lists(SIZE, min_size=1, max_size=6), max_size=5))
def test_sums_saturate_at_sum_max(groups):
    """Sums saturate at SUM_MAX: ten clicks of 10^18 bytes neither fail nor turn negative."""
    values = np.array([size for sizes in groups for size in sizes], np.int64)
    firsts = np.cumsum([0, *map(len, groups)])[:-1].astype(np.int64)
    expected = [min(sum(sizes), SUM_MAX) for sizes in groups]

    assert expected == saturated_sums(values, firsts).tolist()
    assert [expected] * 2 == saturated_sums(np.stack([values, values]), firsts).tolist()


@pytest.mark.parametrize("parts", [[], [EMPTY], [EMPTY, EMPTY]])
def test_no_minutes_add_up_to_an_empty_table(parts):
    """No minutes, or only empty ones, add up to an empty table."""
    assert added_up(parts).table() == joined(parts).table() == SCHEMA.empty_table()
