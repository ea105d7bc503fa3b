"""Packs a partition of messages into one row per bucket; `mapInArrow` runs it on an executor.

`prepared` turns parsed messages into clicks. Values that many clicks share (a page, a visitor) are
computed once per text. `blobs_of` turns the clicks into the tables of each bucket's blob, which
contain only the visitors of this bucket:

    seconds  VISITS  a row for each visitor and second: number of clicks, resources, pages
    pages    PAGES   a row for each click on a page, or on robots.txt by an undeclared visitor
    texts    TEXTS   each page of `pages` once, with its text
    names    NAMES   each visitor once
    firsts   FIRSTS  the first clicks of each visitor that declares to be a robot

Clicks that are not on pages are counted by second, and not merged into longer intervals here: which
of them are too late depends on the low mark, which is in the state and not known to an executor.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sparq.pipeline import packing
from sparq.pipeline.open_visits.rows import (
    FIRSTS,
    NAMES,
    PAGES,
    TEXTS,
    VISITS,
    Pages,
    Visits,
    starts_of,
    to_table,
)
from sparq.pipeline.packing import Ints, hashes_of
from sparq.pipeline.visits import IDS_KEPT, OTHER, PAGE, RESOURCE, ROBOTS_TXT, declared_name

# Resources that a page loads by itself, by the extension of their names.
# fmt: off
RESOURCE_ENDINGS = (
    "css", "js", "mjs", "map", "json", "png", "jpg", "jpeg", "gif", "svg", "ico", "webp", "avif",
    "bmp", "woff", "woff2", "ttf", "otf", "eot", "mp4", "webm", "mp3", "ogg", "wasm",
)
# Neither pages nor their resources: feeds and downloads.
OTHER_ENDINGS = (
    "rss", "rdf", "atom", "xml", "txt", "pdf", "zip", "gz", "tgz", "bz2", "xz", "rpm", "deb", "jar",
    "exe", "dmg", "iso",
)
# fmt: on
_ENDING = r"\.(?P<ending>[0-9A-Za-z]{2,5})$"
_FEED = r"/(?:feed|rss|atom)/?$"


def page_kinds(pages: pa.Array) -> npt.NDArray[np.int8]:
    """PAGE, RESOURCE, ROBOTS_TXT or OTHER of each page.

    Args:
        pages: paths without queries; null where the request line was broken.
    """
    endings = pc.utf8_lower(pc.struct_field(pc.extract_regex(pages, _ENDING), "ending"))
    kinds = np.full(len(pages), PAGE, np.int8)
    kinds[_marks(pc.is_in(endings, pa.array(RESOURCE_ENDINGS)))] = RESOURCE
    other = pc.is_in(endings, pa.array(OTHER_ENDINGS))
    kinds[_marks(other) | _marks(pc.match_substring_regex(pages, _FEED))] = OTHER
    kinds[_marks(pc.is_null(pages))] = OTHER
    kinds[_marks(pc.equal(pages, "/robots.txt"))] = ROBOTS_TXT
    return kinds


def _marks(marks: pa.Array) -> npt.NDArray[np.bool_]:
    """The mask as a numpy array, with null as false."""
    found: npt.NDArray[np.bool_] = pc.fill_null(marks, False).to_numpy(zero_copy_only=False)
    return found


# Columns of a parsed message for `prepared`; it also needs nsqd, id, timestamp and batch_ms.
PARSED_COLUMNS = ("time", "address", "page", "user_agent", "reason")
TEXT_CHARACTERS_MAX = 400  # of a user agent or a page: a finding must fit into a message
MICROSECONDS = 1_000_000


def prepared(messages: pa.Table) -> pa.Table:
    """The readable clicks of a table of messages, as CLICKS.

    Args:
        messages: columns nsqd STRING, id STRING, timestamp TIMESTAMP (publish time), batch_ms
            BIGINT (see `packing.PACKED_SCHEMA`) and those of PARSED_COLUMNS.
    """
    clicks = messages.filter(pc.is_null(messages["reason"])).combine_chunks()
    agents = pc.fill_null(clicks["user_agent"].combine_chunks(), "-")
    agents = pc.utf8_slice_codeunits(agents, 0, TEXT_CHARACTERS_MAX)
    addresses = pc.fill_null(clicks["address"].combine_chunks(), "-")
    visitors = pc.binary_join_element_wise(addresses, agents, "\n").dictionary_encode()
    pages = clicks["page"].combine_chunks().dictionary_encode()
    kinds = page_kinds(pages.dictionary)
    texts = pc.utf8_slice_codeunits(pages.dictionary, 0, TEXT_CHARACTERS_MAX)
    texts = pa.concat_arrays([texts, pa.array(["-"], pa.string())])  # for broken requests
    page = pc.fill_null(pages.indices, len(texts) - 1).to_numpy()
    kinds = np.append(kinds, page_kinds(pa.nulls(1, pa.string())))
    second, published_s = _seconds(clicks["time"]), _seconds(clicks["timestamp"])
    columns = [
        pa.array(hashes_of(visitors.dictionary)[visitors.indices.to_numpy()]),
        addresses,
        agents,
        pa.array(second),
        pa.array(kinds[page]),
        texts.take(pa.array(page)),
        pa.array(hashes_of(texts)[page]),
        clicks["id"].combine_chunks(),
        clicks["nsqd"].combine_chunks(),
        pa.array(np.minimum(second, published_s)),
        pa.array(published_s),
        clicks["batch_ms"].combine_chunks(),
    ]
    return pa.Table.from_arrays(columns, schema=CLICKS)


def _seconds(times: pa.ChunkedArray) -> Ints:
    seconds: Ints = times.cast(pa.int64()).to_numpy() // MICROSECONDS
    return seconds


CLICKS = pa.schema(
    [
        ("visitor", pa.int64()),  # xxhash64 of the next two texts
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


def blobs_of(clicks: pa.Table, buckets: int) -> list[bytes]:
    """One blob per bucket: the tables listed in BLOB, encoded by `packing.to_blob`.

    Args:
        clicks: the clicks of one partition and batch, columns of CLICKS, without nulls.
        buckets: the number of buckets of the query.

    Raises:
        ValueError: a message id does not have 16 hex digits.
    """
    found = _Sorted(clicks, buckets)
    made = (found.seconds(), found.pages(), found.texts(), found.names(), found.firsts())
    by_bucket = [packing.split(table, found.bucket[rows], buckets) for rows, table in made]
    return [packing.to_blob(tables) for tables in zip(*by_bucket, strict=True)]


class _Sorted:
    """Clicks ordered by bucket, visitor and second.

    Each method makes one table of the blobs, and returns with it the rows here that its rows come
    from.
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
        # Again ordered by the visitors' hashes: by bucket, as `packing.split` sorts them.
        rows = first_of_each(rows[order], self._visitor, IDS_KEPT)
        columns: list[Any] = [self._visitor[rows], self._second[rows], self._id[rows]]
        return rows, pa.Table.from_arrays([pa.array(one) for one in columns], schema=FIRSTS)


def first_of_each(rows: Ints, group: Ints, count: int) -> Ints:
    """The first `count` rows of each group; `rows` must be ordered by `group[rows]`."""
    starts = starts_of(group[rows])
    lengths = np.diff(np.append(starts, len(rows)))
    return rows[np.arange(len(rows)) - np.repeat(starts, lengths) < count]


def ids_of(texts: pa.ChunkedArray) -> Any:
    """Message ids as unsigned numbers, which sort in the order of the texts.

    Raises:
        ValueError: an id does not have 16 hex digits.
    """
    array = texts.combine_chunks()
    start, end = array.offset, array.offset + len(array)
    offsets = np.frombuffer(array.buffers()[1], np.int32)[start : end + 1]
    digits = array.buffers()[2].to_pybytes()[offsets[0] : offsets[-1]]
    if (np.diff(offsets) != ID_CHARACTERS).any():
        wrong = next(one for one in array.to_pylist() if len(one) != ID_CHARACTERS)
        raise ValueError(f"column id: '{wrong}' is not a message id: it must have 16 hex digits")
    return np.frombuffer(bytes.fromhex(digits.decode()), ">u8").astype(np.uint64)
