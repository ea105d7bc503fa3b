"""The drain of a node on its page: administrators' buttons, the state, the notice."""

from __future__ import annotations

import asyncio

from tests.nsqadmin.pages.conftest import Site, words
from tests.support.stubborn_client import StubbornClient
from tests.support.waiting import until


async def test_a_node_is_drained_on_its_page(site: Site) -> None:
    """The form drains the node; its page and the list show it, and the overview has a notice."""
    node = site.nodes[0]
    page = f"/nodes/{node}"
    before = await site.get(page)
    assert "Drain…" in before
    assert "State draining" not in words(before)
    status, result = await site.ask("POST", page, {"action": "drain_node", "exit": "true"})
    assert (200, True) == (status, f"Draining: {node}" in words(result))
    assert site.nsqds[0].nsqd.broker.drains.now.node is not None
    assert site.nsqds[0].nsqd.broker.drains.now.node.exit

    async def says() -> bool:
        return "State draining refuses publishes" in words(await site.get(page))

    await until(says)
    assert "draining" in words(await site.get("/nodes"))
    assert f"{node} is draining; 0 messages wait." in words(await site.get("/"))
    status, result = await site.ask("POST", page, {"action": "undrain_node"})
    assert (200, True) == (status, f"Taking publishes again: {node}" in words(result))
    assert site.nsqds[0].nsqd.broker.drains.now.node is None
    entries = await site.audited()
    assert ["undrain_node", "drain_node"] == [entry["action"] for entry in entries]


async def test_only_administrators_may_drain(site: Site) -> None:
    """Operators have no drain button, and their request gets 403."""
    page = f"/nodes/{site.nodes[0]}"
    assert "Drain…" not in await site.get(page, token="op")
    status, _ = await site.ask("POST", page, {"action": "drain_node"}, token="op")
    assert 403 == status
    assert site.nsqds[0].nsqd.broker.drains.now.node is None


async def test_gos_nsqd_has_no_drain(site: Site) -> None:
    """Draining a Go nsqd shows a notice that it does not support this action."""
    site.fake.missing = {"/policies", "/drain"}
    page = f"/nodes/{site.fake.http}"
    status, result = await site.ask("POST", page, {"action": "drain_node"})
    assert 200 == status
    assert "this is NSQ's Go nsqd, which does not support this action" in words(result)


async def test_a_deleted_topic_that_comes_back_is_shown_with_its_clients(site: Site) -> None:
    """A client that subscribes again at once creates the topic again: the notice names it."""
    nsqd = site.nsqds[0]
    client = StubbornClient(nsqd.listeners.tcp.port, "grave", "c")
    await asyncio.to_thread(client.__enter__)
    try:
        form = {"action": "delete_topic", "typed": "grave"}
        status, result = await site.ask("POST", "/topics/grave", form)
    finally:
        await asyncio.to_thread(client.__exit__)
    assert 200 == status
    text = words(result)
    assert (
        f"Deleted: grave on {site.nodes[0]}, but it is back. Stop the clients that use it" in text
    )
    assert f"{site.nodes[0]}: it is back: attached to it: 127.0.0.1:" in text
    assert "(client id stubborn, user agent raw/1, channel c)" in text
    assert "partly" == (await site.audited())[0]["outcome"]
