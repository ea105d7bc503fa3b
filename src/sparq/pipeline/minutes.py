"""The books of the minutes: exact clicks, visitors, bytes, status classes and pages of each.

Pure: Arrow tables in, Arrow tables out. Spark reduces a micro-batch to one row per minute, one per
minute and visitor, one per minute and page (`metrics` does that); all figures in these rows are
sums, so the rows of many batches add up in any order, and the visitors of a minute are counted, not
estimated, since each stands in a row of his own.

1. A click of an open minute makes a new revision of its row, however late it comes.
2. A minute closes `horizon_s` behind the watermark, or when the memory is full (the oldest first),
   and never opens again. A click of a closed minute, or of one more than a day ahead of its own
   publish time, is counted in `late`. So clicks of all newest revisions + late = clicks that came.
3. `apply` is a function of the books before it and the batch: a repeated batch gives equal rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparq.pipeline.watermark import Watermark

MINUTE, VISITOR, PAGE = 0, 1, 2  # kinds of rows
STATUS_CLASSES = ("1xx", "2xx", "3xx", "4xx", "5xx", "other")
SUMS = ("clicks", "bytes", *(f"status_{name}" for name in STATUS_CLASSES), "revisions")
TOP_PAGES = 10
HORIZON_S = 86_400
AHEAD_MAX_S = 86_400
ENTRIES_MAX = 2_000_000  # about 200 MB

# What a batch is reduced to. `key`: the visitor's digest or the page, empty for the minute itself.
ENTRY_SCHEMA = pa.schema(
    [("minute", pa.int64()), ("kind", pa.int32()), ("key", pa.binary())]
    + [(name, pa.int64()) for name in SUMS]
)
ROW_SCHEMA = pa.schema(
    [
        ("minute", pa.timestamp("us", "UTC")),
        ("revision", pa.int64()),
        ("final", pa.bool_()),
        ("clicks", pa.int64()),
        ("visitors", pa.int64()),
        ("bytes", pa.int64()),
        *((f"status_{name}", pa.int64()) for name in STATUS_CLASSES),
        ("top_pages", pa.list_(pa.struct([("page", pa.string()), ("clicks", pa.int64())]))),
    ]
)
LATE_SCHEMA = pa.schema([("minute", pa.timestamp("us", "UTC")), ("clicks", pa.int64())])


@dataclass(frozen=True, slots=True)
class Applied:
    """What one batch changed: rows and late clicks to write, entries to remember."""

    rows: pa.Table
    late: pa.Table
    entries: pa.Table


class MinuteBooks:
    """The open minutes. `books` and `entries` are what an earlier one left; empty at first."""

    def __init__(
        self,
        entries: pa.Table | None = None,
        books: dict[str, Any] | None = None,
        *,
        horizon_s: int = HORIZON_S,
        entries_max: int = ENTRIES_MAX,
    ) -> None:
        books = books or {}
        self._horizon_s = horizon_s
        self._entries_max = entries_max
        self._watermark = Watermark(books.get("watermark"))
        self._closed_before = books.get("closed_before", 0)
        self.clicks = books.get("clicks", 0)
        self.late = books.get("late", 0)
        entries = ENTRY_SCHEMA.empty_table() if entries is None else entries
        self._entries = _added_up(_from(entries, self._closed_before))
        self._loose = 0

    @property
    def entries(self) -> pa.Table:
        """All that is remembered, one row a minute, kind and key."""
        self._fold()
        return self._entries

    def books(self) -> dict[str, Any]:
        """The figures beside the entries, as JSON."""
        return {
            "watermark": self._watermark.books(),
            "closed_before": self._closed_before,
            "clicks": self.clicks,
            "late": self.late,
        }

    def apply(
        self, batch_id: int, entries: pa.Table, newest_s: dict[str, int], published_s: int
    ) -> Applied:
        """Take in one batch.

        Args:
            batch_id: Spark's.
            entries: its reduced clicks, of ENTRY_SCHEMA.
            newest_s: each nsqd's newest event time, clamped to publish time, in s since 1970.
            published_s: the newest publish time of the batch, in s since 1970.
        """
        ahead = (published_s + AHEAD_MAX_S) // 60
        minutes = entries["minute"]
        late = pc.or_(pc.less(minutes, self._closed_before), pc.greater(minutes, ahead))
        late_rows = _late_rows(entries.filter(late))
        taken = entries.filter(pc.invert(late))
        self.late += pc.sum(late_rows["clicks"]).as_py() or 0
        self.clicks += _clicks(taken)
        self._entries = pa.concat_tables([self._entries, taken])
        self._loose += len(taken)
        self._watermark.advance(batch_id, newest_s)
        closing = self._minutes_to_close()
        changed = pc.unique(taken["minute"])
        open_rows = self._rows(pc.filter(changed, pc.greater_equal(changed, closing)), final=False)
        closed = pc.unique(self._entries["minute"])
        rows = [open_rows, self._rows(pc.filter(closed, pc.less(closed, closing)), final=True)]
        self._closed_before = closing
        self._entries = _from(self._entries, closing)
        return Applied(pa.concat_tables(rows), late_rows, taken)

    def close(self) -> pa.Table:
        """The last rows of all minutes that are open: nothing more will come."""
        return self._rows(pc.unique(self._entries["minute"]), final=True)

    def _minutes_to_close(self) -> int:
        """The first minute that stays open."""
        closing: int = max(self._closed_before, (self._watermark.low_s - self._horizon_s) // 60)
        if self._loose > len(self._entries) // 2:
            self._fold()
        over = len(self._entries) - self._entries_max
        if over <= 0:
            return closing
        self._fold()
        over = len(self._entries) - self._entries_max
        oldest = np.sort(self._entries["minute"].to_numpy())
        return max(closing, int(oldest[over - 1]) + 1) if over > 0 else closing

    def _fold(self) -> None:
        if self._loose:
            self._entries = _added_up(self._entries)
            self._loose = 0

    def _rows(self, minutes: pa.Array, *, final: bool) -> pa.Table:
        mine = self._entries.filter(pc.is_in(self._entries["minute"], value_set=minutes))
        entries = _added_up(mine)
        totals = _of_kind(entries, MINUTE).sort_by("minute")
        visitors = (
            _of_kind(entries, VISITOR)
            .group_by("minute", use_threads=False)
            .aggregate([("key", "count")])
        )
        counted = dict(zip(*(column.to_pylist() for column in visitors.columns), strict=True))
        at = totals["minute"].to_pylist()
        pages = _top_pages(_of_kind(entries, PAGE))
        columns = {
            "minute": _as_time(totals["minute"]),
            "revision": pc.add(totals["revisions"], int(final)),
            "final": pa.array([final] * len(totals), pa.bool_()),
            "visitors": pa.array([counted.get(minute, 0) for minute in at], pa.int64()),
            "top_pages": pa.array(
                [pages.get(minute, []) for minute in at], ROW_SCHEMA.field("top_pages").type
            ),
        }
        plain = {name: totals[name] for name in ROW_SCHEMA.names if name not in columns}
        return pa.table({**columns, **plain}).select(ROW_SCHEMA.names).cast(ROW_SCHEMA)


def _added_up(entries: pa.Table) -> pa.Table:
    summed = entries.group_by(["minute", "kind", "key"], use_threads=False).aggregate(
        [(name, "sum") for name in SUMS]
    )
    return summed.rename_columns(
        [name.removesuffix("_sum") for name in summed.column_names]
    ).select(ENTRY_SCHEMA.names)


def _from(entries: pa.Table, minute: int) -> pa.Table:
    return entries.filter(pc.greater_equal(entries["minute"], minute))


def _of_kind(entries: pa.Table, kind: int) -> pa.Table:
    return entries.filter(pc.equal(entries["kind"], kind))


def _clicks(entries: pa.Table) -> int:
    return pc.sum(_of_kind(entries, MINUTE)["clicks"]).as_py() or 0


def _as_time(minutes: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.multiply(minutes, 60_000_000).cast(pa.timestamp("us", "UTC"))


def _late_rows(entries: pa.Table) -> pa.Table:
    minutes = (
        _of_kind(entries, MINUTE)
        .group_by("minute", use_threads=False)
        .aggregate([("clicks", "sum")])
    )
    minutes = minutes.sort_by("minute")
    columns = [_as_time(minutes["minute"]), minutes["clicks_sum"]]
    return pa.table(columns, names=LATE_SCHEMA.names).cast(LATE_SCHEMA)


def _top_pages(entries: pa.Table) -> dict[int, list[dict[str, Any]]]:
    """Each minute's TOP_PAGES pages by clicks, equal ones by name."""
    order = [("minute", "ascending"), ("clicks", "descending"), ("key", "ascending")]
    ranked = entries.sort_by(order)
    minutes = ranked["minute"].to_numpy()
    first = np.searchsorted(minutes, minutes, side="left")
    top = ranked.filter(pa.array(np.arange(len(minutes)) - first < TOP_PAGES))
    pages: dict[int, list[dict[str, Any]]] = {}
    for minute, key, clicks in zip(
        *(top[name].to_pylist() for name in ("minute", "key", "clicks")), strict=True
    ):
        pages.setdefault(minute, []).append({"page": key.decode(), "clicks": clicks})
    return pages
