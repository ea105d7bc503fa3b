"""Publishes that are refused because the nsqd, or their topic, drains.

1. A drain holds once it is written, and then outlives the process; so does its end.
2. What was taken before is kept: commits, deliveries, FIN, REQ and channels go on as ever.
3. Dead letters are taken all the same: they are no publish of a client, and their channel could
   not finish them otherwise.
4. Changes are written one after the other: each is made of what the one before has come to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from sparq.broker.catalog import Catalog, DrainSave
from sparq.broker.drain_file import NONE, Draining
from sparq.broker.options import LimitReached
from sparq.broker.publishing import Ticket
from sparq.broker.turn import Turn
from sparq.protocol.errors import DRAINING, TOPIC_DRAINING, RemoteError
from sparq.protocol.instant import Instant

Make = Callable[[Draining], Draining]
"""What a change makes of the drains that there are."""


class DrainsSaved(NamedTuple):
    """What goes on when drains were written: they hold, or all is as before."""

    drains: Drains
    wanted: Draining
    save: DrainSave
    ticket: Ticket

    def finish(self, turn: Turn, now: Instant) -> None:
        """Whoever has asked is told."""
        refused: RemoteError | None = None
        if (error := self.save.error) is None:
            self.drains.take(self.wanted)
        else:
            turn.health.fail(f"writing drains failed: {error}", error)
            refused = RemoteError("INTERNAL_ERROR", error.reason)
        turn.published.append((self.ticket, refused))
        self.drains.saved()


class Drains:
    """The drains of one nsqd.

    Attributes:
        now: those in force.
        is_on: whether there is any; what publishes look at.
        refused_count: messages that were refused for a drain since nsqd started.
    """

    def __init__(self, catalog: Catalog, turn: Turn) -> None:
        self.now = NONE
        self.is_on = False
        self.refused_count = 0
        self._catalog = catalog
        self._turn = turn
        self._waiting: deque[tuple[Make, Ticket]] = deque()
        self._is_saving = False

    def take(self, draining: Draining) -> None:
        """From now on have these hold."""
        self.now = draining
        self.is_on = draining.is_on

    def change(self, make: Make, ticket: Ticket) -> None:
        """Have others hold, once they are written; the ticket is answered once."""
        self._waiting.append((make, ticket))
        if not self._is_saving:
            self._save_next()

    def saved(self) -> None:
        """The last change is done, or has failed: the next one's turn."""
        self._is_saving = False
        if self._waiting:
            self._save_next()

    def _save_next(self) -> None:
        self._is_saving = True
        make, ticket = self._waiting.popleft()
        wanted = make(self.now)
        save = DrainSave(self._catalog, wanted)
        self._turn.submit(save, None, DrainsSaved(self, wanted, save, ticket))

    def refusal(self, topic: str) -> str:
        """Why nothing may be published to a topic; "": it may."""
        if self.now.node is not None:
            return DRAINING
        return TOPIC_DRAINING if topic in self.now.topics else ""

    def check(self, topic: str, messages: int) -> None:
        """Refuse a publish, and count it; raises LimitReached."""
        if reason := self.refusal(topic):
            self.refused_count += messages
            raise LimitReached(reason)
