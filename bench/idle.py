"""`python -m bench.idle`: what idle connections cost nsqd: memory, heartbeats, throughput.

1. Connections are opened in steps; each sends IDENTIFY and then only answers heartbeats.
2. The first heartbeat is due one interval after the OK to IDENTIFY, each further one an interval
   after the previous one. Lateness is measured from then, by the client's clock.
3. The first round measures only memory: later rounds reuse memory that publishing has freed. In the
   other rounds a publisher is measured without and with the connections, in turn, so that a busy
   machine affects both equally.
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
"""Connections opened at a time: the listener's backlog is 1,024."""

BEATS = 2
SETTLE_SECONDS = 0.3


@dataclass(frozen=True)
class Figures:
    """The results of one run.

    Attributes:
        kib_each: resident memory of nsqd per connection, in KiB.
        late_ms: lateness of heartbeats in ms: median, p99, maximum.
        alone, beside: a publisher's messages per second, without and with the connections.
    """

    connections: int
    kib_each: float
    late_ms: tuple[float, float, float]
    alone: float
    beside: float

    @property
    def ratio(self) -> float:
        """The publisher's rate with the connections, divided by its rate without them."""
        return self.beside / self.alone


class Idler(asyncio.Protocol):
    """A client that answers heartbeats and records how late they are."""

    def __init__(self, interval_ms: int, late: list[float]) -> None:
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.has_rested: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._beats = 0
        self._interval = interval_ms / 1000
        self._late = late
        self._due = 0.0
        self._stream = V2Stream()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send IDENTIFY."""
        # uvloop's transports are not registered as asyncio's.
        self.transport = cast(asyncio.Transport, transport)
        body = json.dumps({"heartbeat_interval": int(self._interval * 1000)}).encode()
        self.transport.write(MAGIC + identify(body))

    def data_received(self, data: bytes) -> None:
        """Receive the OK, then answer heartbeats."""
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
        """Fail the pending futures: nsqd has closed the connection too early."""
        for future in (self.ready, self.has_rested):
            if not future.done():
                future.set_exception(ConnectionError("dropped by nsqd"))


async def open_idlers(port: int, count: int, interval_ms: int, late: list[float]) -> list[Idler]:
    """Open `count` connections, and wait until nsqd has answered each IDENTIFY."""
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
    """Messages per second of one pipelining publisher."""
    messages, meter = await workloads.mpub(Target(server.pid, server.tcp_port))
    return messages / meter.wall


async def measure(server: NsqdServer, count: int, interval_ms: int, rounds: int) -> Figures:
    """Measure one nsqd; its data folder grows in each round."""
    alone, beside, late = [], [], list[float]()
    kib_each = 0.0
    for number in range(rounds):
        if number:  # the first round measures memory: nothing was freed yet that could be reused
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
    parser.add_argument("--interval-ms", type=int, default=10_000, help="interval of heartbeats")
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
