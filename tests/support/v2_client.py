"""The V2 client of the tests, proofs and benches: it sends exactly the bytes that it is given.

1. `V2Client` works on a blocking socket, `AsyncV2Client` on an asyncio stream; both read their
   frames with a `V2Stream`, and not with sparq's own code.
2. Commands come from `sparq.protocol.commands`, or are spelled out if a test sends a wrong one.
3. A connection that the other side has closed raises `Closed`, a `ConnectionError`.
4. `V2Client` skips heartbeats, and answers them only with `answers_heartbeats`. `AsyncV2Client`
   returns them from `frame`, and answers them in `frames`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from collections import deque
from typing import Any, Self

from sparq.protocol.commands import MAGIC_V2 as MAGIC
from sparq.protocol.commands import cls as close_subscription
from sparq.protocol.commands import identify, nop, rdy, sub
from tests.support.servers import NsqdServer, Server
from tests.support.v2_stream import (
    FRAME_ERROR,
    FRAME_MESSAGE,
    FRAME_RESPONSE,
    HEARTBEAT,
    Frame,
    Message,
    V2Stream,
    decode_message,
    fin_each,
)

__all__ = [
    "FRAME_ERROR",
    "FRAME_MESSAGE",
    "FRAME_RESPONSE",
    "MAGIC",
    "OK",
    "OK_BYTES",
    "AsyncV2Client",
    "Closed",
    "Message",
    "V2Client",
    "decode_message",
    "drain",
    "fin_each",
]

OK = (FRAME_RESPONSE, b"OK")
CLOSE_WAIT = (FRAME_RESPONSE, b"CLOSE_WAIT")
OK_BYTES = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
"""The frame `OK` as it is sent."""

READ_BYTES = 1 << 18
BLOCKING_SECONDS = 15.0
ASYNC_SECONDS = 30.0
CONNECT_SECONDS = 5.0
"""Connect timeout of clients that wait without limit once they are connected."""
QUIET_SECONDS = 0.1


class Closed(ConnectionError):
    """The other side has closed the connection, or the connection was never made."""


class V2Client:
    """One connection over a blocking socket; every wait has a time limit.

    Answers and messages arrive interleaved: a call that waits for one kind keeps the other for
    later.

    Args:
        to: the daemon, or a port of this machine, or a connected socket.
        greeting: the first bytes to send.
        seconds: how long to wait for each piece of data.
        answers_heartbeats: whether to answer a heartbeat when it is read.
    """

    def __init__(
        self,
        to: Server | int | socket.socket,
        greeting: bytes = MAGIC,
        *,
        seconds: float = BLOCKING_SECONDS,
        answers_heartbeats: bool = False,
    ) -> None:
        if not isinstance(to, socket.socket):
            port = to if isinstance(to, int) else to.tcp_port
            to = socket.create_connection(("127.0.0.1", port), timeout=seconds)
            to.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = to
        self._stream = V2Stream()
        self._kept: deque[Frame] = deque()
        self._answers_heartbeats = answers_heartbeats
        try:
            self.send(greeting)
        except OSError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send all bytes."""
        self.socket.sendall(data)

    # Frames

    def ask(self, data: bytes) -> Frame:
        """Send commands and return the next frame that is not a message."""
        self.send(data)
        return self._next(is_message=False)

    def frame(self) -> Frame:
        """Return the next frame."""
        return self._kept.popleft() if self._kept else self._read_frame()

    def messages(self, count: int) -> list[Message]:
        """Return the next `count` messages."""
        return [decode_message(self._next(is_message=True)[1]) for _ in range(count)]

    def messages_within(self, seconds: float) -> list[Message]:
        """Return the received messages, or those that arrive first within the time, or none."""
        usual = self.socket.gettimeout()
        self.socket.settimeout(seconds)
        try:
            found = self.messages(1)
        except TimeoutError:
            return []
        finally:
            self.socket.settimeout(usual)
        self._kept += [frame for frame in self._stream.frames() if frame[1] != HEARTBEAT]
        waiting = sum(kind == FRAME_MESSAGE for kind, _ in self._kept)
        return found + self.messages(waiting)

    def _next(self, *, is_message: bool) -> Frame:
        for at, frame in enumerate(self._kept):
            if (frame[0] == FRAME_MESSAGE) is is_message:
                del self._kept[at]
                return frame
        while True:
            frame = self._read_frame()
            if (frame[0] == FRAME_MESSAGE) is is_message:
                return frame
            self._kept.append(frame)

    def _read_frame(self) -> Frame:
        while True:
            frame = self._stream.frame()
            if frame is None:
                data = self.socket.recv(READ_BYTES)
                if not data:
                    raise Closed("nsqd closed the connection")
                self._stream.feed(data)
            elif frame[1] != HEARTBEAT:
                return frame
            elif self._answers_heartbeats:
                self.send(nop())

    # Bytes

    def receive(self, size: int) -> bytes:
        """Return `size` bytes, or fewer if the connection ends before."""
        while len(self._stream.plain) < size and (data := self.socket.recv(READ_BYTES)):
            self._stream.feed(data)
        return self._stream.take(size)

    def rest(self) -> bytes:
        """Return all bytes up to the end of the connection."""
        data = self._stream.take(len(self._stream.plain))
        while more := self.socket.recv(READ_BYTES):
            data += more
        return data

    def is_open(self) -> bool:
        """Whether the other side has not closed yet; drops received bytes."""
        self.socket.setblocking(False)
        try:
            while self.socket.recv(READ_BYTES):
                pass
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False


def drain(server: NsqdServer, topic: str, channel: str) -> list[bytes]:
    """Finish all messages of a channel until it is empty; return their bodies."""
    bodies: list[bytes] = []
    waiting = ("depth", "in_flight_count", "deferred_count")
    with V2Client(server) as client:
        assert client.ask(sub(topic, channel)) == OK
        client.send(rdy(500))
        while True:
            found = client.messages_within(QUIET_SECONDS)
            client.send(fin_each(found))
            bodies += [one.body for one in found]
            if not found:
                figures = server.channel(topic, channel)
                if not sum(figures[name] for name in waiting):
                    assert client.ask(close_subscription()) == CLOSE_WAIT
                    return bodies


class AsyncV2Client:
    """One connection over an asyncio stream.

    Attributes:
        reader, writer: the stream.
        stream: the layers and the received bytes.
        seconds: how long to wait for each piece of data; None: no limit.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        seconds: float | None = ASYNC_SECONDS,
    ) -> None:
        self.reader, self.writer = reader, writer
        self.stream = V2Stream()
        self.seconds = seconds

    @classmethod
    async def connect(
        cls,
        address: str,
        greeting: bytes = MAGIC,
        *,
        seconds: float | None = ASYNC_SECONDS,
        limit: int = 1 << 16,
    ) -> Self:
        """Connect to ``host:port`` or to the path of a unix socket, and send the first bytes.

        Raises:
            Closed: the connection was refused or timed out.
        """
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(CONNECT_SECONDS if seconds is None else seconds):
                if host:
                    at = host.strip("[]"), int(port)
                    reader, writer = await asyncio.open_connection(*at, limit=limit)
                else:
                    reader, writer = await asyncio.open_unix_connection(address, limit=limit)
        except (OSError, TimeoutError) as error:
            raise Closed(str(error)) from error
        client = cls(reader, writer, seconds=seconds)
        client.send(greeting)
        return client

    def send(self, data: bytes) -> None:
        """Send through all layers, without waiting."""
        self.writer.write(self.stream.seal(data))

    async def send_all(self, data: bytes) -> None:
        """Send, and wait while the other side reads slowly."""
        try:
            self.send(data)
            await self.writer.drain()
        except OSError as error:
            raise Closed(str(error)) from error

    async def read(self) -> bytes:
        """Return the next bytes from the socket; raises TimeoutError if none arrive in time."""
        deadline = asyncio.timeout(self.seconds)
        try:
            async with deadline:
                data = await self.reader.read(READ_BYTES)
        except OSError as error:
            if deadline.expired():
                raise
            raise Closed(str(error)) from error
        if not data:
            raise Closed("nsqd closed the connection")
        return data

    def abort(self) -> None:
        """Drop the connection and all unsent data."""
        self.writer.transport.abort()

    async def close(self) -> None:
        """Send the remaining data, and close the connection."""
        self.writer.close()
        await self.writer.wait_closed()

    # Frames

    async def exactly(self, size: int) -> bytes:
        """Return `size` bytes, decoded by all layers."""
        while len(self.stream.plain) < size:
            self.stream.feed(await self.read())
        return self.stream.take(size)

    async def rest(self) -> bytes:
        """Return all bytes up to the end of the connection, which must not be a reset."""
        async with asyncio.timeout(self.seconds):
            self.stream.feed(await self.reader.read())
        return self.stream.take(len(self.stream.plain))

    async def frame(self) -> Frame:
        """Return the next frame."""
        while (found := self.stream.frame()) is None:
            self.stream.feed(await self.read())
        return found

    async def frames(self) -> list[Frame]:
        """Return the received frames, at least one; heartbeats are answered and left out."""
        while True:
            frames = self.stream.frames()
            found = [frame for frame in frames if frame != (FRAME_RESPONSE, HEARTBEAT)]
            if len(found) < len(frames):
                self.send(nop() * (len(frames) - len(found)))
            if found:
                return found
            self.stream.feed(await self.read())

    async def ask(self, *commands: bytes) -> Frame:
        """Send commands and return the next frame."""
        self.send(b"".join(commands))
        return await self.frame()

    async def response(self) -> bytes:
        """Return the data of the next frame, which must be a response."""
        kind, data = await self.frame()
        assert kind == FRAME_RESPONSE, data
        return data

    async def error(self) -> bytes:
        """Return the text of the next frame, which must be an error that ends the connection."""
        kind, data = await self.frame()
        assert kind == FRAME_ERROR, data
        await self.end()
        return data

    async def end(self) -> None:
        """Wait for the end of the connection; no bytes may precede it."""
        with contextlib.suppress(Closed):
            while True:
                assert not self.stream.plain, self.stream.plain
                self.stream.feed(await self.read())

    # Upgrades

    async def identify(self, **asked: Any) -> dict[str, Any]:
        """Send IDENTIFY with feature negotiation; return the answer."""
        self.send(identify(json.dumps({"feature_negotiation": True, **asked}).encode()))
        found: dict[str, Any] = json.loads(await self.response())
        return found

    async def shake_hands(self, context: ssl.SSLContext) -> None:
        """Do the TLS handshake; nsqd sends nothing before the client's hello."""
        assert not self.stream.plain
        self.writer.write(self.stream.begin_tls(context))
        while self.stream.is_shaking_hands:
            self.writer.write(self.stream.shake_hands(await self.read()))

    async def upgrade(
        self, context: ssl.SSLContext | None = None, compression: str = "", **asked: Any
    ) -> dict[str, Any]:
        """Send IDENTIFY, add the agreed layers, and read the OK after each; return the answer."""
        if context is not None:
            asked["tls_v1"] = True
        if compression:
            asked[compression] = True
        reply = await self.identify(**asked)
        if context is not None:
            assert reply["tls_v1"] is True
            await self.shake_hands(context)
            assert await self.response() == b"OK"
        if compression:
            assert reply[compression] is True
            self.stream.begin_compression(compression)
            assert await self.response() == b"OK"
        return reply
