"""Notifications of actions to an HTTP endpoint: their form and order, and failures."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from sparq.nsqadmin import notify
from sparq.nsqadmin.notify import basic_user
from tests.nsqadmin.cluster import Cluster, admin, free_address
from tests.support.waiting import until


@asynccontextmanager
async def endpoint(status: int = 200) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """Start an endpoint; yield its URL and the notifications that it receives."""
    received: list[dict[str, Any]] = []

    async def take(request: web.BaseRequest) -> web.Response:
        received.append(json.loads(await request.read()))
        return web.Response(status=status)

    server = web.Server(take)
    listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}/told", received
    listening.close()
    await server.shutdown(1)


async def test_a_notification_has_nsqs_fields(sparq_cluster: Cluster) -> None:
    """A notification has NSQ's fields; the user is from the header for access control."""
    sparq_cluster.fill("told")
    async with endpoint() as (url, received):
        options = {"notification_http_endpoint": url, "admin_users": ("alice",)}
        async with admin(**sparq_cluster.modes()["lookupd"], **options) as found:
            mine = {"X-Forwarded-User": "alice", "User-Agent": "me/1", "X-Scheme": "https"}
            body = {"action": "pause"}
            await found.ask("POST", "/api/topics/told/c?a=b", body, mine)
            await until(lambda: received)
            port = found.daemon.http_port
    (one,) = received
    assert abs(one.pop("timestamp") - time.time()) < 60
    assert one.pop("remote_ip").startswith("127.0.0.1")
    assert one.pop("via")
    assert {
        "action": "pause_channel",
        "topic": "told",
        "channel": "c",
        "user": "alice",
        "user_agent": "me/1",
        "url": f"https://127.0.0.1:{port}/api/topics/told/c?a=b",
    } == one


async def test_all_actions_of_nsq_are_sent_in_order(sparq_cluster: Cluster) -> None:
    """All of NSQ's actions are sent in order, except a deletion of an unknown topic."""
    sparq_cluster.fill("each")
    node = sparq_cluster.nsqds[0].http
    async with (
        endpoint() as (url, received),
        admin(**sparq_cluster.modes()["lookupd"], notification_http_endpoint=url) as found,
    ):
        for path in ("/api/topics/each", "/api/topics/each/c"):
            for action in ("pause", "unpause", "empty"):
                await found.ask("POST", path, {"action": action})
        await found.ask("POST", "/api/topics", {"topic": "each", "channel": "d"})
        await found.ask("POST", "/api/topics/nobody", {"action": "pause"})
        await found.ask("DELETE", "/api/topics/nobody")
        await found.ask("DELETE", "/api/topics/each/c")
        await found.ask("DELETE", f"/api/nodes/{node}", {"topic": "each"})
        await found.ask("DELETE", "/api/topics/each")
    expected = [
        f"{action}_{what}"
        for what in ("topic", "channel")
        for action in ("pause", "unpause", "empty")
    ]
    expected += ["create_topic", "create_channel", "pause_topic", "delete_channel"]
    assert [*expected, "tombstone_topic_producer", "delete_topic"] == [
        o["action"] for o in received
    ]
    assert node == received[-2]["node"]
    assert "user" not in received[0]


@pytest.mark.parametrize("fault", ["gone", "status"])
async def test_a_failing_endpoint_does_not_stop_nsqadmin(
    sparq_cluster: Cluster, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Actions are done and failures logged; nsqadmin continues (NSQ's process ends)."""
    sparq_cluster.fill("on")
    async with endpoint(500) as (there, _):
        url = there if fault == "status" else f"http://me:secret@{free_address()}/?k=secret"
        async with admin(
            **sparq_cluster.modes()["lookupd"], notification_http_endpoint=url
        ) as found:
            for action in ("pause", "unpause", "pause"):
                await found.done("POST", "/api/topics/on/c", {"action": action})
            await until(lambda: caplog.text.count("failed to send") == 3)
            assert (200, "OK") == await found.ask("GET", "/ping")
    assert ("status 500" if fault == "status" else "connection refused") in caplog.text
    assert "secret" not in caplog.text
    assert all(nsqd.channel("on", "c")["paused"] for nsqd in sparq_cluster.nsqds)


async def test_notifications_beyond_the_limit_are_dropped(
    sparq_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A silent endpoint delays no action; notifications beyond WAITING_MAX are dropped, logged."""
    monkeypatch.setattr(notify, "WAITING_MAX", 1)

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not reader.at_eof():
            await reader.read(1 << 16)
        writer.close()

    silent = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    sparq_cluster.fill("wait")
    options = {"notification_http_endpoint": f"http://127.0.0.1:{port}/"}
    with caplog.at_level(logging.ERROR):
        async with admin(
            **sparq_cluster.modes()["lookupd"],
            **options,
            http_client_request_timeout_ns=500_000_000,
        ) as found:
            for _ in range(4):
                await found.done("POST", "/api/topics/wait/c", {"action": "pause"})
    silent.close()
    assert ": 1 notifications are queued" in caplog.text


@pytest.mark.parametrize(
    ("header", "user"),
    [
        ("Basic YWxpY2U6c2VjcmV0", "alice"),
        ("basic YWxpY2U6", "alice"),
        ("Basic YWxpY2U=", ""),
        ("Basic ???", ""),
        ("Basic /////w==", ""),
        ("Bearer YWxpY2U6c2VjcmV0", ""),
        ("", ""),
    ],
)
def test_the_user_of_basic_auth(header: str, user: str) -> None:
    """As in NSQ, the user is read from HTTP basic auth, if access control has none."""
    assert user == basic_user(header)
