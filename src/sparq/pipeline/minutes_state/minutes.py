"""Minutes with their exact sums, visitors and pages, as numpy arrays, and their addition.

A bucket's state, the data that a partition sends to it, and the clicks that a batch adds all have
the same form: a set of minutes. In Arrow a minute is a row; its visitors and pages are lists:

    minute BIGINT                        event time, minutes since 1970
    revisions, clicks, bytes,
    status_1xx .. status_5xx, status_other BIGINT
    visitors LIST<BIGINT>                64-bit hash of each distinct visitor, ascending
    pages, page_clicks LIST<BIGINT>      64-bit hash of each distinct page, ascending; its clicks

1. `added_up` is associative and commutative, and returns minutes, visitors and pages in order: how
   the clicks were divided into batches and partitions does not matter.
2. Sums are capped at 2^63 - 1: a log line may claim a size of 10^18 bytes, and ten such lines must
   neither stop the query nor make its figures negative.

Visitors and pages are distinguished by 64 bits. The chance that two of 100,000 visitors of a minute
share a hash, and so count as one, is 3 in 10^10; digests of 16 bytes would take twice the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparq.pipeline.packing import Ints, Marks

STATUS_CLASSES = ("1xx", "2xx", "3xx", "4xx", "5xx", "other")
SUMS = ("revisions", "clicks", "bytes", *(f"status_{name}" for name in STATUS_CLASSES))
LISTS = ("visitors", "pages", "page_clicks")
SUM_MAX = 2**63 - 1
SCHEMA = pa.schema(
    [("minute", pa.int64())]
    + [(name, pa.int64()) for name in SUMS]
    + [(name, pa.list_(pa.int64())) for name in LISTS]
)
_LOW_BITS = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Minutes:
    """Minutes, with the visitors and pages of each.

    Attributes:
        minute: shape (m,).
        sums: shape (len(SUMS), m).
        visitor_counts: shape (m,): number of visitors of each minute. `visitors` begins with
            those of the first minute.
        visitors: shape (visitor_counts.sum(),), ascending within a minute.
        page_counts: shape (m,), likewise for `pages`.
        pages: shape (page_counts.sum(),), ascending within a minute.
        page_clicks: clicks of each of `pages`.
    """

    minute: Ints
    sums: Ints
    visitor_counts: Ints
    visitors: Ints
    page_counts: Ints
    pages: Ints
    page_clicks: Ints

    def __len__(self) -> int:
        return len(self.minute)

    def sum_of(self, name: str) -> Ints:
        """One of SUMS, for each minute."""
        mine: Ints = self.sums[SUMS.index(name)]
        return mine

    def where(self, mask: Marks) -> Minutes:
        """The minutes that the mask marks."""
        if mask.all():
            return self
        if not mask.any():
            return EMPTY
        visitors, pages = np.repeat(mask, self.visitor_counts), np.repeat(mask, self.page_counts)
        return Minutes(
            self.minute[mask],
            self.sums[:, mask],
            self.visitor_counts[mask],
            self.visitors[visitors],
            self.page_counts[mask],
            self.pages[pages],
            self.page_clicks[pages],
        )

    def revised(self) -> Minutes:
        """Return a copy with one revision in each minute: the form that is added to the state."""
        sums = self.sums.copy()
        sums[SUMS.index("revisions")] = 1
        return replace(self, sums=sums)

    def bytes_each(self) -> Ints:
        """Approximate bytes of each minute in the state, without the text of its pages."""
        return 8 * (len(SCHEMA) + self.visitor_counts + 2 * self.page_counts)

    def table(self) -> pa.Table:
        """As an Arrow table: columns of SCHEMA, one row per minute."""
        page_ends = _offsets(self.page_counts)
        lists = [
            pa.ListArray.from_arrays(_offsets(self.visitor_counts), pa.array(self.visitors)),
            pa.ListArray.from_arrays(page_ends, pa.array(self.pages)),
            pa.ListArray.from_arrays(page_ends, pa.array(self.page_clicks)),
        ]
        columns = [pa.array(self.minute), *(pa.array(row) for row in self.sums), *lists]
        return pa.Table.from_arrays(columns, schema=SCHEMA)


def from_table(table: pa.Table) -> Minutes:
    """The minutes of a table of SCHEMA."""
    minute, *sums = (_numbers(table[name]) for name in ("minute", *SUMS))
    counts = [_numbers(pc.list_value_length(table[name])) for name in ("visitors", "pages")]
    visitors, pages, page_clicks = (_numbers(pc.list_flatten(table[name])) for name in LISTS)
    return Minutes(
        minute, np.array(sums, np.int64), counts[0], visitors, counts[1], pages, page_clicks
    )


def grouped(
    minute: Ints, sums: Ints, visitors: tuple[Ints, Ints], pages: tuple[Ints, Ints, Ints]
) -> Minutes:
    """Build minutes from visitors and pages in any order, with duplicates.

    Args:
        minute: shape (m,).
        sums: shape (len(SUMS), m).
        visitors: for each visitor, the row of its minute (0 .. m - 1) and its hash.
        pages: for each page, the row of its minute, its hash and its clicks.
    """
    rows, hashes = visitors
    order, firsts = _groups(hashes, rows)
    visitors_at = order[firsts]
    page_rows, page_hashes, clicks = pages
    page_order, page_firsts = _groups(page_hashes, page_rows)
    pages_at = page_order[page_firsts]
    return Minutes(
        minute,
        sums,
        np.bincount(rows[visitors_at], minlength=len(minute)),
        hashes[visitors_at],
        np.bincount(page_rows[pages_at], minlength=len(minute)),
        page_hashes[pages_at],
        saturated_sums(clicks[page_order], page_firsts),
    )


def added_up(parts: Sequence[Minutes]) -> Minutes:
    """All minutes of the parts, ascending; a minute that occurs in several parts is summed."""
    parts = [part for part in parts if len(part)]
    if len(parts) <= 1:
        return parts[0] if parts else EMPTY
    minute, rows = np.unique(_joined(parts, "minute"), return_inverse=True)
    order = np.argsort(rows, kind="stable")
    firsts = np.searchsorted(rows[order], np.arange(len(minute)))
    sums = np.concatenate([part.sums for part in parts], axis=1)
    return grouped(
        minute,
        saturated_sums(sums[:, order], firsts),
        (np.repeat(rows, _joined(parts, "visitor_counts")), _joined(parts, "visitors")),
        (
            np.repeat(rows, _joined(parts, "page_counts")),
            _joined(parts, "pages"),
            _joined(parts, "page_clicks"),
        ),
    )


def joined(parts: Sequence[Minutes]) -> Minutes:
    """The minutes of the parts, one part after the other; no minute may occur twice."""
    parts = [part for part in parts if len(part)]
    if len(parts) <= 1:
        return parts[0] if parts else EMPTY
    names = [name for name in Minutes.__slots__ if name != "sums"]
    sums = np.concatenate([part.sums for part in parts], axis=1)
    return Minutes(sums=sums, **{name: _joined(parts, name) for name in names})


def saturated_sums(values: Ints, firsts: Ints) -> Ints:
    """Sums of the groups that start at `firsts`, along the last axis, capped at SUM_MAX.

    Args:
        values: not negative; each group has fewer than 2^31 of them.
        firsts: ascending; the first is 0 unless there are no values.
    """
    if not len(firsts):
        return values[..., :0]
    # numpy would wrap around at 2^63 without an error. The lower and the upper halves are summed
    # separately, and neither sum can overflow.
    low = np.add.reduceat(values & _LOW_BITS, firsts, axis=-1)
    high = np.add.reduceat(values >> 32, firsts, axis=-1) + (low >> 32)
    sums: Ints = np.where(high >> 31, SUM_MAX, (high << 32) | (low & _LOW_BITS))
    return sums


def _groups(values: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """The order by row, then by value, and the places in it where distinct pairs begin."""
    order = np.lexsort((values, rows))
    values, rows = values[order], rows[order]
    new = np.ones(len(rows), np.bool_)
    new[1:] = (values[1:] != values[:-1]) | (rows[1:] != rows[:-1])
    return order, np.flatnonzero(new)


def _joined(parts: Sequence[Minutes], name: str) -> Ints:
    return np.concatenate([getattr(part, name) for part in parts])


def _numbers(column: pa.ChunkedArray) -> Ints:
    numbers: Ints = column.to_numpy().astype(np.int64, copy=False)
    return numbers


def _offsets(counts: Ints) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())


EMPTY_TABLE = SCHEMA.empty_table()
EMPTY = from_table(EMPTY_TABLE)
