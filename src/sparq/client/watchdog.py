"""Notices what stands still: this program's event loop, or a peer that takes nothing.

1. While the loop is held up no heartbeat is answered, no message received and no answer sent; after
   two missed heartbeats nsqd gives the connection up, and delivers again what was in flight there.
   One timer a consumer: when it fires late, somebody was in the way.
2. A peer that takes anything at all, however little, is alive. It is given up after ``LOOKS``
   looks in a row, spread over the time, that saw it take nothing: a program that stood still
   itself for so long has looked but once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from sparq.client.log_fields import FieldLogger

log = FieldLogger(__name__)

INTERVAL_SECONDS: Final = 0.5
LATE_SECONDS: Final = 1.0


class Watchdog:
    """Watches the loop that it is started in.

    Attributes:
        late_count: how often the loop was held up for more than ``LATE_SECONDS``.
    """

    def __init__(self, suspect: str) -> None:
        self.late_count = 0
        self._suspect = suspect
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        """Begin to watch."""
        loop = asyncio.get_running_loop()
        self._due = loop.time() + INTERVAL_SECONDS
        self._timer = loop.call_at(self._due, self._look)

    def stop(self) -> None:
        """Watch no longer."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        late = asyncio.get_running_loop().time() - self._due
        if late > LATE_SECONDS:
            self.late_count += 1
            log.warning(
                "the event loop was held up for %.1f s, probably by %s: meanwhile no heartbeat is "
                "answered. Await instead of computing or blocking there, or hand the work to "
                "asyncio.to_thread",
                late,
                self._suspect,
            )
        self.start()


LOOKS: Final = 4


class WriteWatch:
    """Looks at one connection's progress in sending, while its transport holds back."""

    def __init__(self, seconds: float, taken: Callable[[], int], stalled: Callable[[], None]):
        """For so many seconds without progress; ``taken`` is how many bytes have left so far."""
        self._interval = seconds / LOOKS
        self._taken = taken
        self._stalled = stalled
        self._seen = 0
        self._idle_looks = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to look: writing is to pause."""
        self._seen, self._idle_looks = self._taken(), 0
        self._look_later()

    def stop(self) -> None:
        """Look no more: writing may go on."""
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
