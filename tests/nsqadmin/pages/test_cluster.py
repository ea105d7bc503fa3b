"""Pages about the whole cluster: overview, counter, nodes, nsqlookupds, audit log."""

from __future__ import annotations

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
