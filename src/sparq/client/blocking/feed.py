"""A feed: an asynchronous generator, read by a thread that waits.

1. An item is fetched when somebody asks for the next one, and one at a time.
2. Who waits may give up at any moment (a deadline, Ctrl-C): the fetching goes on, and who asks next
   gets what it brings. No item is lost to an interrupted wait.
3. One thread at a time asks; whoever shares a feed among threads takes care of that.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from typing import Generic, TypeVar

from sparq.client.blocking.loop_thread import LoopThread
from sparq.client.errors import ClosedError

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

    def close(self) -> T | None:
        """Fetch no more: an item that was fetched already and never asked for, else None."""
        with contextlib.suppress(ClosedError):
            self._thread.call(self.end)
            if self._fetched is not None:
                return self._fetched.result()
        return None

    async def end(self) -> None:
        """On the loop: fetch no more."""
        for task in self._fetching:
            task.cancel()
            await asyncio.wait([task])
        await self._source.aclose()


async def _fetch(source: AsyncGenerator[T, None], fetching: list[asyncio.Task[object]]) -> T | None:
    # Not a method: while it waits, it must not keep alive who does not ask any more.
    fetching[:] = filter(None, [asyncio.current_task()])
    return await anext(source, None)


def seconds_until(deadline: float | None) -> float | None:
    """How long to wait for a time of the monotonic clock."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())
