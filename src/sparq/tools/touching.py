"""Extend the timeout of messages that are handled slowly: TOUCH each at half of its time.

1. One timer serves all messages.
2. nsqd's ``--max-msg-timeout`` is still the upper limit.
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
"""Less than half a second, which is half of the shortest timeout that nsqd gives a message."""


Held = Message | Batch
"""A message or batch that has not been answered yet."""


class Touching:
    """Touches the messages that are being handled, singly or in batches."""

    def __init__(self) -> None:
        self._due: dict[Held, float] = {}

    def add(self, held: Held) -> None:
        """Touch this message or batch from now on."""
        self._due[held] = halfway(held)

    def release(self, held: Held) -> None:
        """Stop touching it."""
        del self._due[held]

    @contextlib.contextmanager
    def holding(self, held: Held) -> Iterator[None]:
        """Touch this message or batch for the duration of the block."""
        self.add(held)
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
        """Touch every message for which half of the time has passed."""
        for held, due in list(self._due.items()):
            # nsqd refuses a TOUCH for a message that has timed out: it is not in flight any more.
            if due <= now < held.expires_at and not held.responded:
                held.touch()
                self._due[held] = halfway(held)


def halfway(held: Held) -> float:
    """Return the time halfway from now to the message's timeout; infinite if that is unknown."""
    now = time.monotonic()
    return now + (held.expires_at - now) / 2
