"""A-3: over HTTP only POST, PUT and DELETE change state, and only with the token, if one is set."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sparq.daemon.http import Route
from sparq.nsqd.http import NsqdEndpoints
from sparq.nsqlookupd.http import NsqlookupdEndpoints
from sparq.nsqlookupd.options import NsqlookupdOptions
from sparq.nsqlookupd.server import Nsqlookupd
from sparq.nsqlookupd.tcp import instant
from sparq.protocol.frames import BodySlices
from tests.nsqd.daemon import start, stop
from tests.support.options import changed

TOKEN = "s3cr3t-T0ken.~+/"
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE")


class RunningDaemon(NamedTuple):
    """A daemon: its routes, its HTTP port, and functions.

    They return its state as text, and read its token file again.
    """

    routes: list[Route]
    port: int
    state: Callable[[], Awaitable[str]]
    reload: Callable[[], object]

    @property
    def changing(self) -> list[Route]:
        """The routes that change state."""
        return [route for route in self.routes if route.method != "GET"]


async def ask(
    running: RunningDaemon, method: str, target: str, headers: list[str], body: bytes = b""
) -> int:
    """Send one raw request; return the status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    lines = [f"{method} {target} HTTP/1.1", "Host: x", "Connection: close", *headers]
    lines.append(f"Content-Length: {len(body)}\r\n\r\n")
    writer.write("\r\n".join(lines).encode() + body)
    async with asyncio.timeout(60):
        head = await reader.readline()
        await reader.read()
    writer.close()
    return int(head.split()[1])


def target_of(route: Route) -> str:
    """Return the route's URL with arguments that would have an effect."""
    path = route.path.replace(":opt", "log_level")
    return f"{path}?topic=t&channel=c&node=n:1&to=earliest&rate=0&seconds=0.01&token={TOKEN}"


def body_of(route: Route) -> bytes:
    """Return a valid body for the route."""
    if route.path == "/policies":
        return b'{"policies": [{"topic": "t", "max_channels": 9}]}'
    return b"debug" if route.path.startswith("/config") else b"x"


@asynccontextmanager
async def nsqd(folder: Path, **options: Any) -> AsyncIterator[RunningDaemon]:
    """Run an nsqd with a topic that holds messages."""
    daemon = await start(folder, **options)
    broker = daemon.nsqd.broker

    async def state() -> str:
        topics = []
        for name, topic in sorted(broker.topics.items()):
            channels = [(c.name, c.cursor, c.paused) for c in topic.channels.values()]
            counted = topic.counts.message_count
            topics.append((name, counted, topic.stream.end, topic.paused, channels))
        return repr((topics, daemon.nsqd.options, broker.policies))

    try:
        broker.create_topic("t", instant())
        broker.create_channel("t", "c", instant())
        await daemon.nsqd.publish("t", BodySlices.of([b"1", b"2"]))
        await daemon.nsqd.turns.wait_until_durable()
        routes = NsqdEndpoints(daemon.nsqd, daemon.reloader).routes()
        yield RunningDaemon(routes, daemon.http.port, state, daemon.reloader.reload)
    finally:
        await stop(daemon)


@asynccontextmanager
async def nsqlookupd(_folder: Path, **options: Any) -> AsyncIterator[RunningDaemon]:
    """Run an nsqlookupd with a topic and a channel."""
    free = {"tcp_address": "127.0.0.1:0", "http_address": "127.0.0.1:0"}
    made = changed(NsqlookupdOptions(), **{**free, **options})
    daemon = Nsqlookupd(made)
    await daemon.start()
    registry = daemon.registry
    registry.create_channel("t", "c")

    async def state() -> str:
        return repr(list(registry.registrations()))

    def reload() -> None:
        if daemon.access is not None:
            daemon.access.reload()

    endpoints = NsqlookupdEndpoints(registry, instant, debug_routes=made.http.debug_routes)
    try:
        yield RunningDaemon(endpoints.routes(), daemon.http_port, state, reload)
    finally:
        await daemon.stop()


DAEMONS = pytest.mark.parametrize("daemon", [nsqd, nsqlookupd])


@DAEMONS
async def test_other_methods_change_nothing(daemon: Any, tmp_path: Path) -> None:
    """A route that changes state accepts only its own method, as in NSQ; others get 405."""
    async with daemon(tmp_path) as running:
        before = await running.state()
        known = {(route.method, route.path) for route in running.routes}
        for route in running.changing:
            for method in METHODS:
                if (method, route.path) in known:
                    continue
                override = ["X-HTTP-Method-Override: POST"]
                target = f"{target_of(route)}&_method=POST"
                status = await ask(running, method, target, override, body_of(route))
                assert status in (200, 405) if method == "OPTIONS" else status == 405
        assert before == await running.state()
        assert all(route.method in ("POST", "PUT", "DELETE") for route in running.changing)


async def test_each_publish_on_a_connection_needs_the_token(tmp_path: Path) -> None:
    """On one connection, each publish needs the token itself: a previous one does not count."""
    async with nsqd(tmp_path, http_token=TOKEN) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        for headers in ("", f"Authorization: Bearer {TOKEN}\r\n", ""):
            head = f"POST /pub?topic=new HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: 1\r\n\r\nx"
            writer.write(head.encode())
        writer.write(b"GET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(60):
            text = (await reader.read()).decode()
        writer.close()
        statuses = [int(part[:3]) for part in text.split("HTTP/1.1 ")[1:]]
        assert [401, 200, 401, 200] == statuses
        assert json.dumps({"message": "UNAUTHORIZED"}, separators=(",", ":")) in text
        assert "WWW-Authenticate: Bearer" in text
        assert "('new', 1, " in await running.state()
