"""A tap on the wire between a client and a real nsqd: what the client says, as nsqd reads it.

It carries bytes both ways unchanged and keeps the client's commands in their order, over all
connections. On request it hangs up, holds back what nsqd says, or says something in nsqd's place.
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
    """Cuts a client's bytes into the lines of its commands; bodies are left out."""

    def __init__(self) -> None:
        self._buffer = b""
        self._skip = len(MAGIC)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The lines that are complete now."""
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
    """Stands before one nsqd, at `address`.

    Attributes:
        script: every command that has come, without its body.
        clients: what leads to the clients that are connected now.
        muted: what nsqd says is held back while this is set.
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
        """The RDY count that was sent last; 0 before the first."""
        return int((self.lines(b"RDY") or [b"RDY 0"])[-1].split(b" ")[1])

    def say(self, data: bytes) -> None:
        """Send bytes to every client as if nsqd did."""
        for client in self.clients:
            client.write(data)

    def hang_up(self) -> None:
        """End every connection, without a word to either side."""
        for client in self.clients:
            client.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client's connection, to its end."""
        from_nsqd, to_nsqd = await asyncio.open_connection("127.0.0.1", self.server.tcp_port)
        self.clients.append(writer)
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
    """A tap before each of these nsqds."""
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
            tap.hang_up()
        await until(lambda: not any(tap.clients for tap in taps))
