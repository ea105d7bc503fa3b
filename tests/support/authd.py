"""An authd for tests: returns scripted answers and records its requests."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web


def entry(
    topic: str = ".*",
    channels: tuple[str, ...] = (".*",),
    permissions: tuple[str, ...] = ("subscribe", "publish"),
) -> dict[str, Any]:
    """One authorization."""
    return {"topic": topic, "channels": list(channels), "permissions": list(permissions)}


def answer(*entries: dict[str, Any], ttl: object = 3600) -> bytes:
    """The document that an authd answers with."""
    return json.dumps(
        {
            "ttl": ttl,
            "identity": "somebody",
            "identity_url": "http://example/somebody",
            "authorizations": list(entries),
        }
    ).encode()


class Authd:
    """A running authd.

    Attributes:
        answers: the next answers, as (status, body); the last one is repeated.
        asked: (method, path, values) of each request so far.
        headers: headers of the last request.
        open: requests wait until it is set.
    """

    def __init__(self, *answers: bytes | tuple[int, bytes]) -> None:
        self.answers = [one if isinstance(one, tuple) else (200, one) for one in answers]
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.headers: dict[str, str] = {}
        self.open = asyncio.Event()
        self.open.set()
        self.port = 0

    @property
    def address(self) -> str:
        """The address as ``host:port``."""
        return f"127.0.0.1:{self.port}"

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        if request.method == "POST":
            values = {key: value for key, [value] in (await request.json()).items()}
        else:
            values = dict(request.query)
        self.headers = dict(request.headers)
        self.asked.append((request.method, request.path, values))
        await self.open.wait()
        status, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return web.Response(status=status, body=body)


@asynccontextmanager
async def running(
    *answers: bytes | tuple[int, bytes], tls: ssl.SSLContext | None = None
) -> AsyncIterator[Authd]:
    """Run an authd on a free port."""
    authd = Authd(*answers)
    runner = web.ServerRunner(web.Server(authd.handle, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    authd.port = runner.addresses[0][1]
    try:
        yield authd
    finally:
        authd.open.set()
        await runner.cleanup()
