"""Rows as columns: numpy arrays for processing, Arrow tables for storage.

Numbers are numpy arrays in one frozen dataclass per kind of row (`Visits`, `Pages`); rows that have
text or are rare stay in Arrow tables. Hashes are 64 bits (xxhash64), times are whole seconds since
1970. `VisitorNames` has the address and user agent of each visitor's hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparq.pipeline.packing import Ints, Marks


@dataclass(frozen=True, slots=True)
class Visits:
    """Visits, or parts of visits: intervals in which a visitor clicked.

    Attributes:
        visitor: hash of address and agent.
        first_s, last_s: times of the first and the last click.
        clicks: number of clicks of any kind.
        resources: number of those clicks that are on resources, which a page loads by itself.
        pages: number of those clicks that are on pages.
    """

    visitor: Ints
    first_s: Ints
    last_s: Ints
    clicks: Ints
    resources: Ints
    pages: Ints


@dataclass(frozen=True, slots=True)
class Pages:
    """Clicks on pages and, of visitors that do not declare to be robots, on robots.txt."""

    visitor: Ints
    second: Ints
    kind: npt.NDArray[np.int8]
    page: Ints
    id: npt.NDArray[np.uint64]


VISITS = pa.schema(
    [
        ("visitor", pa.int64()),
        ("first_s", pa.int64()),
        ("last_s", pa.int64()),
        ("clicks", pa.int32()),
        ("resources", pa.int32()),
        ("pages", pa.int32()),
    ]
)
PAGES = pa.schema(
    [
        ("visitor", pa.int64()),
        ("second", pa.int64()),
        ("kind", pa.int8()),
        ("page", pa.int64()),
        ("id", pa.uint64()),
    ]
)
NAMES = pa.schema(
    [
        ("visitor", pa.int64()),
        ("address", pa.string()),
        ("agent", pa.string()),
        ("declared", pa.bool_()),  # whether the agent says that it is a robot
    ]
)
TEXTS = pa.schema([("page", pa.int64()), ("text", pa.string())])
FIRSTS = pa.schema([("visitor", pa.int64()), ("second", pa.int64()), ("id", pa.uint64())])

_SCHEMAS = {Visits: VISITS, Pages: PAGES}
Rows = TypeVar("Rows", Visits, Pages)


def from_table(kind: type[Rows], table: pa.Table) -> Rows:
    """The columns of a table as rows of a kind."""
    columns: list[Any] = [table[field.name].to_numpy() for field in fields(kind)]
    return kind(*columns)


def to_table(rows: Visits | Pages) -> pa.Table:
    """Rows as a table of their schema."""
    schema = _SCHEMAS[type(rows)]
    return pa.Table.from_arrays(
        [pa.array(getattr(rows, field.name), field.type) for field in schema], schema=schema
    )


def take(rows: Rows, which: Any) -> Rows:
    """The rows that an index array, a mask or a slice picks."""
    columns: list[Any] = [getattr(rows, field.name)[which] for field in fields(rows)]
    return type(rows)(*columns)


def concat(kind: type[Rows], parts: Sequence[Rows]) -> Rows:
    """The rows of all parts, one part after the other."""
    if not parts:
        return from_table(kind, empty(_SCHEMAS[kind]))
    columns: list[Any] = [
        np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(kind)
    ]
    return kind(*columns)


def starts_of(*sorted_columns: npt.NDArray[Any]) -> Ints:
    """The places where groups of equal values begin, in columns that are sorted together."""
    count = len(sorted_columns[0])
    if not count:
        return np.empty(0, np.int64)
    new = np.ones(count, bool)
    new[1:] = sorted_columns[0][1:] != sorted_columns[0][:-1]
    for column in sorted_columns[1:]:
        new[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(new)


def slices_of(sorted_column: npt.NDArray[Any]) -> dict[int, slice]:
    """The slice of rows of each value."""
    starts = starts_of(sorted_column)
    ends = [*starts[1:].tolist(), len(sorted_column)]
    return dict(zip(sorted_column[starts].tolist(), map(slice, starts.tolist(), ends), strict=True))


def only(table: pa.Table, marks: Marks) -> pa.Table:
    """The rows of a table that are marked."""
    return table if marks.all() else table.filter(pa.array(marks))


@lru_cache(maxsize=64)
def empty(schema: pa.Schema) -> pa.Table:
    """An empty table, cached: Arrow takes longer to make one than to read a small table."""
    return schema.empty_table()


def joined(schema: pa.Schema, tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of all tables, one table after the other, without chunks."""
    filled = [table for table in tables if len(table)]
    return pa.concat_tables(filled).combine_chunks() if filled else empty(schema)


@dataclass(frozen=True, slots=True)
class Name:
    """A visitor, and whether the agent says that it is a robot."""

    address: str
    agent: str
    declared: bool


class VisitorNames:
    """Visitors by hash; `table` has each visitor once, ordered by hash, columns of NAMES."""

    def __init__(self, tables: Sequence[pa.Table]) -> None:
        table = joined(NAMES, [_plain(table) for table in tables])
        visitor, first = np.unique(table["visitor"].to_numpy(), return_index=True)
        self._visitor: Ints = visitor
        self.table = table.take(pa.array(first)).combine_chunks()
        self._declared: Marks = self.table["declared"].to_numpy()

    def of(self, visitor: int) -> Name:
        """The name of a visitor, who must be present."""
        at = int(np.searchsorted(self._visitor, visitor))
        assert self._visitor[at] == visitor, visitor
        return Name(*(self.table[name][at].as_py() for name in NAMES.names[1:]))

    def declared(self, visitors: Ints) -> Marks:
        """Which of these visitors, all present, declare to be robots."""
        if not len(visitors):
            return np.empty(0, bool)
        return self._declared[np.searchsorted(self._visitor, visitors)]

    def only(self, visitors: Ints) -> pa.Table:
        """The names of these visitors; agents as a dictionary, since few are distinct."""
        table = self.table.filter(pa.array(np.isin(self._visitor, visitors)))
        at = NAMES.get_field_index("agent")
        return table.set_column(at, "agent", table["agent"].dictionary_encode())


def _plain(table: pa.Table) -> pa.Table:
    """The table with agents as plain texts."""
    return table if table.schema.equals(NAMES) else table.cast(NAMES)


def texts_in(tables: Sequence[pa.Table]) -> dict[int, str]:
    """The texts of pages by hash, from tables of TEXTS."""
    table = joined(TEXTS, tables)
    return dict(zip(table["page"].to_pylist(), table["text"].to_pylist(), strict=True))
