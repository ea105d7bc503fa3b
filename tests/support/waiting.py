"""Waiting in tests: for a condition, with a deadline; what never comes is a failure, not a hang.

- `until`         in the loop: for what is cheap to look at, such as what a scripted nsqd heard;
- `until_seen`    in a thread: for what takes a request to see, while the loop goes on;
- `wait_for`      where there is no loop;
- `stays`         that something does not happen: nothing tells of it, so it takes its bounded time;
- `let_all_run`   what is ready to run does, so that what it would have done is done.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

POLL_SECONDS = 0.002
WAIT_SECONDS = 30.0
ABSENT_SECONDS = 0.05
"""Far longer than anything takes here that does happen."""
TURNS = 20


async def until(condition: Callable[[], Any], seconds: float = WAIT_SECONDS) -> None:
    """Wait until the condition holds; what it returns may have to be awaited first."""
    async with asyncio.timeout(seconds):
        while True:
            if await _holds(condition):
                return
            await asyncio.sleep(POLL_SECONDS)


async def _holds(condition: Callable[[], Any]) -> bool:
    seen = condition()
    return bool((await seen) if inspect.isawaitable(seen) else seen)


async def until_seen(condition: Callable[[], Any], seconds: float = WAIT_SECONDS) -> None:
    """Wait for what takes a request to see; the loop goes on meanwhile."""
    await until(lambda: asyncio.to_thread(condition), seconds)


def wait_for(
    look: Callable[[], T],
    seconds: float = WAIT_SECONDS,
    told: Callable[[], object] = str,
    every: float = POLL_SECONDS,
) -> T:
    """What is looked at, once it is something; a failure says what is `told` then.

    Args:
        look: what to look at; it may raise what makes waiting vain.
        seconds: how long at the most.
        told: what stands in the failure.
        every: how often, in seconds: seldom where looking is dear.
    """
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"not in {seconds:.0f} s: {told()}"
        time.sleep(every)
    return found


async def stays(condition: Callable[[], Any], seconds: float = ABSENT_SECONDS) -> None:
    """Assert that the condition holds all the while; what it returns may have to be awaited."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert await _holds(condition)
        await asyncio.sleep(POLL_SECONDS)
    assert await _holds(condition)


async def let_all_run(turns: int = TURNS) -> None:
    """Some turns of the loop."""
    for _ in range(turns):
        await asyncio.sleep(0)
