"""Daemons that are none: they answer what a test tells them to, and count who came."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any


class Peer:
    """What answers; `asked` holds the request lines, `connections` counts who came at all."""

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
    """An answer whole; what is no bytes becomes JSON."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status}", "Connection: close", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


NSQD = {"/info": answer({"version": "1.3.0"}), "/stats": answer({"topics": []})}
"""What an nsqd answers when a cluster of given nsqds is asked for its nodes."""


def listed(*addresses: tuple[Any, Any]) -> dict[str, Any]:
    """What an nsqlookupd says of nodes with these hosts and ports, all with the topic `t`."""
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
    """A peer on a free port of loopback; other paths are 404."""
    found = Peer(answers)
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    async with server:
        found.port = server.sockets[0].getsockname()[1]
        yield found
