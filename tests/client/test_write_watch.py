"""client.write_watch: who takes nothing is given up, who takes little is not."""

from __future__ import annotations

import asyncio

from sparq.client.watchdog import LOOKS, WriteWatch
from tests.support.waiting import stays, until

SECONDS = 0.04


async def test_a_peer_that_takes_nothing_is_given_up() -> None:
    """Once, after its time, and not when it has begun to take before that."""
    loop = asyncio.get_running_loop()
    given_up: list[float] = []
    watch = WriteWatch(SECONDS, lambda: 7, lambda: given_up.append(loop.time()))
    watch.start()
    watch.stop()
    watch.start()
    began = loop.time()
    await until(lambda: given_up)

    assert SECONDS * 0.9 <= given_up[0] - began
    await stays(lambda: 1 == len(given_up), 2 * SECONDS)


async def test_a_peer_that_takes_little_is_alive() -> None:
    """A byte now and then will do."""
    looks: list[int] = []
    given_up: list[int] = []

    def taken() -> int:
        looks.append(1)
        return len(looks) // LOOKS  # nothing at most of the looks

    watch = WriteWatch(SECONDS, taken, lambda: given_up.append(1))
    watch.start()
    await until(lambda: len(looks) >= 5 * LOOKS)
    watch.stop()

    assert [] == given_up
