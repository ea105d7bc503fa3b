"""What a node says about itself is data: a faulty node is named, and all others are shown."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from yarl import URL

from tests.nsqadmin.cluster import Admin, Cluster, admin
from tests.nsqadmin.fake import FakeNode
from tests.support.waiting import until

TOPIC = "honest"
PAGES = (
    *("/", "/topics", "/topics?view=channels&sort=-lag_seconds", f"/topics/{TOPIC}"),
    *(f"/topics/{TOPIC}/c", "/nodes", "/nodes/{fake}", "/counter", "/lookup"),
    *("/messages?topic=honest", "/replay?topic=honest&channel=c", "/dead-letters", "/policies"),
    *("/api/topics", f"/api/topics/{TOPIC}", f"/api/topics/{TOPIC}/c", "/api/nodes"),
    *("/api/counter", "/api/v2/overview", "/api/v2/topics", "/api/v2/channels", "/api/v2/nodes"),
    *("/api/v2/attention", "/api/v2/clients", f"/api/v2/topics/{TOPIC}/c", "/api/v2/history"),
)


@asynccontextmanager
async def registered(lookupd: str, **facts: Any) -> AsyncIterator[None]:
    """Register a node with an nsqlookupd as long as the block runs."""
    host, _, port = lookupd.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    info = {"hostname": "evil", "tcp_port": 1, "http_port": 1, "version": "1.3.0", **facts}
    body = json.dumps(info).encode()
    writer.write(b"  V1IDENTIFY\n" + len(body).to_bytes(4, "big") + body)
    writer.write(f"REGISTER {TOPIC} c\n".encode())
    for _ in range(2):
        assert not (
            await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
        ).startswith(b"E_")
    try:
        yield
    finally:
        writer.close()
        await writer.wait_closed()


ANSWERS = {
    "topics of numbers": b'{"version":7,"topics":[1,null,"x"]}',
    "a huge start": b'{"start_time":1000000000000000000,"topics":[]}',
    "an infinite depth": b'{"topics":[{"topic_name":"honest","depth":1e999}]}',
    "messages": b'{"topics":[],"messages":[1,{"id":7}],"buckets":[{"time":7}],"next":5,"to":[]}',
    "times": b'{"topics":[],"buckets":[{"time":"9999-99-99","count":"x"}],"cursor_time":"x"}',
    "policies": b'{"topics":[],"policies":[7],"configured":{"a":1},"flags":[],"settings":"x"}',
    "nested": b"[" * 100_000,
    "no JSON": b"\xff\x00",
}
"""Answers to any request; tests/cluster/test_figures.py has every impossible figure."""


@pytest.fixture
async def by_lookupds(sparq_cluster: Cluster) -> AsyncIterator[Admin]:
    """nsqadmin of a cluster with honest nodes."""
    sparq_cluster.fill(TOPIC)
    async with admin(**sparq_cluster.modes()["lookupd"]) as found:
        yield found


async def pages_of(found: Admin, fake: str, *skipped: str) -> dict[str, str]:
    """The texts of all pages; each must be served."""
    texts = {}
    for path in PAGES:
        url = URL(found.url + path.replace("{fake}", fake), encoded=True)
        if path in skipped:
            continue
        async with found.session.get(url, headers={"Accept": "text/html"}) as answer:
            texts[path] = await answer.text()
            assert answer.status == 200, (path, texts[path])
            if "json" in answer.content_type:
                json.loads(texts[path], parse_constant=pytest.fail)
    return texts


@pytest.mark.parametrize("name", ANSWERS)
async def test_a_node_with_impossible_figures_hides_no_other(
    by_lookupds: Admin, sparq_cluster: Cluster, name: str
) -> None:
    """All pages and routes work, and show the honest nodes, whatever a node reports."""
    async with FakeNode() as fake:
        fake.answer = ANSWERS[name]
        port = int(fake.http.partition(":")[2])
        facts = {"broadcast_address": "127.0.0.1", "http_port": port, "tcp_port": port}
        async with registered(sparq_cluster.lookupds[0].tcp, **facts):

            async def is_known() -> bool:
                snapshot = await by_lookupds.daemon.services.watch.fresh()
                node = snapshot.node(fake.http)
                return node is not None and (node.answered_at is not None or bool(node.error))

            await until(is_known)
            texts = await pages_of(by_lookupds, fake.http)
    for nsqd in sparq_cluster.nsqds:
        assert nsqd.http in texts["/nodes"]
        assert nsqd.http in texts[f"/topics/{TOPIC}"]
    assert f"{fake.http} is faulty: it sends" in texts["/"]


@pytest.mark.parametrize(
    "host",
    ["[::1]", "[::1", "::1]", "[", "[]", "a b", "a/b", "a@b", "\x00", "x" * 400, "[::1]:1"],
)
async def test_a_node_with_an_impossible_address_hides_no_other(
    by_lookupds: Admin, sparq_cluster: Cluster, host: str
) -> None:
    """A registration with brackets, blanks or other nonsense for a host breaks no page."""
    async with registered(sparq_cluster.lookupds[0].tcp, broadcast_address=host, http_port=4151):
        await by_lookupds.daemon.services.watch.fresh()
        texts = await pages_of(by_lookupds, "", "/nodes/{fake}")
    for nsqd in sparq_cluster.nsqds:
        assert nsqd.http in texts["/nodes"]
