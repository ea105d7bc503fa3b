"""Limits for slow clients: time until the first command, and the rate of unfinished commands.

Both limits are off unless `--first-command-timeout` or `--min-receive-rate` is given.

1. A connection is closed if its first command has not been executed in time. The time spent
   waiting for an authd does not count.
2. While a command is unfinished, each period of `GRACE_SECONDS` must bring a minimum number of
   bytes, or finish the command. Time in which the server does not read does not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

GRACE_SECONDS: Final = 5.0
"""Period over which the rate is measured: a command may start slowly, as networks stall."""


class SlowClientLimit:
    """Close one connection if it is too slow.

    Args:
        loop: event loop for the timers.
        first_seconds: limit until the first command; 0: none.
        rate: minimum bytes per second of an unfinished command; 0: none.
        is_unfinished: whether a command has arrived in part only.
        is_reading: whether the server is reading from the client.
        give_up: closes the connection.
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
        """Note that a command has been executed, or waits for an authd."""
        self._moved = True
        if self._first is not None:
            self._first.cancel()
            self._first = None

    def note(self, size: int) -> None:
        """Note that `size` bytes have been received and processed."""
        self._bytes += size
        if self._bytes_due and self._window is None and self._is_unfinished():
            self._begin()

    def stop(self) -> None:
        """Cancel the timers, when the connection is closed."""
        for timer in (self._first, self._window):
            if timer is not None:
                timer.cancel()

    def _begin(self) -> None:
        # A new period counts from zero: bytes of earlier commands must not pay for a stalled one.
        self._bytes, self._moved = 0, False
        self._window = self._loop.call_later(GRACE_SECONDS, self._check)

    def _check(self) -> None:
        self._window = None
        if not self._is_unfinished():
            return
        if self._moved or self._bytes >= self._bytes_due or not self._is_reading():
            self._begin()
        else:
            self._give_up()
