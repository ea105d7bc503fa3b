"""The load for nsqd; prebuilt requests and numpy keep it cheaper than the server."""

from __future__ import annotations

import asyncio
import struct
from typing import cast

import numpy as np

MAGIC = b"  V2"
OK = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
FRAME_OVERHEAD = 34
FIN_SIZE = 21
ID = slice(18, 34)
TOPIC = "bench"


def body(size: int) -> bytes:
    """A message body of random bytes, which does not compress."""
    return np.random.default_rng(7).integers(0, 256, size, np.uint8).tobytes()


def mpub(count: int, size: int) -> bytes:
    """An MPUB with `count` equal messages."""
    message = struct.pack(">i", size) + body(size)
    bodies = struct.pack(">i", count) + message * count
    return f"MPUB {TOPIC}\n".encode() + struct.pack(">i", len(bodies)) + bodies


def pub(size: int) -> bytes:
    """A PUB of one message."""
    return f"PUB {TOPIC}\n".encode() + struct.pack(">i", size) + body(size)


class Publisher(asyncio.Protocol):
    """Keeps `window` requests unanswered until `total` are answered."""

    def __init__(self, request: bytes, total: int, window: int, reply_size: int = len(OK)) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._burst = max(1, window // 4)
        self._requests = request * self._burst
        self._request = request
        self._reply_size = reply_size
        self._to_send = total
        self._to_answer = total
        self._window = window
        self._open = 0
        self._received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Fill the window."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(MAGIC)
        self._send()

    def data_received(self, data: bytes) -> None:
        """Count replies; an error instead of an OK ends the run."""
        if b"E_" in data:
            self.done.set_exception(RuntimeError(data.decode(errors="replace")))
        self._received += len(data)
        answers, self._received = divmod(self._received, self._reply_size)
        self._open -= answers
        self._to_answer -= answers
        if self._to_answer <= 0 and not self.done.done():
            self.done.set_result(None)
        self._send()

    def _send(self) -> None:
        while self._to_send and self._open + self._burst <= self._window:
            if self._to_send >= self._burst:
                self._transport.write(self._requests)
                self._open += self._burst
                self._to_send -= self._burst
            else:
                self._transport.write(self._request * self._to_send)
                self._open += self._to_send
                self._to_send = 0


class Consumer(asyncio.Protocol):
    """Receives `total` messages of one size and finishes each on arrival."""

    def __init__(self, channel: str, size: int, total: int, ready: int) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.subscribed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._subscribe = f"SUB {TOPIC} {channel}\n".encode()
        self._ready = f"RDY {ready}\n".encode()
        self._width = size + FRAME_OVERHEAD
        self._left = total
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Subscribe; messages arrive only after `begin`."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(MAGIC + self._subscribe)

    def begin(self) -> None:
        """Open the RDY window."""
        self._transport.write(self._ready)

    def data_received(self, data: bytes) -> None:
        """Finish all complete messages in the data."""
        if not self.subscribed.done():
            if not data.startswith(OK):
                self.subscribed.set_exception(RuntimeError(data.decode(errors="replace")))
                return
            self.subscribed.set_result(None)
            data = data[len(OK) :]
        if self._rest:
            data = self._rest + data
        count = len(data) // self._width
        if count:
            self._finish(data, count)
        self._rest = data[count * self._width :]

    def _finish(self, data: bytes, count: int) -> None:
        messages = np.frombuffer(data, np.uint8, count * self._width).reshape(count, self._width)
        fins = np.empty((count, FIN_SIZE), np.uint8)
        fins[:, :4] = np.frombuffer(b"FIN ", np.uint8)
        fins[:, 4:20] = messages[:, ID]
        fins[:, 20] = ord("\n")
        self._transport.write(fins.tobytes())
        self._left -= count
        if self._left <= 0 and not self.done.done():
            self.done.set_result(None)

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()


async def publish(port: int, request: bytes, total: int, window: int, reply_size: int = 10) -> None:
    """Send `total` requests over one connection, `window` of them unanswered at a time."""
    loop = asyncio.get_running_loop()
    transport, publisher = await loop.create_connection(
        lambda: Publisher(request, total, window, reply_size), "127.0.0.1", port
    )
    try:
        await publisher.done
    finally:
        transport.close()


async def consumer(port: int, channel: str, size: int, total: int, ready: int) -> Consumer:
    """Connect a consumer and subscribe to a channel of the topic `bench`, at RDY 0."""
    loop = asyncio.get_running_loop()
    _, protocol = await loop.create_connection(
        lambda: Consumer(channel, size, total, ready), "127.0.0.1", port
    )
    await protocol.subscribed
    return protocol
