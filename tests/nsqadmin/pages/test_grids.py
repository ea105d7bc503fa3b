"""Lists: the links of their headings and pages, and invalid parameters."""

from __future__ import annotations

from typing import Any

import pytest

from sparq.daemon.http import HttpError
from sparq.nsqadmin.pages.grids import CHANNELS, Grid, grid
from sparq.nsqadmin.watch.paging import ListPage
from tests.nsqadmin.pages.test_page_request import page_request

COLUMNS = [column for column in CHANNELS if column.key in ("name", "depth")]


def listed(asked: dict[str, Any], total: int = 120, prefix: str = "", **query: str) -> Grid:
    """A page of a list of numbers; `asked` receives the parameters of the query."""

    def fetch(**wanted: Any) -> ListPage[int]:
        asked.update(wanted)
        if wanted["sort"].lstrip("-") not in ("name", "depth"):
            raise ValueError("sort must be one of name, depth")
        rows = range(total)[wanted["offset"] : wanted["offset"] + wanted["limit"]]
        return ListPage(list(rows), total, wanted["offset"], wanted["limit"])

    return grid(page_request(**query), COLUMNS, fetch, default="name", prefix=prefix)


def test_a_list_has_pages() -> None:
    """The first page has no previous link, the last no next one; links keep the parameters."""
    asked: dict[str, Any] = {}
    first, last = listed(asked, filter="x"), listed(asked, filter="x", offset="100")

    assert ("", "/admin/topics?filter=x&offset=50") == (first.previous, first.next)
    assert ("/admin/topics?filter=x&offset=50", "") == (last.previous, last.next)
    assert (1, 50, 101, 120) == (first.first, first.last, last.first, last.last)
    assert {"sort": "name", "filter": "x", "offset": 100, "limit": 50} == asked
    assert "/admin/topics" == listed(asked, offset="50").previous
    assert [True, False, False] == [is_here for _, _, is_here in first.limits]


def test_a_second_click_on_a_heading_reverses_the_order() -> None:
    """Names sort ascending first, figures descending; sorting returns to the first page."""
    heads = {column.key: (link, order) for column, link, order in listed({}, offset="50").heads}
    assert ("/admin/topics?sort=-name", "ascending") == heads["name"]
    assert ("/admin/topics?sort=-depth", "") == heads["depth"]
    turned = {column.key: (link, order) for column, link, order in listed({}, sort="-depth").heads}
    assert ("/admin/topics?sort=depth", "descending") == turned["depth"]
    assert ("/admin/topics?sort=name", "") == turned["name"]


def test_two_lists_on_a_page_have_separate_parameters() -> None:
    """The parameters of two lists on one page have different prefixes."""
    asked: dict[str, Any] = {}
    found = listed(asked, prefix="c", sort="depth", csort="-depth", coffset="50")

    assert ("-depth", 50) == (asked["sort"], asked["offset"])
    assert "/admin/topics?sort=depth&csort=-depth&coffset=100" == found.next


@pytest.mark.parametrize("query", [{"sort": "colour"}, {"limit": "1001"}, {"offset": "-1"}])
def test_invalid_parameters_are_refused(query: dict[str, str]) -> None:
    """An unknown sort key and a limit or offset out of range get 400."""
    with pytest.raises(HttpError) as error:
        listed({}, **query)
    assert 400 == error.value.status
