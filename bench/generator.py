"""The load on a peer: connections that publish and consume until they are told to stop.

1. Everything runs on one event loop, with requests built before and answers found by numpy or `re`.
2. What it costs is measured beside what the server costs: where the generator has no time left, a
   rate is the generator's, and is marked.
3. An error anywhere ends the run with that error.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from bench.peers.peer import Consuming, Peer, Publishing, Taken

BURST_BYTES = 1 << 17
DEADLINE_SECONDS = 60.0
FILL_BATCHES, FILL_WINDOW = 2, 2000
"""Requests unanswered: few, since what is on its way when the time is over must be waited for."""

SLOW_SECONDS = 5.0
SLOW_STEP_SECONDS = 0.05
BUSY_SHARE = 0.9
"""A generator that is busy for more than this part of the time may be what bounds the rate."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment of a run: time, CPU of the server and of the generator, messages so far."""

    wall: float
    server: float
    generator: float
    messages: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What lies between two marks, and the times of single requests or deliveries, in seconds."""

    messages: float
    wall: float
    server: float
    generator: float
    times: Sequence[float] = ()

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.wall

    @property
    def server_us(self) -> float:
        """Microseconds of server CPU a message."""
        return self.server / self.messages * 1e6 if self.messages else math.nan

    @property
    def generator_us(self) -> float:
        """Microseconds of the generator's CPU a message."""
        return self.generator / self.messages * 1e6 if self.messages else math.nan

    @property
    def generator_share(self) -> float:
        """How much of the time the generator was busy: near 1, it is what bounds the rate."""
        return self.generator / self.wall


@dataclass
class Run:
    """One run against a peer; `messages` says how many were moved so far."""

    peer: Peer
    messages: Callable[[], float]
    times: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transports: list[asyncio.Transport] = []
        self.open_connections = 0
        self.are_closed = asyncio.Event()
        self.are_closed.set()

    def fail(self, error: BaseException) -> None:
        """End with this error."""
        if not self.over.done():
            self.over.set_exception(error)

    def finish(self) -> None:
        """End: everything is moved."""
        if not self.over.done():
            self.over.set_result(None)

    async def go_on(self, seconds: float) -> None:
        """So long, or until it is over."""
        await asyncio.wait([self.over], timeout=seconds)
        if self.over.done():
            self.over.result()

    async def figures(self, begin: Mark, seconds: float) -> Figures:
        """Of the next so many seconds; of more, if nothing was moved in them."""
        await self.go_on(seconds)
        deadline = time.perf_counter() + SLOW_SECONDS
        while self.messages() <= begin.messages and time.perf_counter() < deadline:
            await self.go_on(SLOW_STEP_SECONDS)
        return self.since(begin)

    def mark(self) -> Mark:
        """The present moment."""
        server = self.peer.cpu_seconds()
        return Mark(time.perf_counter(), server, time.process_time(), self.messages())

    def since(self, begin: Mark) -> Figures:
        """What happened since."""
        end = self.mark()
        return Figures(
            end.messages - begin.messages,
            end.wall - begin.wall,
            end.server - begin.server,
            end.generator - begin.generator,
            tuple(self.times),
        )

    async def close(self) -> None:
        """Cut all connections; once they are cut, the server hears of it."""
        if not self.over.done():
            self.over.cancel()
        for transport in self.transports:
            transport.abort()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.are_closed.wait(), SLOW_SECONDS)


class Connection(asyncio.Protocol):
    """What publishers and consumers share: errors end the run."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # uvloop's transports are not registered as asyncio's.
        self.transport = cast(asyncio.Transport, transport)
        self.run.transports.append(self.transport)
        self.run.open_connections += 1
        self.run.are_closed.clear()

    def data_received(self, data: bytes) -> None:
        """Handle it."""
        try:
            self.received(data)
        except Exception as error:  # the loop would log it and go on: a run must not
            self.run.fail(error)

    def received(self, data: bytes) -> None:
        """What a connection does with bytes."""

    def connection_lost(self, exc: Exception | None) -> None:
        """It must not be dropped while the run goes on."""
        self.run.open_connections -= 1
        if not self.run.open_connections:
            self.run.are_closed.set()
        self.run.fail(exc or ConnectionError("the server closed a connection"))


class Publisher(Connection):
    """Keeps `window` requests unanswered, as long as it may.

    Attributes:
        sent, answered: requests that were sent, and of these answered.
        allowed: requests that it may send in all; raised by `allow`.
        finishes: the run ends when all that are allowed are answered.
    """

    def __init__(
        self, run: Run, publishing: Publishing, request: bytes, window: int, allowed: float
    ) -> None:
        super().__init__(run)
        self.answered = 0
        self.allowed = allowed
        self.finishes = False
        self._answers = publishing.answers
        self._request = request
        self._window = window
        self._burst = max(1, min(window // 4, BURST_BYTES // len(request)))
        self._requests = request * self._burst
        self.sent = 0
        self._asked = 0.0

    def begin(self) -> None:
        """Fill the window."""
        self._asked = time.perf_counter()
        self._send()

    def allow(self, allowed: float) -> None:
        """It may send more."""
        self.allowed = max(self.allowed, allowed)
        self._send()

    def stop(self) -> None:
        """Send no more; the run ends once all is answered."""
        self.allowed = self.sent
        self.finishes = True
        self._check()

    def received(self, data: bytes) -> None:
        """Count answers and fill the window."""
        count = self._answers(data)
        self.answered += count
        if self._window == 1 and count:
            now = time.perf_counter()
            self.run.times.append(now - self._asked)
            self._asked = now
        self._check()
        self._send()

    def _check(self) -> None:
        if self.finishes and self.answered >= self.allowed:
            self.run.finish()

    def _send(self) -> None:
        room = min(self.answered + self._window, self.allowed) - self.sent
        while room >= self._burst:
            self.transport.write(self._requests)
            self.sent += self._burst
            room -= self._burst
        if room > 0 and self.sent + room >= self.allowed:
            self.transport.write(self._request * int(room))
            self.sent += int(room)


class Consumer(Connection):
    """Acknowledges each message as it comes; `taken` counts them, `changed` is told."""

    def __init__(self, run: Run, consuming: Consuming, changed: Callable[[Taken], None]) -> None:
        super().__init__(run)
        self.taken = 0
        self._consuming = consuming
        self._changed = changed

    def begin(self) -> None:
        """Open the window."""
        self.transport.write(self._consuming.begin)

    def received(self, data: bytes) -> None:
        """Acknowledge what is whole."""
        taken = self._consuming.taker.take(data)
        if taken.reply:
            self.transport.write(taken.reply)
        if taken.messages:
            self.taken += taken.messages
            self._changed(taken)


async def add_publisher(
    run: Run, publishing: Publishing, request: bytes, window: int, allowed: float = float("inf")
) -> Publisher:
    """A publisher on its connection, not begun."""
    loop = asyncio.get_running_loop()
    _, publisher = await loop.create_connection(
        lambda: Publisher(run, publishing, request, window, allowed), sock=publishing.sock
    )
    return publisher


async def add_consumer(
    run: Run, consuming: Consuming, changed: Callable[[Taken], None]
) -> Consumer:
    """A consumer on its connection, not begun."""
    loop = asyncio.get_running_loop()
    _, consumer = await loop.create_connection(
        lambda: Consumer(run, consuming, changed), sock=consuming.sock
    )
    return consumer


def request_of(publishing: Publishing, body: bytes, batch: int) -> bytes:
    """One request of so many messages."""
    return publishing.many(body, batch) if batch > 1 else publishing.one(body)


async def fill(
    peer: Peer, topic: str, body: bytes, count: int, seconds: float, *, batches: int = FILL_BATCHES
) -> int:
    """Publish up to `count` messages, for so long at most: how many; `batches` unanswered."""
    per_request = 200 if "batch" in peer.can and count >= 200 else 1
    run = Run(peer, lambda: 0)
    try:
        publishing = peer.publishing(topic, batches=per_request > 1)
        request = request_of(publishing, body, per_request)
        window = batches if per_request > 1 else FILL_WINDOW
        publisher = await add_publisher(run, publishing, request, window, count // per_request)
        publisher.finishes = True
        publisher.begin()
        await run.go_on(seconds)
        if not run.over.done():
            publisher.stop()
            await run.go_on(DEADLINE_SECONDS)
        return publisher.answered * per_request
    finally:
        await run.close()
