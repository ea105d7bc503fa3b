"""`python -m bench.idle`: what idle connections cost nsqd: memory, heartbeats, throughput.

1. Connections are opened in steps, each identifies itself and then only answers heartbeats.
2. A heartbeat's lateness counts from when it was due, by the client's clock: one interval behind
   the OK to IDENTIFY, then each an interval behind the one before.
3. A first round counts memory alone: later ones find memory that publishing has left behind. In
   the others a publisher is measured alone and beside the connections, in turn, so that a busy
   machine hits both alike.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import uvloop
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.v2_client import MAGIC, OK
from tests.support.v2_stream import HEARTBEAT, V2Stream

from bench import workloads
from bench.measure import memory_mib
from bench.workloads import Target
from sparq.daemon.files import raise_limit
from sparq.protocol.commands import identify, nop

STEP = 200
"""Connections opened at a time: the listener's queue has 1,024 places."""

BEATS = 2
SETTLE_SECONDS = 0.3


@dataclass(frozen=True)
class Figures:
    """What one run came to.

    Attributes:
        kib_each: resident memory of nsqd for one connection.
        late_ms: how late heartbeats were: median, 99 of 100, worst.
        alone, beside: messages a second of a publisher, without and with the connections.
    """

    connections: int
    kib_each: float
    late_ms: tuple[float, float, float]
    alone: float
    beside: float

    @property
    def ratio(self) -> float:
        """The publisher's rate beside the connections, as a part of its rate alone."""
        return self.beside / self.alone


class Idler(asyncio.Protocol):
    """A client that answers heartbeats and notes how late they are."""

    def __init__(self, interval_ms: int, late: list[float]) -> None:
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.has_rested: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._beats = 0
        self._interval = interval_ms / 1000
        self._late = late
        self._due = 0.0
        self._stream = V2Stream()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Identify."""
        # uvloop's transports are not registered as asyncio's.
        self.transport = cast(asyncio.Transport, transport)
        body = json.dumps({"heartbeat_interval": int(self._interval * 1000)}).encode()
        self.transport.write(MAGIC + identify(body))

    def data_received(self, data: bytes) -> None:
        """The OK, then heartbeats."""
        now = time.perf_counter()
        self._stream.feed(data)
        for frame in self._stream.frames():
            if not self.ready.done():
                assert frame == OK, frame
                self.ready.set_result(None)
            else:
                assert frame[1] == HEARTBEAT, frame
                self._late.append((now - self._due) * 1000)
                self._beats += 1
                if self._beats == BEATS:
                    self.has_rested.set_result(None)
                self.transport.write(nop())
            self._due = now + self._interval

    def connection_lost(self, exc: Exception | None) -> None:
        """It must not be dropped before it is told to go."""
        for future in (self.ready, self.has_rested):
            if not future.done():
                future.set_exception(ConnectionError("dropped by nsqd"))


async def open_idlers(port: int, count: int, interval_ms: int, late: list[float]) -> list[Idler]:
    """So many connections, all identified."""
    loop = asyncio.get_running_loop()
    found: list[Idler] = []
    while len(found) < count:
        step = min(STEP, count - len(found))
        made = await asyncio.gather(
            *(
                loop.create_connection(lambda: Idler(interval_ms, late), "127.0.0.1", port)
                for _ in range(step)
            )
        )
        idlers = [protocol for _, protocol in made]
        await asyncio.gather(*(idler.ready for idler in idlers))
        found += idlers
    return found


async def publish_rate(server: NsqdServer) -> float:
    """Messages a second of one pipelining publisher."""
    messages, meter = await workloads.mpub(Target(server.pid, server.tcp_port))
    return messages / meter.wall


async def measure(server: NsqdServer, count: int, interval_ms: int, rounds: int) -> Figures:
    """All figures of one nsqd; its data folder fills meanwhile."""
    alone, beside, late = [], [], list[float]()
    kib_each = 0.0
    for number in range(rounds):
        if number:  # the first connections meet an nsqd that has no used memory to give them
            alone.append(await publish_rate(server))
        before = memory_mib(server.pid)
        idlers = await open_idlers(server.tcp_port, count, interval_ms, late)
        kib_each = max(kib_each, (memory_mib(server.pid) - before) * 1024 / count)
        if number:
            beside.append(await publish_rate(server))
        await asyncio.gather(*(idler.has_rested for idler in idlers))
        for idler in idlers:
            idler.transport.close()
        await asyncio.sleep(SETTLE_SECONDS)
    ordered = sorted(late)
    lateness = (statistics.median(late), ordered[len(ordered) * 99 // 100], ordered[-1])
    rates = statistics.median(alone), statistics.median(beside)
    return Figures(count, kib_each, lateness, *rates)


def report(figures: Figures) -> str:
    """The figures as lines."""
    median, late, worst = figures.late_ms
    return (
        f"{figures.connections:,} idle connections\n"
        f"memory a connection   {figures.kib_each:8.1f} KiB\n"
        f"heartbeats late       {median:8.1f} ms median, {late:.1f} p99, {worst:.1f} worst\n"
        f"publisher alone       {figures.alone:8,.0f} msg/s\n"
        f"publisher beside them {figures.beside:8,.0f} msg/s, {figures.ratio:.2f} of it"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench.idle", description=__doc__)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--interval-ms", type=int, default=10_000, help="of heartbeats")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    raise_limit()
    with (
        tempfile.TemporaryDirectory(prefix="sparq-bench-", dir=".") as name,
        spawn_nsqd(Path(name).resolve()) as server,
    ):
        task = measure(server, options.connections, options.interval_ms, options.rounds + 1)
        print(report(uvloop.run(task)))


if __name__ == "__main__":
    main()
