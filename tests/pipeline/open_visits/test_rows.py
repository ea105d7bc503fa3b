"""Rows as columns: selected, joined, grouped and named as a plain list of rows would be."""

from itertools import groupby

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.pipeline.open_visits import rows
from sparq.pipeline.open_visits.rows import NAMES, Name, Pages, VisitorNames

ROWS = st.lists(
    st.tuples(
        st.integers(-(2**63), 2**63 - 1),
        st.integers(0, 2**40),
        st.integers(0, 3),
        st.integers(-(2**63), 2**63 - 1),
        st.integers(0, 2**64 - 1),
    ),
    max_size=12,
)
TYPES = (np.int64, np.int64, np.int8, np.int64, np.uint64)


def pages_of(made):
    """Rows as columns."""
    columns = zip(*made, strict=True) if made else [()] * len(TYPES)
    return Pages(*(np.array(one, kind) for one, kind in zip(columns, TYPES, strict=True)))


def plain(pages):
    """Columns as rows."""
    return list(zip(*(one.tolist() for one in columns_of(pages)), strict=True))


def columns_of(pages):
    return (pages.visitor, pages.second, pages.kind, pages.page, pages.id)


@given(ROWS, ROWS)
def test_rows_survive_joining_and_a_round_trip_through_arrow(first, second):
    """Rows are unchanged after joining and after a round trip through Arrow."""
    pages = rows.concat(Pages, [pages_of(first), pages_of(second)])

    assert [*first, *second] == plain(pages)
    assert [*first, *second] == plain(rows.from_table(Pages, rows.to_table(pages)))
    assert [] == plain(rows.concat(Pages, []))


@given(ROWS, st.data())
def test_rows_are_selected_by_mask_positions_or_slice(made, data):
    """Rows are selected by a mask, by positions or by a slice."""
    marks = data.draw(st.lists(st.booleans(), min_size=len(made), max_size=len(made)))
    pages, mask = pages_of(made), np.array(marks, bool)
    kept = [row for row, mark in zip(made, marks, strict=True) if mark]

    assert kept == plain(rows.take(pages, mask))
    assert kept == plain(rows.take(pages, np.flatnonzero(mask)))
    assert made[1:3] == plain(rows.take(pages, slice(1, 3)))
    assert kept == plain(rows.from_table(Pages, rows.only(rows.to_table(pages), mask)))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=20).map(sorted))
def test_a_group_begins_where_a_column_changes(pairs):
    """A group begins where a value of any column changes."""
    first, second = (np.array([pair[at] for pair in pairs], np.int64) for at in (0, 1))
    sizes = [len(list(group)) for _, group in groupby(pairs)]

    assert [sum(sizes[:at]) for at in range(len(sizes))] == rows.starts_of(first, second).tolist()
    assert {value: [one for one in first.tolist() if one == value] for value in first.tolist()} == {
        value: first[where].tolist() for value, where in rows.slices_of(first).items()
    }


def test_each_visitor_has_one_name():
    """Each visitor has one name; agents may be stored as a dictionary."""
    names = [(7, "1.2.3.4", "Testbot/1.0", True), (-5, "::1", "browser", False)]
    table = pa.Table.from_pylist([dict(zip(NAMES.names, one, strict=True)) for one in names], NAMES)
    known = VisitorNames([table, table])
    stored = known.only(np.array([7]))

    assert [-5, 7] == known.table["visitor"].to_pylist()
    assert Name("1.2.3.4", "Testbot/1.0", declared=True) == known.of(7)
    assert [True, False, True] == known.declared(np.array([7, -5, 7])).tolist()
    assert [] == known.declared(np.array([], np.int64)).tolist()
    assert pa.types.is_dictionary(stored.schema.field("agent").type)
    assert known.of(7) == VisitorNames([stored]).of(7)
    with pytest.raises(AssertionError):
        VisitorNames([stored]).of(6)
