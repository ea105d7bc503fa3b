"""Lists: the links of their headings and pages, and invalid parameters."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from sparq.daemon.http import HttpError
from sparq.nsqadmin.pages.cluster import CHANNELS, Grid, grid
from tests.nsqadmin.pages.test_page_request import page_request

COLUMNS = [column for column in CHANNELS if column.key in ("name", "depth")]


@dataclass(frozen=True)
class Row:
    """A row of a list; its name is also the text that filters search."""

    depth: int
    name: str = "x"

    @property
    def text(self) -> str:
        return self.name


def listed(total: int = 120, prefix: str = "", **query: str) -> Grid:
    """A page of a list of rows with the depths 0, 1, ..."""
    rows = [Row(depth) for depth in range(total)]
    return grid(page_request(**query), COLUMNS, rows, default="name", prefix=prefix)


def test_a_list_has_pages() -> None:
    """The first page has no previous link, the last no next one; links keep the parameters."""
    first, last = listed(filter="x"), listed(filter="x", offset="100")

    assert ("", "/admin/topics?filter=x&offset=50") == (first.previous, first.next)
    assert ("/admin/topics?filter=x&offset=50", "") == (last.previous, last.next)
    assert (1, 50, 101, 120) == (first.first, first.last, last.first, last.last)
    assert [*range(100, 120)] == [row.depth for row in last.rows]
    assert 0 == listed(filter="y").total
    assert "/admin/topics" == listed(offset="50").previous
    assert [True, False, False] == [is_here for _, _, is_here in first.limits]


def test_a_second_click_on_a_heading_reverses_the_order() -> None:
    """Names sort ascending first, figures descending; sorting returns to the first page."""
    heads = {column.key: (link, order) for column, link, order in listed(offset="50").heads}
    assert ("/admin/topics?sort=-name", "ascending") == heads["name"]
    assert ("/admin/topics?sort=-depth", "") == heads["depth"]
    turned = {column.key: (link, order) for column, link, order in listed(sort="-depth").heads}
    assert ("/admin/topics?sort=depth", "descending") == turned["depth"]
    assert ("/admin/topics?sort=name", "") == turned["name"]


def test_two_lists_on_a_page_have_separate_parameters() -> None:
    """The parameters of two lists on one page have different prefixes."""
    found = listed(prefix="c", sort="depth", csort="-depth", coffset="50")

    assert [*range(69, 19, -1)] == [row.depth for row in found.rows]
    assert "/admin/topics?sort=depth&csort=-depth&coffset=100" == found.next


@pytest.mark.parametrize("query", [{"sort": "colour"}, {"limit": "1001"}, {"offset": "-1"}])
def test_invalid_parameters_are_refused(query: dict[str, str]) -> None:
    """An unknown sort key and a limit or offset out of range get 400."""
    with pytest.raises(HttpError) as error:
        listed(**query)
    assert 400 == error.value.status
