"""The watchdog: warns of whoever holds up the event loop.

While the loop is held up no heartbeat is answered, no message received and no answer sent; after
two missed heartbeats nsqd gives the connection up, and delivers again what was in flight there.
One timer a consumer: when it fires late, somebody was in the way.
"""

from __future__ import annotations

import asyncio
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
