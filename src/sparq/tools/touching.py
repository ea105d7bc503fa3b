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

from sparq.client.message import Message

TICK_SECONDS: Final = 0.2
"""Below half of a second, the shortest time that nsqd gives a message."""


class Touching:
    """Touches the messages that are being handled."""

    def __init__(self) -> None:
        self._due: dict[Message, float] = {}

    def hold(self, message: Message) -> None:
        """From now on, nsqd is kept waiting for this message."""
        self._due[message] = _halfway(message)

    def release(self, message: Message) -> None:
        """And from now on no longer."""
        del self._due[message]

    @contextlib.contextmanager
    def holding(self, message: Message) -> Iterator[None]:
        """While in the block, nsqd is kept waiting for this message."""
        self.hold(message)
        try:
            yield
        finally:
            self.release(message)

    async def run(self) -> None:
        """Touch until cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.touch_due(time.monotonic())

    def touch_due(self, now: float) -> None:
        """Touch what has had half of its time."""
        for message, due in list(self._due.items()):
            if due <= now and not message.responded and not message.stale:
                message.touch()
                self._due[message] = _halfway(message)


def _halfway(message: Message) -> float:
    """Half of the time from now to the end of nsqd's patience; never, when that is not known."""
    now = time.monotonic()
    return now + (message.expires_at - now) / 2
