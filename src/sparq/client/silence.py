"""Detect connections that do not answer, and the publishes on them that are overdue.

A stopped process, or a network that drops packets, leaves a socket open: no error occurs and no
data arrive. A publish that waits there until its deadline has no time left for another nsqd.

1. A connection is silent if an answer is due and nothing at all has arrived for ``SILENT_SECONDS``,
   in two consecutive checks. Between the checks the loop reads what has arrived, so a program that
   was itself blocked does not take a connection for silent. New publishes skip a silent connection;
   that alone never sends a publish twice.
2. A publish on it is overdue after half of its time, or after ``write_timeout`` if that is less. It
   may be stored there: sending it to another nsqd as well means at-least-once delivery.
3. The first data received end the silence. A connection that stays silent is closed by its own
   timeouts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from sparq.client.publish import PendingPublish

if TYPE_CHECKING:
    from sparq.client.connection import Connection

CHECK_SECONDS: Final = 0.05
"""Interval between two checks, while any publish is pending."""

SILENT_SECONDS: Final = 0.25
LAST_PART: Final = 0.25
"""Last part of a publish's time, in which it is overdue regardless of when data last arrived."""

OVERDUE_MAX: Final = 1_000
"""Limit per connection and check, so as not to block the event loop."""


class SilenceDetector:
    """Finds silent connections; ``check`` is called repeatedly.

    Attributes:
        links: the silent connections.
    """

    def __init__(self, patience_seconds: float) -> None:
        self.links: frozenset[Connection] = frozenset()
        self._patience = patience_seconds
        self._waiting: dict[Connection, float] = {}

    def check(self, links: Iterable[Connection], now: float) -> None:
        """Check which of these connections are silent now."""
        before = self._waiting
        self._waiting = {
            link: since
            for link in links
            if link.live and (since := link.waiting_since) is not None
            if now - since >= SILENT_SECONDS
        }
        # The same time in both checks: whatever arrives in between moves `waiting_since`.
        self.links = frozenset(
            link for link, since in self._waiting.items() if before.get(link) == since
        )

    def forget(self, link: Connection) -> None:
        """Remove a lost connection."""
        self._waiting.pop(link, None)
        self.links -= {link}

    def overdue(self, link: Connection, now: float) -> list[PendingPublish]:
        """Return publishes on a silent connection that should be sent to another nsqd as well."""
        found: list[PendingPublish] = []
        heard_at = self._waiting[link]
        for request in link.requests.waiting:
            if isinstance(request, PendingPublish) and self._is_overdue(request, heard_at, now):
                found.append(request)
                if len(found) == OVERDUE_MAX:
                    break
        return found

    def _is_overdue(self, publish: PendingPublish, heard_at: float, now: float) -> bool:
        if publish.sink.done():
            return False
        seconds = publish.deadline - publish.asked_at
        silent = now - max(publish.asked_at, heard_at)
        return (
            silent >= min(self._patience, seconds / 2)
            or publish.deadline - now <= seconds * LAST_PART
        )
