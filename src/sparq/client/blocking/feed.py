"""A feed: an asynchronous generator, read by a thread that waits.

1. An item is fetched when somebody asks for the next one, and one at a time.
2. Who waits may give up at any moment (a deadline, Ctrl-C): the fetching goes on, and who asks next
   gets what it brings. No item is lost to an interrupted wait.
3. One thread at a time asks; whoever shares a feed among threads takes care of that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from typing import Generic, TypeVar

from sparq.client.blocking.loop_thread import LoopThread

T = TypeVar("T")


class Feed(Generic[T]):
    """Items of a generator that runs on a loop thread."""

    def __init__(self, thread: LoopThread, source: AsyncGenerator[T, None]) -> None:
        self._thread = thread
        self._source = source
        self._fetching: list[asyncio.Task[object]] = []
        self._fetched: Future[T | None] | None = None

    def next(self, deadline: float | None = None) -> T | None:
        """The next item; None at the end.

        Args:
            deadline: a time of the monotonic clock; None: wait for ever.

        Raises:
            TimeoutError: nothing has come until then.
            ClosedError: the loop has ended.
        """
        if self._fetched is None:
            self._fetched = self._thread.submit(_fetch, self._source, self._fetching)
        item = self._thread.wait(self._fetched, seconds_until(deadline))
        self._fetched = None
        return item

    async def end(self) -> T | None:
        """On the loop: fetch no more; an item that was fetched and never asked for, else None."""
        for task in self._fetching:
            task.cancel()
            await asyncio.wait([task])
        await self._source.aclose()
        fetched = self._fetched
        if fetched is None or not fetched.done() or fetched.exception():
            return None
        return fetched.result()


async def _fetch(source: AsyncGenerator[T, None], fetching: list[asyncio.Task[object]]) -> T | None:
    # Not a method: while it waits, it must not keep alive who does not ask any more.
    fetching[:] = filter(None, [asyncio.current_task()])
    return await anext(source, None)


def seconds_until(deadline: float | None) -> float | None:
    """How long to wait for a time of the monotonic clock."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())
