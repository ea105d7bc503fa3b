"""Waiting in tests for a condition, with a deadline: a test fails instead of hanging.

- `until`         in the event loop: for cheap checks, such as what a scripted nsqd received;
- `until_seen`    in a thread: for checks that need a request, while the loop continues;
- `wait_for`      without an event loop;
- `stays`         checks that something does not happen, for a fixed time: no event reports that;
- `let_all_run`   runs all ready callbacks, so that their effects are visible.
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
"""Far longer than anything that does happen takes here."""
TURNS = 20


async def until(condition: Callable[[], Any], seconds: float = WAIT_SECONDS) -> None:
    """Wait until the condition holds; an awaitable result is awaited."""
    async with asyncio.timeout(seconds):
        while True:
            if await _holds(condition):
                return
            await asyncio.sleep(POLL_SECONDS)


async def _holds(condition: Callable[[], Any]) -> bool:
    seen = condition()
    return bool((await seen) if inspect.isawaitable(seen) else seen)


async def until_seen(condition: Callable[[], Any], seconds: float = WAIT_SECONDS) -> None:
    """Wait for a condition that needs a request; the event loop continues."""
    await until(lambda: asyncio.to_thread(condition), seconds)


def wait_for(
    check: Callable[[], T | None],
    seconds: float = WAIT_SECONDS,
    describe: Callable[[], object] = str,
    every: float = POLL_SECONDS,
) -> T:
    """Return the first true result of `check`; on failure show the result of `describe`.

    Args:
        check: the condition; it may raise an error that makes waiting pointless.
        seconds: the time limit.
        describe: returns the text of the failure.
        every: seconds between checks: longer for expensive ones.
    """
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline, f"not in {seconds:.0f} s: {describe()}"
        time.sleep(every)
    return found


async def stays(condition: Callable[[], Any], seconds: float = ABSENT_SECONDS) -> None:
    """Assert that the condition holds for the whole time; an awaitable result is awaited."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert await _holds(condition)
        await asyncio.sleep(POLL_SECONDS)
    assert await _holds(condition)


async def let_all_run(turns: int = TURNS) -> None:
    """Run some turns of the event loop."""
    for _ in range(turns):
        await asyncio.sleep(0)
