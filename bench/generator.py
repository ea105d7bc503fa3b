"""The load generator for a peer: connections that publish and consume until they are stopped.

1. Everything runs on one event loop; requests are built beforehand, and numpy or `re` finds the
   answers.
2. The generator's CPU time is measured as well as the server's: if the generator is busy all the
   time, it limits the rate, and the rate is marked.
3. An error anywhere ends the run with that error.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self, cast

from bench.peers.peer import Consuming, Deliveries, Peer, Publishing

BURST_BYTES = 1 << 17
DEADLINE_SECONDS = 60.0
FILL_BATCHES, FILL_WINDOW = 2, 2000
"""Maximum numbers of unanswered batches and of single publishes; small, to end quickly."""

SLOW_SECONDS = 5.0
COUNTED_SECONDS = 600.0
SLOW_STEP_SECONDS = 0.05
BUSY_SHARE = 0.9
"""A generator that is busy for more than this part of the time may limit the rate."""


class Figures(NamedTuple):
    """The differences between two marks, and times of single requests or deliveries, in seconds."""

    messages: float
    wall: float
    server: float
    generator: float
    times: Sequence[float] = ()

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.wall

    @property
    def server_us(self) -> float:
        """Microseconds of server CPU per message."""
        return self.server / self.messages * 1e6 if self.messages else math.nan

    @property
    def generator_us(self) -> float:
        """Microseconds of the generator's CPU per message."""
        return self.generator / self.messages * 1e6 if self.messages else math.nan

    @property
    def generator_share(self) -> float:
        """The part of the time for which the generator was busy: near 1, it limits the rate."""
        return self.generator / self.wall


class Mark(NamedTuple):
    """A moment of a run: time, cost of the server, CPU of the generator, messages so far."""

    wall: float
    server: float
    generator: float
    messages: float

    def until(self, end: Mark, times: Sequence[float] = ()) -> Figures:
        """The figures from this moment until a later one."""
        return Figures(
            end.messages - self.messages,
            end.wall - self.wall,
            end.server - self.server,
            end.generator - self.generator,
            times,
        )


@dataclass
class Run:
    """One run against a peer; `messages` returns the number of messages moved so far."""

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
        """End the run with this error."""
        if not self.over.done():
            self.over.set_exception(error)

    def finish(self) -> None:
        """End the run: everything is moved."""
        if not self.over.done():
            self.over.set_result(None)

    async def go_on(self, seconds: float) -> None:
        """Wait this long, or until the run ends; raise the run's error."""
        await asyncio.wait([self.over], timeout=seconds)
        if self.over.done():
            self.over.result()

    async def figures(self, begin: Mark, seconds: float, messages: int = 0) -> Figures:
        """Figures since `begin`, after `seconds`, or if `messages` is not 0, after as many.

        If nothing was moved in time, wait up to 5 s more; wait longer for `messages`.
        """
        await self.go_on(seconds)
        deadline = time.perf_counter() + (COUNTED_SECONDS if messages else SLOW_SECONDS)
        least = begin.messages + max(1, messages)
        while self.messages() < least and time.perf_counter() < deadline:
            await self.go_on(SLOW_STEP_SECONDS)
        return self.since(begin)

    def mark(self) -> Mark:
        """The current figures."""
        server = self.peer.cost()
        return Mark(time.perf_counter(), server, time.process_time(), self.messages())

    def since(self, begin: Mark) -> Figures:
        """The figures from `begin` until now."""
        return begin.until(self.mark(), tuple(self.times))

    async def close(self) -> None:
        """Abort all connections, and wait until they are closed."""
        if not self.over.done():
            self.over.cancel()
        for transport in self.transports:
            transport.abort()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.are_closed.wait(), SLOW_SECONDS)


class Connection(asyncio.Protocol):
    """The base of publishers and consumers: errors end the run."""

    def __init__(self, run: Run, sock: socket.socket) -> None:
        self.run = run
        self.sock = sock

    async def connected(self) -> Self:
        """Connect it; call `begin` to start it."""
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, sock=self.sock)
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # uvloop's transports are not registered as asyncio's.
        self.transport = cast(asyncio.Transport, transport)
        self.run.transports.append(self.transport)
        self.run.open_connections += 1
        self.run.are_closed.clear()

    def data_received(self, data: bytes) -> None:
        """Handle the data; an error ends the run."""
        try:
            self.received(data)
        except Exception as error:  # the event loop would only log it
            self.run.fail(error)

    def received(self, data: bytes) -> None:
        """Handle data from the server; subclasses override this."""

    def connection_lost(self, exc: Exception | None) -> None:
        """End the run with an error if it is not over."""
        self.run.open_connections -= 1
        if not self.run.open_connections:
            self.run.are_closed.set()
        self.run.fail(exc or ConnectionError("the server closed a connection"))


class Publisher(Connection):
    """Keeps `window` requests unanswered until it has sent `allowed` requests.

    Attributes:
        sent, answered: number of requests sent, and of those answered.
        allowed: maximum number of requests to send in all; `allow` raises it.
        finishes: whether the run ends when all allowed requests are answered.
    """

    def __init__(
        self,
        run: Run,
        publishing: Publishing,
        request: bytes,
        window: int,
        allowed: float = math.inf,
    ) -> None:
        super().__init__(run, publishing.sock)
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
        """Raise the number of allowed requests, and send."""
        self.allowed = max(self.allowed, allowed)
        self._send()

    def stop(self) -> None:
        """Send no more; the run ends when every request is answered."""
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
    """Acknowledges each message on arrival, counts it in `taken`, and calls `changed`."""

    def __init__(
        self, run: Run, consuming: Consuming, changed: Callable[[Deliveries], None]
    ) -> None:
        super().__init__(run, consuming.sock)
        self.taken = 0
        self._consuming = consuming
        self._changed = changed

    def begin(self) -> None:
        """Open the window."""
        self.transport.write(self._consuming.begin)

    def received(self, data: bytes) -> None:
        """Acknowledge the complete messages."""
        taken = self._consuming.acknowledger.take(data)
        if taken.reply:
            self.transport.write(taken.reply)
        if taken.messages:
            self.taken += taken.messages
            self._changed(taken)


def request_of(publishing: Publishing, body: bytes, batch: int) -> bytes:
    """One request with `batch` messages."""
    return publishing.many(body, batch) if batch > 1 else publishing.one(body)


async def fill(
    peer: Peer, topic: str, body: bytes, count: int, seconds: float, *, batches: int = FILL_BATCHES
) -> int:
    """Publish up to `count` messages for up to `seconds`; return how many were published."""
    per_request = 200 if "batch" in peer.can and count >= 200 else 1
    run = Run(peer, lambda: 0)
    try:
        publishing = peer.publishing(topic, batches=per_request > 1)
        request = request_of(publishing, body, per_request)
        window = batches if per_request > 1 else FILL_WINDOW
        publisher = Publisher(run, publishing, request, window, count // per_request)
        await publisher.connected()
        publisher.finishes = True
        publisher.begin()
        await run.go_on(seconds)
        if not run.over.done():
            publisher.stop()
            await run.go_on(DEADLINE_SECONDS)
        return publisher.answered * per_request
    finally:
        await run.close()
