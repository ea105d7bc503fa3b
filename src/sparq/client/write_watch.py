"""Notices a peer that takes nothing of what is sent to it.

1. It looks only while the transport holds back: ``start`` when writing is to pause, ``stop`` when
   it may go on.
2. A peer that takes anything at all, however little, is alive. It is given up after ``LOOKS``
   looks in a row, spread over the time, that saw it take nothing: a program that stood still
   itself for so long has looked but once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

LOOKS: Final = 4


class WriteWatch:
    """Looks at one connection's progress in sending."""

    def __init__(self, seconds: float, taken: Callable[[], int], stalled: Callable[[], None]):
        """For so many seconds without progress; ``taken`` is how many bytes have left so far."""
        self._interval = seconds / LOOKS
        self._taken = taken
        self._stalled = stalled
        self._seen = 0
        self._idle_looks = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to look."""
        self._seen, self._idle_looks = self._taken(), 0
        self._look_later()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        taken = self._taken()
        self._idle_looks = self._idle_looks + 1 if taken == self._seen else 0
        self._seen = taken
        if self._idle_looks < LOOKS:
            self._look_later()
        else:
            self._timer = None
            self._stalled()

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._look)
