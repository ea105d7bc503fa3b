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
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

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


class Drain(NamedTuple):
    """One drain.

    Attributes:
        since_ns: when it began (wall ns).
        by: the requester's name.
        exit: whether the process exits once nothing is left; always False for a topic.
    """

    since_ns: int
    by: str
    exit: bool = False


class Draining(NamedTuple):
    """All drains of one nsqd.

    Attributes:
        node: the drain of the whole nsqd; None: there is none.
        topics: the drains of single topics, by name.
    """

    node: Drain | None
    topics: Mapping[str, Drain]


NONE: Final = Draining(None, {})


def encode(draining: Draining) -> bytes:
    """The contents of `drain.json`."""
    documents = {
        name: {"since_ns": str(drain.since_ns), "by": drain.by, "exit": drain.exit}
        for name, drain in draining.topics.items()
    }
    node = draining.node
    own = None if node is None else {**node._asdict(), "since_ns": str(node.since_ns)}
    return stored_json.encode("draining", {"node": own, "topics": documents})


def decode(text: bytes) -> Draining:
    """Read a `drain.json`; raises ValueError: it is damaged, or of a later format."""
    drains = stored_json.decode("draining", text)
    try:
        node = None if drains["node"] is None else _drain_of(drains["node"])
        topics = {str(name): _drain_of(one) for name, one in drains["topics"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(str(error)) from error
    if not all(map(is_valid_name, topics)):
        raise ValueError("invalid topic name")
    return Draining(node, topics)


def _drain_of(document: Any) -> Drain:
    return Drain(int(document["since_ns"]), str(document["by"])[:BY_MAX], bool(document["exit"]))


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
        text = encode(wanted) if wanted != NONE else None
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
