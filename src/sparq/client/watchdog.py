"""Detect a blocked event loop in this program, and a peer that does not read.

1. While the loop is blocked, no heartbeat is answered, no message received and no response sent.
   After two missed heartbeats nsqd closes the connection and redelivers the messages in flight.
   Each consumer has one timer: a late tick means that something blocked the loop.
2. A peer that reads anything at all, however little, is alive. It is given up after ``CHECKS``
   consecutive checks without progress, spread over the timeout. A program whose own loop was
   blocked all that time has made only one check, so it does not give up the peer.
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
    """Watches the event loop in which it is started.

    Attributes:
        late_count: how often the loop was blocked for more than ``LATE_SECONDS``.
    """

    def __init__(self, suspect: str) -> None:
        self.late_count = 0
        self._suspect = suspect
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        """Start to watch."""
        loop = asyncio.get_running_loop()
        self._due = loop.time() + INTERVAL_SECONDS
        self._timer = loop.call_at(self._due, self._check)

    def stop(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        late = asyncio.get_running_loop().time() - self._due
        if late > LATE_SECONDS:
            self.late_count += 1
            log.warning(
                "the event loop was blocked for %.1f s, probably by %s; heartbeats were not "
                "answered. Await instead of computing or blocking there, or move the work to "
                "asyncio.to_thread",
                late,
                self._suspect,
            )
        self.start()


CHECKS: Final = 4


class WriteWatch:
    """Watches the sending progress of one connection while its transport's buffer is full."""

    def __init__(self, seconds: float, taken: Callable[[], int], stalled: Callable[[], None]):
        """Call ``stalled`` after ``seconds`` without progress; ``taken`` returns the bytes sent."""
        self._interval = seconds / CHECKS
        self._taken = taken
        self._stalled = stalled
        self._seen = 0
        self._idle_checks = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start to check: the transport has paused writing."""
        self._seen, self._idle_checks = self._taken(), 0
        self._check_later()

    def stop(self) -> None:
        """Stop checking: writing has resumed, or the connection is lost."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        taken = self._taken()
        self._idle_checks = self._idle_checks + 1 if taken == self._seen else 0
        self._seen = taken
        if self._idle_checks < CHECKS:
            self._check_later()
        else:
            self._timer = None
            self._stalled()

    def _check_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._check)
