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
HUGE = 10**18
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


def stats(**changes: Any) -> dict[str, Any]:
    """Statistics of a node with one topic and channel and one consumer."""
    client = {"client_id": "x", "hostname": "h", "connect_ts": 1, "remote_address": "1.2.3.4:5"}
    channel = {
        **{"channel_name": "c", "depth": 1, "backend_depth": 0, "in_flight_count": 0},
        **{"deferred_count": 0, "message_count": 1, "requeue_count": 0, "timeout_count": 0},
        **{"client_count": 1, "paused": False, "clients": [client | changes.pop("client", {})]},
        **changes.pop("channel", {}),
    }
    topic = {"topic_name": TOPIC, "depth": 0, "message_count": 1, "paused": False}
    topic |= {"backend_depth": 0, "channels": [channel], **changes.pop("topic", {})}
    return {"version": "1.3.0", "health": "OK", "start_time": 1, "topics": [topic], **changes}


NOT_A_NUMBER = float("nan")
INFINITE = b"1e999"
ANSWERS: dict[str, Any] = {
    "start": stats(start_time=HUGE),
    "start before 1970": stats(start_time=-HUGE),
    "start as text": stats(start_time="now"),
    "version": stats(version=7),
    "topics": stats(topics={"a": 1}),
    "topics of numbers": stats(topics=[1, None, "x"]),
    "a huge depth": stats(channel={"depth": 10**30}),
    "depth as text": stats(channel={"depth": "many"}),
    "a negative depth": stats(channel={"depth": -HUGE}),
    "NaN": stats(channel={"oldest_waiting_seconds": NOT_A_NUMBER}, sparq_version="1"),
    "a huge age": stats(channel={"oldest_waiting_seconds": 1e300}, sparq_version="1"),
    "a negative age": stats(channel={"oldest_waiting_seconds": -1e300}, sparq_version="1"),
    "a huge connect time": stats(client={"connect_ts": HUGE}),
    "connect time as text": stats(client={"connect_ts": "now"}),
    "a client's texts": stats(client={"hostname": 7, "user_agent": ["x"], "client_id": None}),
    "latency": stats(
        channel={
            "e2e_processing_latency": {
                "count": 10**30,
                "percentiles": [{"quantile": "x", "value": 1e300}, {"quantile": 1e300}, 7],
            }
        }
    ),
    "a reader": stats(
        channel={"range_reader": "x", "range_commit_seconds": 1e300}, sparq_version="1"
    ),
    "infinite": json.dumps(stats(start_time=424242)).encode().replace(b"424242", INFINITE),
    "an infinite age": json.dumps(
        stats(channel={"oldest_waiting_seconds": 424242}, sparq_version="1")
    )
    .encode()
    .replace(b"424242", INFINITE),
    "messages": stats(messages=[{"id": 7, "index": "x"}], next=5, end_index="9" * 5000),
    "messages of numbers": stats(messages=[1, None], buckets=[{"time": 7}], to=[]),
    "times": stats(buckets=[{"time": "9999-99-99", "count": "x"}], to="x", cursor_time="x"),
    "policies": stats(policies=[7], configured={"a": 1}, flags=[], settings="x"),
    "no object": b"[]",
    "nested": b"[" * 100_000,
    "no JSON": b"\xff\x00",
    "nothing": b"",
}


FAULTY = ("start", "start as text", "topics", "NaN", "a huge age", "infinite", "no JSON", "nothing")


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
        answer = ANSWERS[name]
        fake.answer = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
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
    if name in FAULTY:
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
