"""`/drain`: take this nsqd out of service; publishes are refused, consumers empty its channels.

1. A change is answered when it is on disk; it applies from then on, also after kill -9 and a
   restart.
2. `leaving` determines the remaining messages, and ends the process if the drain asks for it.
"""

from __future__ import annotations

import heapq
import logging
import time
from typing import TYPE_CHECKING, Any, Final

from sparq.broker.draining import BY_MAX, TOPICS_MAX, Drain, Draining
from sparq.daemon.http import Call, HttpError, Route
from sparq.nsqd import parameters
from sparq.nsqd.leaving import has_nothing_left, remainders
from sparq.nsqd.parameters import shown_time
from sparq.protocol.errors import RemoteError

if TYPE_CHECKING:
    from sparq.broker.draining import ChangeDrains
    from sparq.nsqd.server import Nsqd

PATH: Final = "/drain"
TOPIC_PATH: Final = "/topic/drain"
LEFT_SHOWN: Final = 100

logger = logging.getLogger(__name__)


class DrainRoutes:
    """The drain handlers of one nsqd."""

    def __init__(self, nsqd: Nsqd) -> None:
        self._nsqd = nsqd
        self._broker = nsqd.broker

    def routes(self) -> list[Route]:
        """The table of endpoints."""
        return [
            Route("GET", PATH, self.show),
            Route("POST", PATH, self.begin),
            Route("DELETE", PATH, self.end),
            Route("POST", TOPIC_PATH, self.begin_topic),
            Route("DELETE", TOPIC_PATH, self.end_topic),
        ]

    async def show(self, _call: Call) -> dict[str, Any]:
        """Return whether nsqd drains, since when, and the messages left."""
        left = await remainders(self._broker)
        drains = self._broker.drains
        # Queues that no consumer can empty come first, however short: the drain waits for the
        # operator there.
        shown = heapq.nlargest(LEFT_SHOWN, left, key=lambda one: (bool(one.held_up), one.messages))
        return {
            **_document(drains.now.node),
            "refused": drains.refused_count,
            "empty": not left and has_nothing_left(self._broker),
            "topics": len({one.topic for one in left}),
            "channels": sum(one.channel is not None for one in left),
            "depth": sum(one.depth for one in left),
            "in_flight": sum(one.in_flight for one in left),
            "deferred": sum(one.deferred for one in left),
            "left": [one._asdict() for one in shown],
            "draining_topics": {name: _document(one) for name, one in drains.now.topics.items()},
        }

    async def begin(self, call: Call) -> dict[str, Any]:
        """Refuse publishes from now on; with `exit`, end the process once nothing is left."""
        drain = Drain(time.time_ns(), _client_address(call), call.flag("exit", False))

        def make(now: Draining) -> Draining:
            # A repeated request keeps the start time; its own `exit` replaces the earlier one.
            began = drain if now.node is None else drain._replace(since_ns=now.node.since_ns)
            return now._replace(node=began)

        await self._change(make)
        what = ", and nsqd exits once nothing is left" if drain.exit else ""
        logger.info("DRAIN: begun by %s: publishes are refused%s", drain.by, what)
        return await self.show(call)

    async def end(self, call: Call) -> dict[str, Any]:
        """Accept publishes again."""
        was_on = self._broker.drains.now.node is not None
        await self._change(lambda now: now._replace(node=None))
        if was_on:
            logger.info("DRAIN: ended by %s: publishes are accepted again", _client_address(call))
        return await self.show(call)

    async def begin_topic(self, call: Call) -> dict[str, Any]:
        """Refuse publishes to one topic from now on; the topic need not exist."""
        topic = parameters.name_of(call, "topic")
        topics = self._broker.drains.now.topics
        if topic not in topics and len(topics) >= TOPICS_MAX:
            raise HttpError(403, f"LIMIT_REACHED: {TOPICS_MAX} topics are draining already")
        drain = Drain(time.time_ns(), _client_address(call))
        # A drain of this topic that is on already wins: a repeated request keeps its start time.
        await self._change(lambda now: now._replace(topics={topic: drain, **now.topics}))
        logger.info("DRAIN: topic %s: begun by %s: publishes are refused", topic, drain.by)
        return {"topic": topic, **_document(self._broker.drains.now.topics.get(topic))}

    async def end_topic(self, call: Call) -> dict[str, Any]:
        """Accept publishes to a topic again."""
        topic = parameters.name_of(call, "topic")
        was_on = topic in self._broker.drains.now.topics

        def make(now: Draining) -> Draining:
            return now._replace(topics={k: v for k, v in now.topics.items() if k != topic})

        await self._change(make)
        if was_on:
            logger.info(
                "DRAIN: topic %s: ended by %s: publishes are accepted again",
                topic,
                _client_address(call),
            )
        return {"topic": topic, **_document(self._broker.drains.now.topics.get(topic))}

    async def _change(self, make: ChangeDrains) -> None:
        if self._nsqd.exiting:
            raise HttpError(503, "EXITING")
        try:
            await self._nsqd.change_drains(make)
        except RemoteError as error:
            raise HttpError(500, f"INTERNAL_ERROR: {error.text}") from error


def _client_address(call: Call) -> str:
    """Return the client's address, or "a unix socket", cut to `BY_MAX` characters."""
    return call.client[:BY_MAX]


def _document(drain: Drain | None) -> dict[str, Any]:
    if drain is None:
        return {"draining": False, "since": None, "by": None, "exit": False}
    since = shown_time(drain.since_ns)
    return {"draining": True, "since": since, "by": drain.by, "exit": drain.exit}
