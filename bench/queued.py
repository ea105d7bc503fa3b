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
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from bench.generator import Consumer, Figures, Run, fill
from bench.peers import Contestant
from bench.peers.peer import Deliveries, Peer, random_body
from bench.table import row

NAME = "backlog"
MESSAGES = 10_000_000
TOPIC, CHANNEL = "bench", "ch0"
SIZE = 200
READY = 2500
BATCHES = 16
FILL_SECONDS = 60.0
DRAIN_SECONDS = 2.0
TARGET_SECONDS, TARGET_MIB = 2.0, 200.0


class Queued(NamedTuple):
    """The results of one contestant.

    Attributes:
        messages: number of queued messages.
        fill_rate: messages per second while filling.
        memory_mib: resident memory after filling, and after the restart.
        restart_seconds: from the start after kill -9 to the first delivery.
        drain: deliveries with FIN after that.
    """

    messages: int
    fill_rate: float
    memory_mib: tuple[float, float]
    restart_seconds: float
    drain: Figures

    def columns(self) -> list[str]:
        """The cells of its row."""
        counts = (self.messages, self.fill_rate, *self.memory_mib)
        drain = self.drain
        return [
            *(f"{count:,.0f}" for count in counts),
            f"{self.restart_seconds:.2f}",
            *(f"{drain.rate:,.0f}", f"{drain.server_us:.2f}", f"{drain.generator_share:.0%}"),
        ]


HEADINGS = (
    *("queued", "in msg/s", "MiB", "MiB after", "restart s", "out msg/s", "CPU us", "load busy"),
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
        consumer = await Consumer(run, consuming, changed).connected()
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
        filling = fill(peer, TOPIC, random_body(SIZE), wanted, FILL_SECONDS, batches=BATCHES)
        messages = uvloop.run(filling)
        fill_rate = messages / (time.perf_counter() - began)
        before = peer.memory_mib()
        peer.kill()
        began = time.perf_counter()
        peer.start()
        seconds, after, figures = uvloop.run(drain(peer, began))
        return Queued(messages, fill_rate, (before, after), seconds, figures)
    finally:
        peer.close()


def run(folder: Path, wanted: int, contestants: Sequence[Contestant]) -> None:
    """Measure all contestants; print each when it is done, and sparq's targets."""
    print(row("kill -9 with messages of 200 B queued", HEADINGS))
    for contestant in contestants:
        queued = measure(contestant, folder, wanted)
        print(row(f"  {contestant.label}", queued.columns()), flush=True)
        if contestant.key == "sparq":
            for what, figure, limit in (
                ("restart, s", queued.restart_seconds, TARGET_SECONDS),
                ("memory, MiB", max(queued.memory_mib), TARGET_MIB),
            ):
                word = "met" if figure < limit else "MISSED"
                print(f"  target: {what}: under {limit:g}: {word}")
