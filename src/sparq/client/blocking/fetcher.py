"""A fetcher: blocking access to an asynchronous generator from another thread.

1. Items are fetched one at a time, when ``next`` is called.
2. A wait may end early (a deadline, Ctrl-C): fetching goes on, and the next call gets the item. An
   interrupted wait loses no item.
3. Only one thread at a time may call ``next``; code that shares a fetcher must ensure that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from typing import Generic, TypeVar

from sparq.client.blocking.loop_thread import LoopThread

T = TypeVar("T")


class Fetcher(Generic[T]):
    """Items of a generator that runs on a loop thread."""

    def __init__(self, thread: LoopThread, source: AsyncGenerator[T, None]) -> None:
        self._thread = thread
        self._source = source
        self._fetching: list[asyncio.Task[object]] = []
        self._fetched: Future[T | None] | None = None

    def next(self, deadline: float | None = None) -> T | None:
        """Return the next item; None at the end.

        Args:
            deadline: in monotonic seconds; None: wait forever.

        Raises:
            TimeoutError: no item arrived before the deadline.
            ClosedError: the loop has ended.
        """
        if self._fetched is None:
            self._fetched = self._thread.submit(_fetch, self._source, self._fetching)
        item = self._thread.wait(self._fetched, seconds_until(deadline))
        self._fetched = None
        return item

    async def end(self) -> T | None:
        """On the loop: stop fetching; return the item fetched but not handed out, else None."""
        for task in self._fetching:
            task.cancel()
            await asyncio.wait([task])
        # Only now: a generator cannot be closed while a task runs it.
        await self._source.aclose()
        fetched = self._fetched
        if fetched is None or not fetched.done() or fetched.exception():
            return None
        return fetched.result()


async def _fetch(source: AsyncGenerator[T, None], fetching: list[asyncio.Task[object]]) -> T | None:
    # Not a method: while it waits, it must not keep a fetcher alive that is no longer used.
    fetching[:] = filter(None, [asyncio.current_task()])
    return await anext(source, None)


def seconds_until(deadline: float | None) -> float | None:
    """Return the seconds left until a deadline in monotonic seconds; None: no deadline."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())
