"""A scripted nsqd: a real socket that speaks the protocol just as a test tells it to.

For what a real nsqd does not do on request: answer late, refuse, hang up in mid-publish. It keeps
every command that it was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from sparq.client import Consumer, Producer
from tests.support.servers import free_port
from tests.support.waiting import until

OK = b"OK"
Answer = Callable[["Peer", list[bytes], bytes], bytes | None]


def frame(kind: int, data: bytes) -> bytes:
    """A frame as nsqd sends it."""
    return struct.pack(">ii", len(data) + 4, kind) + data


def message_frame(number: int, body: bytes, attempts: int = 1) -> bytes:
    """A message frame whose id is the number."""
    head = struct.pack(">qH16s", time.time_ns(), attempts, b"%016x" % number)
    return frame(2, head + body)


class Peer:
    """One client's connection: its commands, its RDY and what it has in flight."""

    def __init__(self, nsqd: ScriptedNsqd, reader: Any, writer: Any) -> None:
        self.nsqd, self.reader, self.writer = nsqd, reader, writer
        self.identity: dict[str, Any] = {}
        self.commands: list[bytes] = []
        self.ready = 0
        self.in_flight: set[bytes] = set()

    def send(self, kind: int, data: bytes) -> None:
        """Send a frame."""
        self.writer.write(frame(kind, data))

    def deliver(self, number: int, body: bytes = b"x", attempts: int = 1) -> None:
        """Send a message."""
        self.in_flight.add(b"%016x" % number)
        self.writer.write(message_frame(number, body, attempts))

    def hang_up(self) -> None:
        """End the connection at once, without a word."""
        self.writer.transport.abort()

    async def run(self) -> None:
        """Read commands until the client goes."""
        assert await self.reader.readexactly(4) == b"  V2"
        while line := await self.reader.readline():
            words = line.rstrip(b"\n").split(b" ")
            body = b""
            if words[0] in (b"IDENTIFY", b"PUB", b"MPUB", b"DPUB"):
                (size,) = struct.unpack(">i", await self.reader.readexactly(4))
                body = await self.reader.readexactly(size)
            self._note(words, line.rstrip(b"\n"))
            self._answer(words, body)

    def _note(self, words: list[bytes], line: bytes) -> None:
        self.commands.append(line)
        self.nsqd.script.append((self, line))
        if words[0] == b"RDY":
            self.ready = int(words[1])
        elif words[0] in (b"FIN", b"REQ"):
            self.in_flight.discard(words[1])

    def _answer(self, words: list[bytes], body: bytes) -> None:
        if words[0] == b"IDENTIFY":
            self.identity = json.loads(body)
            self.send(0, json.dumps(self.nsqd.facts).encode())
        elif words[0] == b"SUB":
            self.send(*self.nsqd.sub_answer)
        elif words[0] == b"CLS":
            self.ready = 0
            self.send(0, b"CLOSE_WAIT")
        elif words[0] in (b"PUB", b"MPUB", b"DPUB"):
            answer = self.nsqd.on_publish(self, words, body)
            if answer is not None:
                self.send(1 if answer.startswith(b"E_") else 0, answer)


class ScriptedNsqd:
    """A scripted nsqd on one port, which it keeps over ``stop`` and ``start``."""

    def __init__(self) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.peers: list[Peer] = []
        self.all_peers: list[Peer] = []
        self.script: list[tuple[Peer, bytes]] = []
        self.facts: dict[str, Any] = {"max_rdy_count": 2500, "msg_timeout": 60_000}
        self.sub_answer: tuple[int, bytes] = (0, OK)
        self.on_publish: Answer = lambda peer, words, body: OK
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def stop(self) -> None:
        """Hang up on everybody and listen no more."""
        assert self._server is not None
        self._server.close()
        for peer in list(self.peers):
            peer.hang_up()
        await until(lambda: not self.peers)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(self, reader, writer)
        self.peers.append(peer)
        self.all_peers.append(peer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await peer.run()
        peer.ready = 0
        await close(writer)
        self.peers.remove(peer)

    async def peer(self) -> Peer:
        """The first connection, once it has subscribed or, a producer's, identified."""
        await until(lambda: self.peers and self.peers[0].identity)
        return self.peers[0]

    def lines(self, *names: bytes) -> list[bytes]:
        """The commands of these names, over all connections, in order."""
        return [line for _, line in self.script if line.split(b" ")[0] in names]


async def close(writer: asyncio.StreamWriter) -> None:
    """Close for good: nothing is left for the garbage collector to complain of."""
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@contextlib.asynccontextmanager
async def listening(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """A listener that answers each connection as told, then waits for the peer to go."""
    open_count = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_count
        open_count += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await answer(reader, writer)
            await reader.read()
        await close(writer)
        open_count -= 1

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    await until(lambda: not open_count)


@contextlib.asynccontextmanager
async def scripted(count: int = 1) -> AsyncIterator[list[ScriptedNsqd]]:
    """So many scripted nsqds, listening."""
    nsqds = [ScriptedNsqd() for _ in range(count)]
    for nsqd in nsqds:
        await nsqd.start()
    try:
        yield nsqds
    finally:
        for nsqd in nsqds:
            await nsqd.stop()


def consumer_of(*nsqds: ScriptedNsqd, **options: Any) -> Consumer:
    """A consumer of these nsqds that loses no time in connecting again."""
    given = {"max_in_flight": 10, "max_reconnect_delay": 0.1, **options}
    return Consumer("t", "c", nsqd_tcp_addresses=[nsqd.address for nsqd in nsqds], **given)


async def subscribed(nsqd: ScriptedNsqd) -> Peer:
    """The consumer's connection once it may receive."""
    await until(lambda: nsqd.peers and nsqd.peers[-1].ready)
    return nsqd.peers[-1]


def producer_of(*nsqds: ScriptedNsqd, **options: Any) -> Producer:
    """A producer for these nsqds that loses no time in connecting again."""
    given = {"max_reconnect_delay": 0.1, "stop_timeout": 2.0, **options}
    return Producer([nsqd.address for nsqd in nsqds], **given)


async def connected(producer: Producer, count: int) -> None:
    """Wait until a producer has so many connections."""
    producer.start()
    await until(lambda: len(producer.connections) == count)


def storing(stored: list[bytes], answer: bytes = OK) -> Answer:
    """An answer to publishes that keeps their bodies."""

    def store(peer: Peer, words: list[bytes], body: bytes) -> bytes:
        stored.append(body)
        return answer

    return store
