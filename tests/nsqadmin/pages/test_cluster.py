"""Pages about the whole cluster, and the lists that pages share."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

import pytest

from sparq.daemon.http import HttpError
from sparq.nsqadmin.pages.cluster import Grid, grid
from sparq.nsqadmin.pages.rendering import environment
from tests.nsqadmin.pages import test_rendering
from tests.nsqadmin.pages.conftest import Site, words
from tests.support.waiting import until


async def test_the_overview_lists_channels_with_waiting_messages(site: Site) -> None:
    """The overview lists channels with waiting messages, not idle ones."""
    await site.nsqds[0].post("/channel/create?topic=t&channel=idle")
    await site.nsqds[0].post("/channel/empty?topic=t&channel=idle")
    await site.nsqds[1].post("/mpub?topic=t", b"1\n2\n3")

    async def shows() -> bool:
        page = await site.get("/")
        return 'href="/topics/t/c"' in page and 'href="/topics/t/idle"' not in page

    await until(shows)


async def test_each_node_has_a_page(site: Site) -> None:
    """The page has the topics of the node; the page of an unknown node is a 404."""
    nodes = await site.get("/nodes")
    assert all(f'href="/nodes/{node}"' in nodes for node in (*site.nodes, site.fake.http))
    assert 'href="/topics/free"' in await site.get(f"/nodes/{site.nodes[0]}")
    assert 'href="/topics/free"' not in await site.get(f"/nodes/{site.fake.http}")
    status, result = await site.ask("GET", "/nodes/127.0.0.1:1")
    assert 404 == status
    assert "Not found" in words(result)


async def test_the_counter_counts_what_was_published(site: Site) -> None:
    """The counter sums all nodes and topics; each of its two lists can be sorted."""
    await site.nsqds[0].post("/mpub?topic=t", b"\n".join([b"x"] * 1234))

    async def counts() -> bool:
        return "1,234" in words(await site.get("/counter?sort=address&tsort=name"))

    await until(counts)
    status, _ = await site.ask("GET", "/counter?tsort=colour")
    assert 400 == status


async def test_the_audit_log_is_for_administrators(site: Site) -> None:
    """The audit page lists actions and can be filtered by topic; operators get 403."""
    await site.ask("POST", "/topics/t/c", {"action": "pause_channel"}, "op")

    shown = words(await site.get("/audit"))
    assert "pause_ channel" in shown  # a line may break there
    assert "pause_ channel" not in words(await site.get("/audit?topic=free"))
    status, _ = await site.ask("GET", "/audit", token="op")
    assert 403 == status


COLUMNS = [
    {"key": "name", "label": "Name", "kind": "text", "up": True},
    {"key": "depth", "label": "Waiting", "kind": "count"},
]


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
    return grid(test_rendering.page_request(**query), rows, default="name", prefix=prefix)


def links(found: Grid, pattern: str) -> dict[str, str]:
    """The links of a shown list that match a pattern, by its group."""
    template = '{% import "parts.html" as parts %}{{ parts.grid(found, columns, "x", 0) }}'
    shown = environment().from_string(template).render(found=found, columns=COLUMNS)
    return {
        name: html.unescape(href)
        for href, name in re.findall(rf'<a href="([^"]*)"{pattern}', shown)
    }


def test_a_list_has_pages() -> None:
    """The first page has no previous link, the last no next one; links keep the parameters."""
    first, last = listed(filter="x"), listed(filter="x", offset="100")
    to = ' rel="(prev|next)"'

    assert {"next": "/admin/topics?filter=x&offset=50"} == links(first, to)
    assert {"prev": "/admin/topics?filter=x&offset=50"} == links(last, to)
    assert [*range(100, 120)] == [row.depth for row in last.rows]
    assert 0 == listed(filter="y").total
    second = listed(offset="50")
    assert "/admin/topics" == links(second, to)["prev"]
    assert {
        "200": "/admin/topics?limit=200",
        "1,000": "/admin/topics?limit=1000",
    } == links(second, ">([0-9,]+)</a>")


def test_a_second_click_on_a_heading_reverses_the_order() -> None:
    """Names sort ascending first, figures descending; sorting returns to the first page."""
    heading = ">(Name|Waiting)</a>"
    by_name = {"Name": "/admin/topics?sort=-name", "Waiting": "/admin/topics?sort=-depth"}
    assert by_name == links(listed(offset="50"), heading)
    by_depth = {"Name": "/admin/topics?sort=name", "Waiting": "/admin/topics?sort=depth"}
    assert by_depth == links(listed(sort="-depth"), heading)


def test_two_lists_on_a_page_have_separate_parameters() -> None:
    """The parameters of two lists on one page have different prefixes."""
    found = listed(prefix="c", sort="depth", csort="-depth", coffset="50")

    assert [*range(69, 19, -1)] == [row.depth for row in found.rows]
    assert "/admin/topics?sort=depth&csort=-depth&coffset=100" == found.link(offset=100)


@pytest.mark.parametrize("query", [{"sort": "colour"}, {"limit": "1001"}, {"offset": "-1"}])
def test_invalid_parameters_are_refused(query: dict[str, str]) -> None:
    """An unknown sort key and a limit or offset out of range get 400."""
    with pytest.raises(HttpError) as error:
        listed(**query)
    assert 400 == error.value.status
