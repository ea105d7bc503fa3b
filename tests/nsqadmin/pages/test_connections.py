"""Pages of a channel's connections, and of one connection, with the button that closes it."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

from sparq.protocol.commands import pub, rdy, sub
from tests.nsqadmin.pages.conftest import Site, words
from tests.nsqd.daemon import Consumer
from tests.support.v2_client import OK
from tests.support.waiting import until

LIST = "/connections?topic=t&channel=c"


@asynccontextmanager
async def consumer(site: Site, node: int = 0) -> AsyncIterator[tuple[Consumer, str]]:
    """A consumer of t/c at a node, and the path of its page."""
    client = await Consumer.identified(site.nsqds[node], sub("t", "c"))
    host, port = client.writer.get_extra_info("sockname")[:2]
    try:
        yield client, f"/connection?topic=t&channel=c&node={site.nodes[node]}&client={host}:{port}"
    finally:
        await client.close()


def links(page: str, path: str) -> list[str]:
    """The links of a page to another one, unescaped."""
    found = re.findall(rf'href="({re.escape(path)}\?[^"]*)"', page)
    return [html.unescape(one) for one in found]


async def test_a_channels_page_leads_to_each_connection(site: Site) -> None:
    """A single connection of its kind is linked itself, several ones by their list."""
    async with consumer(site) as (_, path):

        async def has_link() -> bool:
            found = links(await site.get("/topics/t/c"), "/connection")
            return [one.replace("%3A", ":") for one in found] == [path]

        await until(has_link)
        async with consumer(site, 1) as (_, other):

            async def has_list() -> bool:
                found = links(await site.get("/topics/t/c"), "/connections")
                return found == [f"{LIST}&hostname=h&user_agent=test%2F1"]

            await until(has_list)
            for query in ("", "&hostname=h&user_agent=test%2F1", "&filter=127.0.0.1"):
                page = await site.get(LIST + query)
                assert {path, other} == {o.replace("%3A", ":") for o in links(page, "/connection")}
            assert "No consumer is connected." in words(await site.get(f"{LIST}&hostname=x"))
            assert "Nothing matches" in words(await site.get(f"{LIST}&filter=nothing"))


async def test_a_connection_has_a_page(site: Site) -> None:
    """It has the node, RDY, counts, layers and identity; only operators have the button."""
    async with consumer(site) as (client, path):
        assert await client.ask(pub("t", b"x")) == OK
        client.send(rdy(7))

        async def is_shown() -> bool:
            text = words(await site.get(path))
            return "Ready 7 messages" in text and "In flight 1 not finished" in text

        await until(is_shown)
        page = await site.get(path)
        text = words(page)
        for part in ("Delivered 1", "TLS none", "Compression none", "State subscribed"):
            assert part in text
        for part in ("Client id me", "Host h", "Program test/1", "AUTH none", "1 message to t"):
            assert part in text
        assert f'href="/nodes/{site.nodes[0]}"' in page
        assert 'id="ask-close"' in page
        assert 'id="ask-close"' in await site.get(path, token="op")
        assert 'id="ask-close"' not in await site.get(path, token="eve")


async def test_a_connection_is_closed_on_its_page(site: Site) -> None:
    """An operator closes it; the page then says so with status 404; audited with its address."""
    async with consumer(site) as (client, path):
        address = path.rpartition("=")[2]
        form = {"action": "close_client", "node": site.nodes[0], "client": address}
        form |= {"topic": "t", "channel": "c"}
        assert 403 == (await site.ask("POST", path, form, token="eve"))[0]
        assert 400 == (await site.ask("POST", path, {**form, "client": ""}))[0]
        status, text = await site.ask("POST", path, {**form, "node": "127.0.0.1:1"})
        assert (404, True) == (status, "No nsqd of this cluster" in words(text))

        status, text = await site.ask("POST", path, form, token="op")
        expected = f"Closed: {address} on {site.nodes[0]}."
        assert (200, True) == (status, expected in words(text))
        await client.end()
    status, text = await site.ask("GET", path)
    assert (404, True) == (status, "This connection is closed." in words(text))
    newest = (await site.audited())[0]
    assert ("close_client", "done", "op") == tuple(newest[n] for n in ("action", "outcome", "user"))
    assert ("t", "c", {"client": address}) == (
        newest["topic"],
        newest["channel"],
        newest["arguments"],
    )
    _, text = await site.ask("POST", path, form)
    assert "CLIENT_NOT_FOUND" in words(text)


async def test_gos_nsqd_has_no_button(site: Site) -> None:
    """Go's nsqd lists all clients and closes none: its page says so; TLS and AUTH are shown."""
    good: dict[str, Any] = {"remote_address": "192.0.2.1:5", "hostname": "web\n1", "client_id": "w"}
    good |= {"tls": True, "tls_version": "TLS1.3", "deflate": True, "state": 4}
    good |= {"tls_cipher_suite": "TLS_AES_128_GCM_SHA256", "authed": True, "sample_rate": 5}
    good |= {"auth_identity": "joe", "topology_zone": "z1", "tls_common_name": "cn"}
    channel = {"channel_name": "c", "clients": [{**good, "remote_address": "x"}, good]}
    site.fake.answer = {"version": "1.3.0", "health": "OK", "topics": [
        {"topic_name": "t", "channels": [channel, {"channel_name": "d", "clients": [good]}]}
    ]}  # fmt: skip
    await site.admin.services.watch.fresh()
    at = quote("192.0.2.1:5", safe="")
    path = f"/connection?topic=t&channel=c&node={site.fake.http}&client={at}"
    page = words(await site.get(path))

    assert "Go nsqd cannot close a connection" in page
    assert "ask-close" not in await site.get(path)
    for part in ("TLS1.3, TLS_AES_128_GCM_SHA256", "Compression deflate", "AUTH joe", "Host web 1"):
        assert part in page
    for part in ("Sampled 5 %", "Zone, region z1", "Certificate cn", "State closing its subscr"):
        assert part in page
    assert any("client=192.0.2.1" in request for request in site.fake.requests)
    site.fake.broken.add("/stats")
    status, text = await site.ask("GET", path)
    assert (502, True) == (status, site.fake.http in words(text))
    assert f"{site.fake.http} did not answer" in words(await site.get(LIST))


async def test_pages_without_a_channel_or_node_are_refused(site: Site) -> None:
    """A missing topic or channel is 400, an unknown topic or node 404."""
    for path, status in (
        ("/connections?topic=t", 400),
        ("/connection?channel=c", 400),
        ("/connections?topic=none&channel=c", 404),
        ("/connection?topic=t&channel=c&node=127.0.0.1:1&client=x", 404),
        (f"{LIST}&sort=colour", 200),
    ):
        assert status == (await site.ask("GET", path))[0], path
