"""Which connections do not answer, and which of their publishes have waited long enough for that.

A process that is stopped, or a network that swallows packets, leaves a socket open: nothing fails,
and nothing comes. Whoever waits there until the deadline has lost the time to ask another nsqd.

1. A connection is silent when an answer is due on it and nothing at all has come for
   ``SILENT_SECONDS``, in two looks in a row: between them the loop has read what had arrived, so
   that a program that stood still itself takes nobody for silent. New publishes pass it over, which
   costs nothing: none is sent twice for that.
2. A publish on it is overdue when half of the time that it had is over, or ``write_timeout``, if
   that is less. It may be stored there: sending it to another nsqd as well is at least once.
3. The first answer on it ends its silence. One that stays silent is given up by its connection.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from sparq.client.publish import Publish

if TYPE_CHECKING:
    from sparq.client.connection import Connection

LOOK_SECONDS: Final = 0.05
"""Between two looks, while anything is under way."""

SILENT_SECONDS: Final = 0.25
LAST_PART: Final = 0.25
"""Of the time that a publish has: in it, it is overdue whatever was heard of other publishes."""

OVERDUE_MAX: Final = 1_000
"""Of one connection and one look, so that the loop goes on meanwhile."""


class Silence:
    """Looks at connections again and again.

    Attributes:
        links: the connections that are silent.
    """

    def __init__(self, patience_seconds: float) -> None:
        self.links: frozenset[Connection] = frozenset()
        self._patience = patience_seconds
        self._waiting: dict[Connection, float] = {}

    def look(self, links: Iterable[Connection], now: float) -> None:
        """See which of these are silent now."""
        before = self._waiting
        self._waiting = {
            link: since
            for link in links
            if link.live and (since := link.waiting_since) is not None
            if now - since >= SILENT_SECONDS
        }
        self.links = frozenset(
            link for link, since in self._waiting.items() if before.get(link) == since
        )

    def forget(self, link: Connection) -> None:
        """It is no more."""
        self._waiting.pop(link, None)
        self.links -= {link}

    def overdue(self, link: Connection, now: float) -> list[Publish]:
        """The publishes on a silent connection that another nsqd should be asked for."""
        found: list[Publish] = []
        heard_at = self._waiting[link]
        for request in link.requests.waiting:
            if isinstance(request, Publish) and self._is_overdue(request, heard_at, now):
                found.append(request)
                if len(found) == OVERDUE_MAX:
                    break
        return found

    def _is_overdue(self, publish: Publish, heard_at: float, now: float) -> bool:
        if publish.teller.done():
            return False
        seconds = publish.deadline - publish.asked_at
        silent = now - max(publish.asked_at, heard_at)
        return (
            silent >= min(self._patience, seconds / 2)
            or publish.deadline - now <= seconds * LAST_PART
        )
