"""A proxy between a client and a real nsqd that records the commands the client sends.

It forwards the bytes of both directions unchanged, and records the commands of all connections in
their order. On request it closes connections, holds back what nsqd sends, or sends bytes in nsqd's
place.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

from tests.client.scripted import close
from tests.support.servers import Server
from tests.support.waiting import until

WITH_BODY = (b"IDENTIFY", b"AUTH", b"PUB", b"MPUB", b"DPUB")
MAGIC = b"  V2"


class Commands:
    """Splits a client's bytes into the lines of its commands, without their bodies."""

    def __init__(self) -> None:
        self._buffer = b""
        self._skip = len(MAGIC)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add bytes; returns the lines that are complete now."""
        self._buffer += data
        while True:
            skipped = min(self._skip, len(self._buffer))
            self._buffer, self._skip = self._buffer[skipped:], self._skip - skipped
            line, end, rest = self._buffer.partition(b"\n")
            has_body = line.split(b" ")[0] in WITH_BODY
            if not end or (has_body and len(rest) < 4):
                return
            self._buffer = rest
            if has_body:
                self._skip = 4 + int.from_bytes(rest[:4], "big")
            yield line


class Tap:
    """A proxy for one nsqd, at `address`.

    Attributes:
        script: every command received so far, without its body.
        clients: writers to the clients that are connected now.
        muted: while true, what nsqd sends is held back.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.script: list[bytes] = []
        self.clients: list[asyncio.StreamWriter] = []
        self.muted = False
        self.address = ""

    def lines(self, *names: bytes) -> list[bytes]:
        """The commands of these names, in order."""
        return [line for line in self.script if line.split(b" ")[0] in names]

    @property
    def ready(self) -> int:
        """The last RDY count that a client sent; 0: none yet."""
        return int((self.lines(b"RDY") or [b"RDY 0"])[-1].split(b" ")[1])

    def send(self, data: bytes) -> None:
        """Send bytes to every client as if they came from nsqd."""
        for client in self.clients:
            client.write(data)

    def abort_all(self) -> None:
        """Abort every connection."""
        for client in self.clients:
            client.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one client's connection until it ends."""
        self.clients.append(writer)
        try:
            from_nsqd, to_nsqd = await asyncio.open_connection("127.0.0.1", self.server.tcp_port)
        except OSError:
            self.clients.remove(writer)
            raise
        back = asyncio.create_task(self._answer(from_nsqd, writer))
        try:
            commands = Commands()
            with contextlib.suppress(OSError):
                while data := await reader.read(1 << 16):
                    self.script.extend(commands.feed(data))
                    to_nsqd.write(data)
        finally:
            back.cancel()
            await asyncio.gather(back, return_exceptions=True)
            await close(to_nsqd)
            await close(writer)
            self.clients.remove(writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await until(lambda: not self.muted)
                writer.write(data)
        writer.transport.abort()


@contextlib.asynccontextmanager
async def tapped(*servers: Server) -> AsyncIterator[list[Tap]]:
    """Run a tap in front of each of these nsqds."""
    taps = [Tap(server) for server in servers]
    listeners = []
    for tap in taps:
        listener = await asyncio.start_server(tap.serve, "127.0.0.1", 0)
        tap.address = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        listeners.append(listener)
    try:
        yield taps
    finally:
        for listener in listeners:
            listener.close()
        for tap in taps:
            tap.abort_all()
        await until(lambda: not any(tap.clients for tap in taps))
