"""A fake daemon, for tests of nsqadmin's requests and its handling of answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiohttp import web

from tests.support.servers import free_port


class FakeNode:
    """A fake node with a settable answer, which it sends once `may_answer` is set.

    Attributes:
        missing: paths that get 404.
        broken: paths that get 500.
    """

    def __init__(self) -> None:
        self.answer: dict[str, Any] | bytes = {"version": "1.3.0", "health": "OK", "topics": []}
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.requests: list[str] = []
        self.missing: set[str] = set()
        self.broken: set[str] = set()

    async def __aenter__(self) -> FakeNode:
        async def handle(request: web.BaseRequest) -> web.Response:
            self.requests.append(request.path_qs)
            await self.may_answer.wait()
            if request.path == "/info":
                host, port = self.http.split(":")
                node = {"broadcast_address": host, "http_port": int(port), "hostname": "fake"}
                return web.json_response({**node, "version": "1.3.0", "tcp_port": 1})
            if request.path in self.missing:
                return web.json_response({"message": "NOT_FOUND"}, status=404)
            if request.path in self.broken:
                return web.json_response({"message": "INTERNAL_ERROR"}, status=500)
            body = (
                self.answer if isinstance(self.answer, bytes) else json.dumps(self.answer).encode()
            )
            return web.Response(body=body, content_type="application/json")

        self._server = web.Server(handle)
        self._runner = web.ServerRunner(self._server, shutdown_timeout=0)
        await self._runner.setup()
        self.http = f"127.0.0.1:{free_port()}"
        host, port = self.http.split(":")
        await web.TCPSite(self._runner, host, int(port)).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
