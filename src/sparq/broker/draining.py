"""Refuses publishes while the nsqd, or their topic, is draining.

1. A drain takes effect once it is written, and then survives a restart; so does the end of a drain.
2. Messages accepted before are kept: commits, deliveries, FIN, REQ and channels work as usual.
3. Dead letters are still accepted: they are not a client's publish, and their channel could not
   finish them otherwise.
4. Changes are written one after another: each one is applied to the result of the one before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from sparq.broker.catalog import Catalog, DrainSave
from sparq.broker.drain_file import NONE, Draining
from sparq.broker.options import LimitReached
from sparq.broker.publishing import Ticket, Trouble
from sparq.broker.turn import Turn
from sparq.protocol.errors import DRAINING, TOPIC_DRAINING, RemoteError
from sparq.protocol.instant import Instant

Make = Callable[[Draining], Draining]
"""Returns the drains after a change, given the current ones."""


class DrainsSaved(NamedTuple):
    """The continuation after drains were written: they take effect, or nothing has changed."""

    drains: Drains
    wanted: Draining
    save: DrainSave
    ticket: Ticket

    def finish(self, turn: Turn, now: Instant) -> None:
        """Apply the result and answer the requester."""
        refused: RemoteError | None = None
        if (error := self.save.error) is None:
            turn.health.recover(Trouble.SAVE)
            self.drains.take(self.wanted)
        else:
            turn.health.fail(Trouble.SAVE, "", f"writing drains failed: {error}", error)
            refused = RemoteError("INTERNAL_ERROR", error.reason)
        turn.published.append((self.ticket, refused))
        self.drains.saved()


class Drains:
    """The drains of one nsqd.

    Attributes:
        now: the drains in force.
        is_on: whether there is any drain; checked by each publish.
        refused_count: messages refused because of a drain since nsqd started.
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
        """Put drains into force."""
        self.now = draining
        self.is_on = draining.is_on

    def change(self, make: Make, ticket: Ticket) -> None:
        """Write changed drains, then put them into force; the ticket is answered once."""
        self._waiting.append((make, ticket))
        if not self._is_saving:
            self._save_next()

    def saved(self) -> None:
        """Write the next waiting change, after the previous one was written or failed."""
        self._is_saving = False
        if self._waiting:
            self._save_next()

    def _save_next(self) -> None:
        self._is_saving = True
        make, ticket = self._waiting.popleft()
        # Computed only now: the change before this one may have failed (rule 4).
        wanted = make(self.now)
        save = DrainSave(self._catalog, wanted)
        self._turn.submit(save, None, DrainsSaved(self, wanted, save, ticket))

    def refusal(self, topic: str) -> str:
        """Why a topic accepts no publishes; "": it accepts them."""
        if self.now.node is not None:
            return DRAINING
        return TOPIC_DRAINING if topic in self.now.topics else ""

    def check(self, topic: str, messages: int) -> None:
        """Refuse and count a publish if a drain applies; raises LimitReached."""
        if reason := self.refusal(topic):
            self.refused_count += messages
            raise LimitReached(reason)
