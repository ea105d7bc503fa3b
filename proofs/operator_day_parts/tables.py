"""Reads what people read: the tables of nsqadmin's pages, and those that the programs print."""

from __future__ import annotations

import re
from html.parser import HTMLParser


class _Grid(HTMLParser):
    """The headings and rows of a page's first table.

    A row's name is the address that its first cell links to. A figure that is shortened on the page
    is written out in its cell's title.
    """

    def __init__(self) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.rows: dict[str, list[str]] = {}
        self._cells: list[str] = []
        self._link = ""
        self._has_title = self._in_cell = self._in_body = self._is_over = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._is_over:
            return
        given = dict(attrs)
        if tag == "tbody":
            self.headings, self._cells, self._in_body = self._cells, [], True
        elif tag == "tr":
            self._cells, self._link = [], ""
        elif tag in ("th", "td"):
            title = given.get("title") if self._in_body else None
            self._cells.append(title or "")
            self._has_title, self._in_cell = bool(title), True
        elif tag == "a" and self._in_cell and not self._link:
            self._link = given.get("href") or ""

    def handle_endtag(self, tag: str) -> None:
        if self._is_over:
            return
        if tag in ("th", "td"):
            self._in_cell = False
        elif tag == "tr" and self._in_body:
            self.rows[self._link] = self._cells
        elif tag == "table":
            self._is_over = True

    def handle_data(self, data: str) -> None:
        if self._in_cell and not self._has_title and not self._is_over:
            self._cells[-1] += data.strip()


def grid(page: str) -> dict[str, dict[str, str]]:
    """Return the rows of a page's first table by the address that each links to."""
    reader = _Grid()
    reader.feed(page)
    return {
        link: dict(zip(reader.headings, cells, strict=True)) for link, cells in reader.rows.items()
    }


def printed(text: str) -> list[dict[str, str]]:
    """Return the rows of a table that a program prints, by heading."""
    lines = [re.split(r" {2,}", line.strip()) for line in text.splitlines() if line.strip()]
    return [dict(zip(lines[0], row, strict=True)) for row in lines[1:]]
