"""How long a client may take: until its first command, and for a command that comes in pieces.

Both are off unless the flags `--first-command-timeout` and `--min-receive-rate` ask for them.

1. A connection whose first command has not been executed in time ends. Waiting for an authd is the
   server's time, not the client's.
2. While a command is unfinished, each `GRACE_SECONDS` must bring so many bytes, or finish it. Time
   in which the server does not read does not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

GRACE_SECONDS: Final = 5.0
"""A command's first bytes may be slow: networks stall."""


class Pace:
    """Watches over one connection.

    Args:
        loop: calls back when time is up.
        first_seconds: until the first command; 0: any time.
        rate: bytes a second of an unfinished command; 0: any.
        is_unfinished: whether a command has begun and has not all arrived.
        is_reading: whether what the client sends is read.
        give_up: ends the connection.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        first_seconds: float,
        rate: int,
        is_unfinished: Callable[[], bool],
        is_reading: Callable[[], bool],
        give_up: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._bytes_due = int(rate * GRACE_SECONDS)
        self._is_unfinished = is_unfinished
        self._is_reading = is_reading
        self._give_up = give_up
        self._bytes = 0
        self._moved = False
        self._first = loop.call_later(first_seconds, give_up) if first_seconds else None
        self._window: asyncio.TimerHandle | None = None

    def moved(self) -> None:
        """A command has come to its end."""
        self._moved = True
        if self._first is not None:
            self._first.cancel()
            self._first = None

    def note(self, size: int) -> None:
        """So many bytes have come, and were taken in."""
        self._bytes += size
        if self._bytes_due and self._window is None and self._is_unfinished():
            self._begin()

    def stop(self) -> None:
        """The connection is over."""
        for timer in (self._first, self._window):
            if timer is not None:
                timer.cancel()

    def _begin(self) -> None:
        self._bytes, self._moved = 0, False
        self._window = self._loop.call_later(GRACE_SECONDS, self._look)

    def _look(self) -> None:
        self._window = None
        if not self._is_unfinished():
            return
        if self._moved or self._bytes >= self._bytes_due or not self._is_reading():
            self._begin()
        else:
            self._give_up()
