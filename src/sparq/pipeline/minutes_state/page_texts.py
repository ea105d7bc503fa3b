"""The texts of pages by hash: once per bucket, in however many minutes a page was clicked.

Minutes hold pages as 64-bit hashes (`minutes`); a text is needed only if a page is one of the top
ten. So a bucket keeps each text once, in a separate table:

    page BIGINT    hash, ascending and distinct
    text STRING    the page, at most PAGE_CHARACTERS_MAX characters
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparq.pipeline.packing import Ints, Marks

PAGE_CHARACTERS_MAX = 500  # a longer page keeps its start, and a digest replaces the rest
TOP_PAGES = 10
SCHEMA = pa.schema([("page", pa.int64()), ("text", pa.string())])
TOP_TYPE = pa.list_(pa.struct([("page", pa.string()), ("clicks", pa.int64())]))


@dataclass(frozen=True, slots=True)
class PageTexts:
    """Texts of pages by hash.

    Attributes:
        pages: shape (p,), ascending and distinct.
        texts: Arrow strings, one for each page.
    """

    pages: Ints
    texts: pa.Array

    def with_more(self, parts: Sequence[PageTexts]) -> PageTexts:
        """These texts and those of the parts."""
        new = [part._where(~np.isin(part.pages, self.pages)) for part in parts]
        new = [part for part in new if len(part.pages)]
        return of_pairs([self, *new]) if new else self

    def only(self, pages: Ints) -> PageTexts:
        """The texts of these pages."""
        return self._where(np.isin(self.pages, pages))

    def of(self, pages: Ints) -> pa.Array:
        """The text of each page; all pages must be present."""
        return self.texts.take(pa.array(np.searchsorted(self.pages, pages)))

    def table(self) -> pa.Table:
        """As an Arrow table: columns of SCHEMA."""
        return pa.Table.from_arrays([pa.array(self.pages), self.texts], schema=SCHEMA)

    def _where(self, mask: Marks) -> PageTexts:
        if mask.all():
            return self
        return PageTexts(self.pages[mask], self.texts.filter(pa.array(mask)))


def from_table(table: pa.Table) -> PageTexts:
    """The texts of a table of SCHEMA."""
    return PageTexts(table["page"].to_numpy(), _combined(table["text"]))


def of_pairs(parts: Sequence[PageTexts]) -> PageTexts:
    """The texts of all parts, each hash once, ascending; the parts may be in any order."""
    pages, at = np.unique(np.concatenate([part.pages for part in parts]), return_index=True)
    return PageTexts(pages, pa.concat_arrays([part.texts for part in parts]).take(pa.array(at)))


def shortened(texts: pa.Array) -> pa.Array:
    """Cut pages of more than PAGE_CHARACTERS_MAX characters; a digest keeps them distinct."""
    long = pc.greater(pc.utf8_length(texts), PAGE_CHARACTERS_MAX)
    if not pc.any(long).as_py():
        return texts
    cut = [_cut(text) for text in texts.filter(long).to_pylist()]
    return pc.replace_with_mask(texts, long, pa.array(cut, pa.string()))


def _cut(page: str) -> str:
    digest = hashlib.sha256(page.encode()).hexdigest()[:16]
    return f"{page[: PAGE_CHARACTERS_MAX - 20]}...{digest}"


def top_pages(rows: Ints, clicks: Ints, texts: pa.Array, count: int) -> pa.Array:
    """The TOP_PAGES pages of each row by clicks, ties by text in UTF-8; of TOP_TYPE.

    Args:
        rows: the row of each page, 0 .. count - 1.
        clicks: the clicks of each page.
        texts: the text of each page; distinct within a row.
        count: the number of rows.
    """
    rank = np.empty(len(texts), np.int64)
    rank[pc.sort_indices(texts).to_numpy()] = np.arange(len(texts))
    order = np.lexsort((rank, -clicks, rows))
    ordered = rows[order]
    place = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    top = order[place < TOP_PAGES]
    ends = np.searchsorted(rows[top], np.arange(count + 1))
    pages = pa.StructArray.from_arrays(
        [texts.take(pa.array(top)), pa.array(clicks[top])], fields=list(TOP_TYPE.value_type)
    )
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pages, type=TOP_TYPE)


def candidates(rows: Ints, clicks: Ints) -> Ints:
    """Places of the pages that may be among the TOP_PAGES of their row.

    They have at least as many clicks as the last of the row's top pages. So only few texts need to
    be looked up and sorted.
    """
    order = np.lexsort((-clicks, rows))
    ordered = rows[order]
    last = np.minimum(
        np.searchsorted(ordered, ordered) + TOP_PAGES, np.searchsorted(ordered, ordered, "right")
    )
    found: Ints = order[clicks[order] >= clicks[order][last - 1]]
    return found


def _combined(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole


EMPTY = from_table(SCHEMA.empty_table())
