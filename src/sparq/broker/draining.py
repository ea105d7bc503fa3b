"""Refuses publishes while this nsqd or their topic drains, so that producers use another nsqd.

1. A drain takes effect once it is written to `drain.json` in the data path, and then survives a
   restart; so does the end of a drain. Without the file there are none.
2. Messages accepted before are kept: commits, deliveries, FIN, REQ and channels work as usual.
3. Dead letters are still accepted: they are not a client's publish, and their channel could not
   finish them otherwise.
4. Changes are written one after another: each one is applied to the result of the one before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from sparq.broker import stored_json
from sparq.broker.catalog import Catalog, SaveTask
from sparq.broker.options import LimitReached
from sparq.broker.turn import Ticket, TopicTask, Turn
from sparq.protocol.errors import DRAINING, TOPIC_DRAINING
from sparq.protocol.instant import Instant
from sparq.protocol.names import is_valid_name

FILE: Final = "drain.json"
TOPICS_MAX: Final = 10_000
BY_MAX: Final = 256
"""Maximum length of the requester's name, in characters."""


class Drain(Struct, frozen=True):
    """One drain.

    Attributes:
        since_ns: when it began (wall ns).
        by: the requester's name.
        exit: whether the process exits once nothing is left; always False for a topic.
    """

    since_ns: int
    by: Annotated[str, Meta(max_length=BY_MAX)]
    exit: bool = False


class Draining(Struct, frozen=True):
    """All drains of one nsqd.

    Attributes:
        node: the drain of the whole nsqd; None: there is none.
        topics: the drains of single topics, by name.
    """

    node: Drain | None
    topics: dict[str, Drain]

    def of(self, topic: str) -> Drain | None:
        """The drain of a topic; of the whole nsqd if the topic is ""."""
        return self.topics.get(topic) if topic else self.node

    def changed(self, topic: str, drain: Drain | None) -> Draining:
        """Return the drains after one of them, as in `of`, has begun or ended (None)."""
        if not topic:
            return Draining(drain, self.topics)
        others = {name: one for name, one in self.topics.items() if name != topic}
        return Draining(self.node, others if drain is None else {**others, topic: drain})


NONE: Final = Draining(None, {})


def decode(text: bytes) -> Draining:
    """Read a `drain.json`; raises ValueError: it is damaged, or of a later format."""
    found = stored_json.decode("draining", text, Draining)
    if not all(map(is_valid_name, found.topics)):
        raise ValueError("invalid topic name")
    return found


ChangeDrains = Callable[[Draining], Draining]
"""Returns the drains after a change, given the current ones."""


class Drains:
    """The drains of one nsqd.

    Attributes:
        now: the drains in force.
        is_on: whether there is any drain; checked by each publish.
        refused_count: messages refused because of a drain since nsqd started.
    """

    def __init__(self, catalog: Catalog, turn: Turn[Any]) -> None:
        self.now = NONE
        self.is_on = False
        self.refused_count = 0
        self._catalog = catalog
        self._turn = turn
        self._changes: deque[tuple[ChangeDrains, Ticket]] = deque()

    def load(self) -> None:
        """Put the stored drains into force; raises CatalogError: the file cannot be used."""
        # Guessing would be unsafe: publishes to an nsqd that is draining would be stranded.
        self._put_into_force(self._catalog.read_file(FILE, decode, "drains") or NONE)

    def _put_into_force(self, draining: Draining) -> None:
        self.now = draining
        self.is_on = draining.node is not None or bool(draining.topics)

    def change(self, change: ChangeDrains, ticket: Ticket) -> None:
        """Write changed drains, then put them into force; the ticket is answered once."""
        self._changes.append((change, ticket))
        if len(self._changes) == 1:
            self._save_next()

    def _save_next(self) -> None:
        # Computed only now: the change before this one may have failed (rule 4).
        wanted = self._changes[0][0](self.now)
        text = stored_json.encode("draining", wanted) if wanted != NONE else None
        save = SaveTask(partial(self._catalog.save_file, FILE, text), "drains")
        self._turn.tasks.append(TopicTask(save, partial(self._saved, save, wanted)))

    def _saved(self, save: SaveTask, wanted: Draining, _now: Instant) -> None:
        _, ticket = self._changes.popleft()
        if save.error is None:
            self._put_into_force(wanted)
        save.report(self._turn, ticket)
        if self._changes:
            self._save_next()

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
