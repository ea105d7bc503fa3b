"""Brokers with millions of queued messages: memory, restart after kill -9, drain rate.

Each contestant runs once, alone on the machine. If it cannot queue all messages within
FILL_SECONDS, the run continues with those that it has; the table shows their number.
"""

from __future__ import annotations

import asyncio
import math
import time
from asyncio import FIRST_COMPLETED
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from bench import load
from bench.generator import Figures, Run, add_consumer, fill
from bench.peers import Contestant
from bench.peers.peer import Deliveries, Peer

NAME = "backlog"
MESSAGES = 10_000_000
TOPIC, CHANNEL = "bench", "ch0"
SIZE = 200
READY = 2500
BATCHES = 16
FILL_SECONDS = 60.0
DRAIN_SECONDS = 2.0
TARGET_SECONDS, TARGET_MIB = 2.0, 200.0


@dataclass(frozen=True, slots=True)
class Queued:
    """The results of one contestant.

    Attributes:
        messages: number of queued messages.
        fill_rate: messages per second while filling.
        memory_mib: resident memory after filling, and after the restart.
        restart_seconds: from the start after kill -9 to the first delivery.
        drain: deliveries with FIN after that.
    """

    label: str
    messages: int
    fill_rate: float
    memory_mib: tuple[float, float]
    restart_seconds: float
    drain: Figures

    def line(self) -> str:
        """The row of the table."""
        before, after = self.memory_mib
        return (
            f"  {self.label:<42}{self.messages:>12,}{self.fill_rate:>12,.0f}{before:>10,.0f}"
            f"{after:>10,.0f}{self.restart_seconds:>10.2f}{self.drain.rate:>12,.0f}"
            f"{self.drain.server_us:>10.2f}{self.drain.generator_share:>10.0%}"
        )


HEADER = (
    f"{'kill -9 with messages of 200 B queued':<44}{'queued':>12}{'in msg/s':>12}{'MiB':>10}"
    f"{'MiB after':>10}{'restart s':>10}{'out msg/s':>12}{'CPU us':>10}{'load busy':>10}"
)


async def drain(peer: Peer, began: float) -> tuple[float, float, Figures]:
    """Return the time from `began` to the first delivery, memory then, and the drain's figures.

    The time is infinite if nothing was delivered: the queued messages are lost.
    """
    first: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def changed(_: Deliveries) -> None:
        if not first.done():
            first.set_result(time.perf_counter() - began)

    run = Run(peer, lambda: consumer.taken)
    try:
        consuming = peer.consuming(TOPIC, CHANNEL, SIZE, READY)
        consumer = await add_consumer(run, consuming, changed)
        consumer.begin()
        news: list[asyncio.Future[Any]] = [first, run.over]
        await asyncio.wait(news, timeout=FILL_SECONDS, return_when=FIRST_COMPLETED)
        if run.over.done():
            run.over.result()
        memory = peer.memory_mib()
        figures = await run.figures(run.mark(), DRAIN_SECONDS)
        return first.result() if first.done() else math.inf, memory, figures
    finally:
        await run.close()


def measure(contestant: Contestant, folder: Path, wanted: int) -> Queued:
    """Fill the queue, kill -9, restart, drain."""
    peer = contestant.make(folder / contestant.key)
    try:
        peer.start()
        peer.prepare(TOPIC, [CHANNEL], READY)
        began = time.perf_counter()
        filling = fill(peer, TOPIC, load.body(SIZE), wanted, FILL_SECONDS, batches=BATCHES)
        messages = uvloop.run(filling)
        fill_rate = messages / (time.perf_counter() - began)
        before = peer.memory_mib()
        peer.kill()
        began = time.perf_counter()
        peer.start()
        seconds, after, figures = uvloop.run(drain(peer, began))
        return Queued(contestant.label, messages, fill_rate, (before, after), seconds, figures)
    finally:
        peer.close()


def run(folder: Path, wanted: int, contestants: Sequence[Contestant]) -> list[Queued]:
    """Measure all contestants; print each when it is done."""
    print(HEADER)
    found = []
    for contestant in contestants:
        queued = measure(contestant, folder, wanted)
        print(queued.line(), flush=True)
        found.append(queued)
        if contestant.key == "sparq":
            print(verdict(queued))
    return found


def verdict(queued: Queued) -> str:
    """Whether sparq meets its targets, as text."""
    seconds, memory = queued.restart_seconds, max(queued.memory_mib)
    return (
        f"  targets: restart under {TARGET_SECONDS:g} s: "
        f"{'met' if seconds < TARGET_SECONDS else 'MISSED'}; "
        f"memory under {TARGET_MIB:g} MiB: {'met' if memory < TARGET_MIB else 'MISSED'}"
    )
