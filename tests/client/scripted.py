"""A scripted nsqd: a real socket that speaks the protocol as a test specifies.

It does what a real nsqd does not do on request: answer late, refuse, or disconnect during a
publish. It records every command that it receives.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from sparq.client import Consumer, Producer
from sparq.client.connection import Connection
from tests.support.servers import free_port
from tests.support.waiting import until

OK = b"OK"
Answer = Callable[["Peer", list[bytes], bytes], bytes | None]


def frame(kind: int, data: bytes) -> bytes:
    """A frame as nsqd sends it."""
    return struct.pack(">ii", len(data) + 4, kind) + data


def message_frame(number: int, body: bytes, attempts: int = 1) -> bytes:
    """A message frame; the message id is `number` in hex."""
    head = struct.pack(">qH16s", time.time_ns(), attempts, b"%016x" % number)
    return frame(2, head + body)


class Peer:
    """One client's connection: its commands, its RDY and its messages in flight."""

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
        """Abort the connection without a close sequence."""
        self.writer.transport.abort()

    async def run(self) -> None:
        """Read commands until the client disconnects."""
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
    """A scripted nsqd on one port, which stays the same after ``stop`` and ``start``."""

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
        """Stop listening and abort all connections."""
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
        """Return the first open connection, once it has sent IDENTIFY."""
        await until(lambda: self.peers and self.peers[0].identity)
        return self.peers[0]

    def lines(self, *names: bytes) -> list[bytes]:
        """Return the commands with these names from all connections, in order."""
        return [line for _, line in self.script if line.split(b" ")[0] in names]


class RecordingTransport:
    """A transport that records what is written to it."""

    def __init__(self, transport: Any, writes: list[bytes] | None = None) -> None:
        self.writes: list[bytes] = [] if writes is None else writes
        self._transport = transport

    def write(self, data: bytes) -> None:
        """Record and write."""
        self.writes.append(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def record_writes(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return a list that gets each write of the client's connections made from now on."""
    writes: list[bytes] = []
    made = Connection.connection_made

    def connection_made(connection: Connection, transport: asyncio.BaseTransport) -> None:
        recording: Any = RecordingTransport(transport, writes)
        made(connection, recording)

    monkeypatch.setattr(Connection, "connection_made", connection_made)
    return writes


async def close(writer: asyncio.StreamWriter) -> None:
    """Abort and wait until it is closed, so that garbage collection causes no ResourceWarning."""
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@contextlib.asynccontextmanager
async def listening(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], **tls: Any
) -> AsyncIterator[str]:
    """A listener that calls `answer` for each connection, then waits until the peer disconnects."""
    open_count = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_count
        open_count += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await answer(reader, writer)
            await reader.read()
        await close(writer)
        open_count -= 1

    server = await asyncio.start_server(serve, "127.0.0.1", 0, **tls)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    await until(lambda: not open_count)


@contextlib.asynccontextmanager
async def scripted(count: int = 1) -> AsyncIterator[list[ScriptedNsqd]]:
    """Run `count` scripted nsqds."""
    nsqds = [ScriptedNsqd() for _ in range(count)]
    for nsqd in nsqds:
        await nsqd.start()
    try:
        yield nsqds
    finally:
        for nsqd in nsqds:
            await nsqd.stop()


def consumer_of(*nsqds: ScriptedNsqd, **options: Any) -> Consumer:
    """A consumer of these nsqds that reconnects within 0.1 s."""
    given = {"max_in_flight": 10, "max_reconnect_delay": 0.1, **options}
    return Consumer("t", "c", nsqd_tcp_addresses=[nsqd.address for nsqd in nsqds], **given)


async def subscribed(nsqd: ScriptedNsqd) -> Peer:
    """Return the consumer's connection once its RDY is above 0."""
    await until(lambda: nsqd.peers and nsqd.peers[-1].ready)
    return nsqd.peers[-1]


@contextlib.asynccontextmanager
async def consuming(**options: Any) -> AsyncIterator[tuple[ScriptedNsqd, Peer, Consumer]]:
    """A scripted nsqd, its connection to a consumer, and the consumer."""
    async with scripted() as [nsqd], consumer_of(nsqd, **options) as consumer:
        yield nsqd, await subscribed(nsqd), consumer


def producer_of(*nsqds: ScriptedNsqd, **options: Any) -> Producer:
    """A producer for these nsqds that reconnects within 0.1 s."""
    given = {"max_reconnect_delay": 0.1, "stop_timeout": 2.0, **options}
    return Producer([nsqd.address for nsqd in nsqds], **given)


async def connected(producer: Producer, count: int) -> None:
    """Start a producer and wait until it has `count` connections."""
    producer.start()
    await until(lambda: len(producer.connections) == count)


def without_answers(nsqd: ScriptedNsqd) -> list[bytes]:
    """The bodies of the publishes that the nsqd gets from now on, and does not answer."""
    bodies: list[bytes] = []
    nsqd.on_publish = lambda peer, words, body: bodies.append(body)
    return bodies


def storing(stored: list[bytes], answer: bytes = OK) -> Answer:
    """An answer to publishes that appends their bodies to `stored`."""

    def store(peer: Peer, words: list[bytes], body: bytes) -> bytes:
        stored.append(body)
        return answer

    return store
