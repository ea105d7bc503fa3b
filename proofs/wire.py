"""NSQ's protocol, as much of it as a witness speaks; on purpose not sparq's own client.

A witness that shared the code of what it watches would share its mistakes. Everything here raises
`ConnectionError` when the daemon is gone, in whatever way it went.
"""

import asyncio
import struct
from collections.abc import Sequence
from typing import NamedTuple

FRAME_RESPONSE, FRAME_ERROR, FRAME_MESSAGE = 0, 1, 2
HEARTBEAT = b"_heartbeat_"
OK = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
_SIZE = struct.Struct(">i")
_HEAD = struct.Struct(">ii")
_MESSAGE = struct.Struct(">qH16s")
CONNECT_SECONDS = 5


class Message(NamedTuple):
    """One delivery."""

    attempts: int
    id: bytes
    body: bytes


def pub(topic: str, body: bytes) -> bytes:
    return b"PUB %s\n" % topic.encode() + _SIZE.pack(len(body)) + body


def mpub(topic: str, bodies: Sequence[bytes]) -> bytes:
    items = b"".join(_SIZE.pack(len(body)) + body for body in bodies)
    head = b"MPUB %s\n" % topic.encode() + _SIZE.pack(len(items) + 4)
    return head + _SIZE.pack(len(bodies)) + items


def sub(topic: str, channel: str) -> bytes:
    return f"SUB {topic} {channel}\n".encode()


def message(data: bytes) -> Message:
    """What a message frame holds."""
    _, attempts, name = _MESSAGE.unpack_from(data)
    return Message(attempts, name, data[_MESSAGE.size :])


class Connection:
    """One connection to nsqd; frames come in the order in which the daemon sent them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._buffer = bytearray()

    @classmethod
    async def open(cls, address: str) -> "Connection":
        """Connect and say the protocol's magic."""
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
        except (OSError, TimeoutError) as error:
            raise ConnectionError(str(error)) from error
        connection = cls(reader, writer)
        await connection.send(b"  V2")
        return connection

    async def send(self, data: bytes) -> None:
        """Write, and wait while the daemon is behind with reading."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise ConnectionError(str(error)) from error

    async def frames(self) -> list[tuple[int, bytes]]:
        """The frames that have come, at least one; heartbeats are answered, not returned."""
        while True:
            frames = self._whole_frames()
            if frames:
                return frames
            try:
                data = await self._reader.read(1 << 18)
            except OSError as error:
                raise ConnectionError(str(error)) from error
            if not data:
                raise ConnectionError("closed by the daemon")
            self._buffer += data

    def _whole_frames(self) -> list[tuple[int, bytes]]:
        frames, start = [], 0
        while start + _HEAD.size <= len(self._buffer):
            size, kind = _HEAD.unpack_from(self._buffer, start)
            end = start + 4 + size
            if end > len(self._buffer):
                break
            data = bytes(self._buffer[start + _HEAD.size : end])
            if kind == FRAME_RESPONSE and data == HEARTBEAT:
                self._writer.write(b"NOP\n")
            else:
                frames.append((kind, data))
            start = end
        del self._buffer[:start]
        return frames

    def close(self) -> None:
        """Drop the connection, whatever is still on its way."""
        self._writer.transport.abort()
