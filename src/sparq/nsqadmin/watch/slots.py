"""Room for so many at a time, of which nobody keeps the others out for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Slots:
    """Slots that are taken one by one.

    Args:
        count: how many there are.
        seconds: after that a slot is free again, though its holder goes on without one.
    """

    def __init__(self, count: int, seconds: float) -> None:
        self._seconds = seconds
        self._free = asyncio.Semaphore(count)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold a slot, as soon as there is one."""
        await self._free.acquire()
        held = [True]

        def release() -> None:
            if held:
                held.clear()
                self._free.release()

        timer = asyncio.get_running_loop().call_later(self._seconds, release)
        try:
            yield
        finally:
            timer.cancel()
            release()
