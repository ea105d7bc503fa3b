"""A forwarding tool in the test's event loop, and a web server that it can send to.

``running(module, *words)`` runs the tool with a command line, and stops it as a signal does.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType

from aiohttp import web

from sparq.client import Consumer, Producer
from tests.support.servers import NsqdServer
from tests.support.tool_options import parse
from tests.support.waiting import until, until_seen

_numbers = itertools.count()


def new_topic() -> str:
    """Return a topic that no other test uses."""
    return f"forwarded_{next(_numbers)}"


@contextlib.contextmanager
def log_settings_restored() -> Iterator[None]:
    """Restore the log settings that a tool changes."""
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.raiseExceptions
    try:
        yield
    finally:
        root.handlers[:], level, logging.raiseExceptions = before
        root.setLevel(level)


@contextlib.asynccontextmanager
async def running(tool: ModuleType, *words: str) -> AsyncIterator[asyncio.Task[int]]:
    """Run the tool inside the block; then stop it and assert exit status 0."""
    # On a busy machine nsqd may be slow to accept a connection.
    options = parse(tool.Options, tool.PROGRAM, (*words, "--wait-for-nsqd=1m"))
    stop = asyncio.Event()
    with log_settings_restored():
        work = asyncio.create_task(tool.serve(options, stop))
        try:
            yield work
        finally:
            stop.set()
            assert 0 == await work


async def publish(nsqd: NsqdServer, topic: str, *bodies: bytes) -> None:
    """Publish messages in order."""
    async with Producer(nsqd.tcp) as producer:
        await producer.multi_publish(topic, bodies)


async def received(nsqd: NsqdServer, topic: str, count: int) -> list[bytes]:
    """Receive and finish `count` messages of a topic."""
    bodies = []
    async with Consumer(topic, "test", nsqd_tcp_addresses=nsqd.tcp, max_in_flight=100) as consumer:
        async with asyncio.timeout(20):
            async for message in consumer:
                await message.finish()
                bodies.append(message.body)
                if len(bodies) == count:
                    break
    return bodies


def stats(nsqd: NsqdServer, topic: str, channel: str) -> tuple[int, int, int]:
    """Return (depth, in flight, requeues) of a channel; the depth excludes deferred messages."""
    found = nsqd.channel(topic, channel)
    if not found:
        return -1, -1, -1
    return found["depth"], found["in_flight_count"], found["requeue_count"]


async def all_finished(nsqd: NsqdServer, topic: str, channel: str, count: int) -> None:
    """Wait until a channel has had at least `count` messages and none is left."""

    def is_done() -> bool:
        found = nsqd.channel(topic, channel)
        left = sum(found.get(key, 1) for key in ("depth", "in_flight_count", "deferred_count"))
        return left == 0 and found["message_count"] >= count

    await until_seen(is_done)


@dataclass
class ReceivedRequest:
    """A request that the server received."""

    method: str
    path_qs: str
    headers: dict[str, str]
    body: bytes


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class WebServer:
    """A web server that keeps its requests.

    Attributes:
        url: its root, without a slash at the end.
        status: the status of its responses.
        answer: makes the responses; without it they have only ``status``.
    """

    url: str = ""
    status: int = 200
    answer: Answer | None = None
    asked: list[ReceivedRequest] = field(default_factory=list)

    @property
    def bodies(self) -> list[bytes]:
        """The bodies of its requests."""
        return [each.body for each in self.asked]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Keep a request and answer it."""
        headers = dict(request.headers)
        body = await request.read()
        self.asked.append(ReceivedRequest(request.method, request.raw_path, headers, body))
        if self.answer is not None:
            return await self.answer(request)
        return web.Response(status=self.status)

    async def wait_for_requests(self, count: int) -> None:
        """Wait until it has had at least `count` requests."""
        await until(lambda: len(self.asked) >= count, 20)


@contextlib.asynccontextmanager
async def web_server(
    context: ssl.SSLContext | None = None, port: int = 0
) -> AsyncIterator[WebServer]:
    """Run a web server on loopback."""
    server = WebServer()
    application = web.Application(client_max_size=1 << 24)
    application.router.add_route("*", "/{path:(?s:.*)}", server.handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.01)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=context)
    await site.start()
    scheme = "http" if context is None else "https"
    server.url = f"{scheme}://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()
