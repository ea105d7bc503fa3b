"""More time for messages whose handling is slow: each is touched at half of its time.

1. One timer for all of them, not one a message.
2. nsqd's ``--max-msg-timeout`` is the end of its patience all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Final

from sparq.client.batch import Batch
from sparq.client.message import Message

TICK_SECONDS: Final = 0.2
"""Below half of a second, the shortest time that nsqd gives a message."""


Held = Message | Batch
"""What nobody has answered for yet."""


class Touching:
    """Touches the messages that are being handled, singly or in batches."""

    def __init__(self) -> None:
        self._due: dict[Held, float] = {}

    def hold(self, held: Held) -> None:
        """From now on, nsqd is kept waiting for this message."""
        self._due[held] = halfway(held)

    def release(self, held: Held) -> None:
        """And from now on no longer."""
        del self._due[held]

    @contextlib.contextmanager
    def holding(self, held: Held) -> Iterator[None]:
        """While in the block, nsqd is kept waiting for this message."""
        self.hold(held)
        try:
            yield
        finally:
            self.release(held)

    async def run(self) -> None:
        """Touch until cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.touch_due(time.monotonic())

    def touch_due(self, now: float) -> None:
        """Touch what has had half of its time."""
        for held, due in list(self._due.items()):
            if due <= now < held.expires_at and not held.responded:
                held.touch()
                self._due[held] = halfway(held)


def halfway(held: Held) -> float:
    """Half of the time from now to the end of nsqd's patience; never, when that is not known."""
    now = time.monotonic()
    return now + (held.expires_at - now) / 2
