"""The V2 client of the tests, proofs and benches: it sends exactly the bytes that it is given.

1. `V2Client` works on a blocking socket, `AsyncV2Client` on a stream of asyncio; both read their
   frames by a `V2Stream`, and not with sparq's own code.
2. Commands come from `sparq.protocol.commands`, or are written out where a test sends a wrong one.
3. A connection that the other side has closed raises `Closed`, a `ConnectionError`.
4. The blocking client skips heartbeats, and answers them only where it is told to. The other one
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
"""For clients that wait forever once they are connected."""
QUIET_SECONDS = 0.1


class Closed(ConnectionError):
    """The other side has closed the connection, or there never was one."""


class V2Client:
    """One connection over a blocking socket; every wait ends after a time.

    Answers and messages come mixed: a call that waits for one kind keeps the other for later.

    Args:
        to: the daemon, or a port of this machine, or a socket that is connected already.
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
        """Send all of it."""
        self.socket.sendall(data)

    # Frames

    def ask(self, data: bytes) -> Frame:
        """Send commands and return the next frame that is no message."""
        self.send(data)
        return self._next(is_message=False)

    def frame(self) -> Frame:
        """The next frame."""
        return self._kept.popleft() if self._kept else self._read_frame()

    def messages(self, count: int) -> list[Message]:
        """The next messages, this many."""
        return [decode_message(self._next(is_message=True)[1]) for _ in range(count)]

    def messages_within(self, seconds: float) -> list[Message]:
        """The messages that have come, or come first within this time; none: an empty list."""
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
        """Exactly this many bytes, or those that came before the end of the connection."""
        while len(self._stream.plain) < size and (data := self.socket.recv(READ_BYTES)):
            self._stream.feed(data)
        return self._stream.take(size)

    def receive_some(self) -> bytes:
        """The bytes that have come after the last frame, or those that come next."""
        return self._stream.take(len(self._stream.plain)) or self.socket.recv(READ_BYTES)

    def rest(self) -> bytes:
        """All bytes up to the end of the connection."""
        data = self._stream.take(len(self._stream.plain))
        while more := self.socket.recv(READ_BYTES):
            data += more
        return data

    def is_open(self) -> bool:
        """Whether the other side has not closed yet; drops what it has sent."""
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
    """The bodies of all messages of a channel, each finished, until it has no more."""
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
    """One connection over a stream of asyncio.

    Attributes:
        reader, writer: the stream.
        stream: the layers and the bytes that have come.
        seconds: how long to wait for each piece of data; None: forever.
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
            Closed: there is no connection after some seconds.
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
        """Send, and wait while the other side is slow to read."""
        try:
            self.send(data)
            await self.writer.drain()
        except OSError as error:
            raise Closed(str(error)) from error

    async def read(self) -> bytes:
        """The bytes that come next from the socket; raises TimeoutError when none do."""
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
        """Drop the connection, and all that is on its way."""
        self.writer.transport.abort()

    async def close(self) -> None:
        """Send what is left, and close the connection."""
        self.writer.close()
        await self.writer.wait_closed()

    # Frames

    async def exactly(self, size: int) -> bytes:
        """This many bytes, out of all layers."""
        while len(self.stream.plain) < size:
            self.stream.feed(await self.read())
        return self.stream.take(size)

    async def rest(self) -> bytes:
        """All bytes up to the end of the connection, which must not be a reset."""
        async with asyncio.timeout(self.seconds):
            self.stream.feed(await self.reader.read())
        return self.stream.take(len(self.stream.plain))

    async def frame(self) -> Frame:
        """The next frame."""
        while (found := self.stream.frame()) is None:
            self.stream.feed(await self.read())
        return found

    async def frames(self) -> list[Frame]:
        """The frames that have come, at least one; answers heartbeats and leaves them out."""
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
        """The data of the next frame, which is a response."""
        kind, data = await self.frame()
        assert kind == FRAME_RESPONSE, data
        return data

    async def error(self) -> bytes:
        """The text of the next frame, an error after which the connection ends."""
        kind, data = await self.frame()
        assert kind == FRAME_ERROR, data
        await self.end()
        return data

    async def end(self) -> None:
        """Wait for the end; nothing may come before it."""
        with contextlib.suppress(Closed):
            while True:
                assert not self.stream.plain, self.stream.plain
                self.stream.feed(await self.read())

    # Upgrades

    async def identify(self, **asked: Any) -> dict[str, Any]:
        """IDENTIFY with feature negotiation; the answer."""
        self.send(identify(json.dumps({"feature_negotiation": True, **asked}).encode()))
        found: dict[str, Any] = json.loads(await self.response())
        return found

    async def shake_hands(self, context: ssl.SSLContext) -> None:
        """Begin TLS; nsqd sends nothing before the client's hello."""
        assert not self.stream.plain
        self.writer.write(self.stream.begin_tls(context))
        while self.stream.is_shaking_hands:
            self.writer.write(self.stream.shake_hands(await self.read()))

    async def upgrade(
        self, context: ssl.SSLContext | None = None, compression: str = "", **asked: Any
    ) -> dict[str, Any]:
        """IDENTIFY, then all layers that were agreed, with the OK after each; the answer."""
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
