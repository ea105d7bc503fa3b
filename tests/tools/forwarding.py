"""A tool that forwards, running in the test's own loop, and a web server that it may send to.

``running(module, *words)`` is the tool told by a command line; it is stopped as by a signal.
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
from sparq.tools import command_line
from tests.support.servers import NsqdServer
from tests.support.waiting import until, until_seen

_numbers = itertools.count()


def new_topic() -> str:
    """A topic that no other test has."""
    return f"forwarded_{next(_numbers)}"


@contextlib.contextmanager
def log_kept() -> Iterator[None]:
    """What a tool does to the log is undone."""
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.raiseExceptions
    try:
        yield
    finally:
        root.handlers[:], level, logging.raiseExceptions = before
        root.setLevel(level)


@contextlib.asynccontextmanager
async def running(tool: ModuleType, *words: str) -> AsyncIterator[asyncio.Task[int]]:
    """The tool at work; behind the block it is stopped, and its exit status is 0."""
    # Whoever shares a busy machine may find nsqd slow to take a connection.
    options = command_line.parse(tool.Options, tool.PROGRAM, (*words, "--wait-for-nsqd=1m"))
    stop = asyncio.Event()
    with log_kept():
        work = asyncio.create_task(tool.serve(options, stop))
        try:
            yield work
        finally:
            stop.set()
            assert 0 == await work


async def publish(nsqd: NsqdServer, topic: str, *bodies: bytes) -> None:
    """Publish these, in order."""
    async with Producer(nsqd.tcp) as producer:
        await producer.multi_publish(topic, bodies)


async def received(nsqd: NsqdServer, topic: str, count: int) -> list[bytes]:
    """So many messages of a topic, finished."""
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
    """(depth, in flight, requeues) of a channel; a deferred message is in none of the first two."""
    found = nsqd.channel(topic, channel)
    if not found:
        return -1, -1, -1
    return found["depth"], found["in_flight_count"], found["requeue_count"]


async def all_finished(nsqd: NsqdServer, topic: str, channel: str, count: int) -> None:
    """Wait until a channel has had so many messages and none is left."""

    def is_done() -> bool:
        found = nsqd.channel(topic, channel)
        left = sum(found.get(key, 1) for key in ("depth", "in_flight_count", "deferred_count"))
        return left == 0 and found["message_count"] >= count

    await until_seen(is_done)


@dataclass
class Asked:
    """A request that the server was sent."""

    method: str
    path_qs: str
    headers: dict[str, str]
    body: bytes


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class WebServer:
    """A web server that keeps what it is sent.

    Attributes:
        url: its root, without a slash at the end.
        status: what it answers with.
        answer: how it answers, if not with ``status`` alone.
    """

    url: str = ""
    status: int = 200
    answer: Answer | None = None
    asked: list[Asked] = field(default_factory=list)

    @property
    def bodies(self) -> list[bytes]:
        """The bodies that it was sent."""
        return [each.body for each in self.asked]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Keep a request, and answer it."""
        headers = dict(request.headers)
        body = await request.read()
        self.asked.append(Asked(request.method, request.raw_path, headers, body))
        if self.answer is not None:
            return await self.answer(request)
        return web.Response(status=self.status)

    async def heard(self, count: int) -> None:
        """Wait for so many requests."""
        await until(lambda: len(self.asked) >= count, 20)


@contextlib.asynccontextmanager
async def web_server(
    context: ssl.SSLContext | None = None, port: int = 0
) -> AsyncIterator[WebServer]:
    """A web server on loopback."""
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
