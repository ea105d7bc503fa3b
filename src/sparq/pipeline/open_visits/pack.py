"""A partition of clicks becomes one packed row a bucket: what `mapInArrow` runs on an executor.

A row's blob has these tables, each with the visitors of its bucket alone:

    seconds  VISITS  a row for each visitor and second: how many clicks, resources, pages
    pages    PAGES   a row for each click on a page, or on robots.txt by an undeclared visitor
    texts    TEXTS   each page of `pages` once, with its text
    names    NAMES   each visitor once
    firsts   FIRSTS  the first clicks of each visitor who declares to be a robot

Clicks that are no pages are counted by second, not merged into longer intervals here: which of
them come too late depends on the low mark, which the state knows and an executor does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from sparq.pipeline import packing
from sparq.pipeline.open_visits.rows import (
    FIRSTS,
    NAMES,
    PAGES,
    TEXTS,
    VISITS,
    Ints,
    Pages,
    Visits,
    starts_of,
    to_table,
)
from sparq.pipeline.robots import declared_name
from sparq.pipeline.visits import IDS_KEPT, PAGE, RESOURCE, ROBOTS_TXT

CLICKS = pa.schema(
    [
        ("visitor", pa.int64()),  # xxhash64 of the two texts that follow
        ("address", pa.string()),
        ("agent", pa.string()),
        ("second", pa.int64()),  # event time
        ("kind", pa.int8()),  # PAGE, RESOURCE, ROBOTS_TXT, OTHER of `sparq.pipeline.visits`
        ("page", pa.string()),
        ("page_hash", pa.int64()),  # xxhash64 of `page`
        ("id", pa.string()),  # of the message: 16 hex digits
        # What `packing.header_of` reads.
        ("nsqd", pa.string()),
        ("newest_s", pa.int64()),
        ("published_s", pa.int64()),
        ("batch_ms", pa.int64()),
    ]
)
BLOB = (VISITS, PAGES, TEXTS, NAMES, FIRSTS)
ID_CHARACTERS = 16


def pack(batches: Iterable[pa.RecordBatch], buckets: int) -> Iterator[pa.RecordBatch]:
    """Pack a partition.

    Args:
        batches: the clicks of one partition and batch, columns of CLICKS; none of them null.
        buckets: the number of buckets of the query.

    Yields:
        One RecordBatch of PACKED_SCHEMA with a row for each bucket; nothing for an empty partition.

    Raises:
        ValueError: a message id has not 16 hex digits.
    """
    clicks = packing.gather(batches)
    if clicks is None:
        return
    sorted_clicks = _Sorted(clicks, buckets)
    tables = [
        (sorted_clicks.bucket[rows], table)
        for rows, table in (
            sorted_clicks.seconds(),
            sorted_clicks.pages(),
            sorted_clicks.texts(),
            sorted_clicks.names(),
            sorted_clicks.firsts(),
        )
    ]
    by_bucket = [packing.split(table, owners, buckets) for owners, table in tables]
    blobs = [packing.to_blob(of_one) for of_one in zip(*by_bucket, strict=True)]
    yield packing.pack(packing.header_of(clicks), blobs)


class _Sorted:
    """Clicks in order of bucket, visitor and second.

    Its methods make one table of the blobs each, and say which rows here its rows come from.
    """

    def __init__(self, clicks: pa.Table, buckets: int) -> None:
        visitor, second = clicks["visitor"].to_numpy(), clicks["second"].to_numpy()
        order = np.lexsort((second, visitor))
        bucket = packing.buckets_of(visitor[order], buckets)
        by_bucket = np.argsort(bucket, kind="stable")
        self._clicks, self._order = clicks, order[by_bucket]
        self.bucket = bucket[by_bucket]
        self._visitor, self._second = visitor[self._order], second[self._order]
        self._kind = clicks["kind"].to_numpy()[self._order]
        self._id = ids_of(clicks["id"])[self._order]
        self._visitor_starts = starts_of(self._visitor)
        agents = self._texts("agent", self._visitor_starts).dictionary_encode()
        declared = [declared_name(agent) is not None for agent in agents.dictionary.to_pylist()]
        self._declared = np.array(declared, bool)[agents.indices.to_numpy()]
        counts = np.diff(np.append(self._visitor_starts, len(self._visitor)))
        self._by_robot = np.repeat(self._declared, counts)

    def _texts(self, column: str, rows: Ints) -> pa.Array:
        return self._clicks[column].combine_chunks().take(pa.array(self._order[rows]))

    def seconds(self) -> tuple[Ints, pa.Table]:
        starts = starts_of(self._visitor, self._second)
        counts = (
            np.add.reduceat(marks.astype(np.int64), starts)
            for marks in (self._kind >= 0, self._kind == RESOURCE, self._kind == PAGE)
        )
        at_s = self._second[starts]
        return starts, to_table(Visits(self._visitor[starts], at_s, at_s, *counts))

    def _page_rows(self) -> Ints:
        return np.flatnonzero((self._kind == PAGE) | ((self._kind == ROBOTS_TXT) & ~self._by_robot))

    def pages(self) -> tuple[Ints, pa.Table]:
        rows = self._page_rows()
        hashes = self._clicks["page_hash"].to_numpy()[self._order[rows]]
        columns = (self._visitor[rows], self._second[rows], self._kind[rows], hashes)
        return rows, to_table(Pages(*columns, self._id[rows]))

    def texts(self) -> tuple[Ints, pa.Table]:
        rows = self._page_rows()
        hashes = self._clicks["page_hash"].to_numpy()[self._order[rows]]
        order = np.lexsort((hashes, self.bucket[rows]))
        once = order[starts_of(self.bucket[rows][order], hashes[order])]
        columns = [pa.array(hashes[once]), self._texts("page", rows[once])]
        return rows[once], pa.Table.from_arrays(columns, schema=TEXTS)

    def names(self) -> tuple[Ints, pa.Table]:
        rows = self._visitor_starts
        texts = [self._texts(name, rows) for name in ("address", "agent")]
        columns = [pa.array(self._visitor[rows]), *texts, pa.array(self._declared)]
        return rows, pa.Table.from_arrays(columns, schema=NAMES)

    def firsts(self) -> tuple[Ints, pa.Table]:
        rows = np.flatnonzero(self._by_robot)
        order = np.lexsort((self._id[rows], self._second[rows], self._visitor[rows]))
        # In order of the visitors' hashes: by bucket again, as `packing.split` sorts them.
        rows = first_of_each(rows[order], self._visitor, IDS_KEPT)
        columns: list[Any] = [self._visitor[rows], self._second[rows], self._id[rows]]
        return rows, pa.Table.from_arrays([pa.array(one) for one in columns], schema=FIRSTS)


def first_of_each(rows: Ints, group: Ints, count: int) -> Ints:
    """Of rows in order of `group[rows]` the first `count` of each group."""
    starts = starts_of(group[rows])
    lengths = np.diff(np.append(starts, len(rows)))
    return rows[np.arange(len(rows)) - np.repeat(starts, lengths) < count]


def ids_of(texts: pa.ChunkedArray) -> Any:
    """Message ids as unsigned numbers, in the order that their texts have.

    Raises:
        ValueError: one has not 16 hex digits.
    """
    array = texts.combine_chunks()
    start, end = array.offset, array.offset + len(array)
    offsets = np.frombuffer(array.buffers()[1], np.int32)[start : end + 1]
    digits = array.buffers()[2].to_pybytes()[offsets[0] : offsets[-1]]
    if (np.diff(offsets) != ID_CHARACTERS).any():
        wrong = next(one for one in array.to_pylist() if len(one) != ID_CHARACTERS)
        raise ValueError(f"column id: '{wrong}' is no message id; it must have 16 hex digits")
    return np.frombuffer(bytes.fromhex(digits.decode()), ">u8").astype(np.uint64)
