"""Fake daemons: they send the answers that a test specifies, and record requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any


class Peer:
    """A fake daemon; `asked` has the request lines, `connections` counts all connections."""

    def __init__(self, answers: Mapping[str, bytes]) -> None:
        self.answers = dict(answers)
        self.asked: list[str] = []
        self.heads: list[str] = []
        self.connections = 0
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, target, _ = head.split("\r\n")[0].split(" ")
            self.asked.append(f"{method} {target}")
            self.heads.append(head)
            path = target.partition("?")[0]
            writer.write(self.answers.get(path, answer(b"nothing", "404 Not Found")))
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def answer(body: bytes | Any, status: str = "200 OK", *headers: str) -> bytes:
    """A complete HTTP answer; a body that is not bytes is encoded as JSON."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status}", "Connection: close", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


NSQD = {"/info": answer({"version": "1.3.0"}), "/stats": answer({"version": "1.3.0"})}
"""The answers of an nsqd that are needed to list the nodes of a fleet of given nsqds."""


def listed(*addresses: tuple[Any, Any]) -> dict[str, Any]:
    """An nsqlookupd's document about nodes with these hosts and ports, all with the topic `t`."""
    return {
        "channels": [],
        "producers": [
            {
                "remote_address": "127.0.0.1:1",
                "hostname": "h",
                "broadcast_address": host,
                "tcp_port": port,
                "http_port": port,
                "version": "1.3.0",
                "tombstones": [False],
                "topics": ["t"],
            }
            for host, port in addresses
        ],
    }


@asynccontextmanager
async def peer(answers: Mapping[str, bytes]) -> AsyncIterator[Peer]:
    """Run a fake daemon on a free loopback port; paths not in `answers` get 404."""
    found = Peer(answers)
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    async with server:
        found.port = server.sockets[0].getsockname()[1]
        yield found
