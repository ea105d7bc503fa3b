"""The bound: a uvloop server that moves the same bytes as nsqd and does nothing else.

It answers each request of `request_size` bytes with `reply_size` bytes. For deliveries, the request
is a FIN and the reply is the next message; after RDY it sends one window of messages. The
difference between nsqd's cost and this one is the cost of nsqd's own work.

Run as `python -m bench.bound PORT REQUEST_SIZE REPLY_SIZE PRIME`.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop

from bench.load import MAGIC, OK

CHUNK = 4096


class Mover(asyncio.Protocol):
    """One connection: counts the bytes it receives, and replies."""

    def __init__(self, request_size: int, reply_size: int, prime: int) -> None:
        self._request_size = request_size
        self._reply = (OK + bytes(reply_size))[:reply_size] if prime == 0 else bytes(reply_size)
        self._replies = memoryview(self._reply * CHUNK)
        self._prime = prime
        self._pending = -len(MAGIC)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Answer every complete request."""
        if self._prime:
            self._primed(data)
            return
        self._pending += len(data)
        answers, self._pending = divmod(self._pending, self._request_size)
        size = len(self._reply)
        while answers > 0:
            count = min(answers, CHUNK)
            self._transport.write(self._replies[: count * size])
            answers -= count

    def _primed(self, data: bytes) -> None:
        if data.startswith(MAGIC):
            self._transport.write(OK)
        if b"RDY" in data:
            for _ in range(self._prime):
                self._transport.write(self._reply)
            self._prime = 0
            self._pending = 0


def main() -> None:
    """Serve until killed."""
    port, request_size, reply_size, prime = map(int, sys.argv[1:5])

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: Mover(request_size, reply_size, prime), "127.0.0.1", port
        )
        print("ready", flush=True)
        await server.serve_forever()

    uvloop.run(serve())


if __name__ == "__main__":
    main()
