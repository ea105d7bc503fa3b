"""The workloads: each runs once against a server and returns the number of messages moved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from bench import load
from bench.measure import Meter

SIZE = 200
MPUB_COUNT = 200
MPUB_TOTAL = 2_000
PUB_TOTAL = 100_000
HOT_TOTAL = 200_000
"""Fits nsqd's cache of 64 MiB, as for a consumer that keeps up."""

COLD_TOTAL = 2_000_000
"""Seven times that cache, as for a consumer that returns after a while."""

FILL_WINDOW = 16


@dataclass(frozen=True)
class Target:
    """A server to measure: its process and its TCP port."""

    pid: int
    port: int


Workload = Callable[[Target], Coroutine[Any, Any, tuple[int, Meter]]]


async def mpub(target: Target) -> tuple[int, Meter]:
    """MPUBs of 200 messages, 16 unanswered at a time."""
    request = load.mpub(MPUB_COUNT, SIZE)
    meter = Meter(target.pid).start()
    await load.publish(target.port, request, MPUB_TOTAL, FILL_WINDOW)
    return MPUB_TOTAL * MPUB_COUNT, meter.stop()


async def pub(target: Target) -> tuple[int, Meter]:
    """PUBs, 2,000 unanswered at a time."""
    request = load.pub(SIZE)
    meter = Meter(target.pid).start()
    await load.publish(target.port, request, PUB_TOTAL, 2_000)
    return PUB_TOTAL, meter.stop()


async def pub_one_at_a_time(target: Target) -> tuple[int, Meter]:
    """PUBs, each after the previous one's OK."""
    request = load.pub(SIZE)
    meter = Meter(target.pid).start()
    await load.publish(target.port, request, 3_000, 1)
    return 3_000, meter.stop()


def deliver(ready: int, total: int = HOT_TOTAL, *, filled: bool = True) -> Workload:
    """A workload: deliver a full channel with FINs to one consumer at this RDY count."""

    async def run(target: Target) -> tuple[int, Meter]:
        consumer = await load.consumer(target.port, "ch", SIZE, total, ready)
        if filled:
            request = load.mpub(MPUB_COUNT, SIZE)
            await load.publish(target.port, request, total // MPUB_COUNT, FILL_WINDOW)
        meter = Meter(target.pid).start()
        consumer.begin()
        await consumer.done
        meter.stop()
        consumer.close()
        return total, meter

    return run


async def make_channels(target: Target, count: int) -> None:
    """Create channels without consumers."""
    for number in range(count):
        consumer = await load.consumer(target.port, f"ch{number}", SIZE, 0, 0)
        consumer.close()
    await asyncio.sleep(0)
