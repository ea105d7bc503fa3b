"""`/drain`: take this nsqd out of service; publishes are refused, consumers empty its channels.

1. A change is answered when it is on disk; it applies from then on, also after kill -9 and a
   restart.
2. Messages left are those that wait, are in flight or deferred in a channel, that no channel may
   see yet, and that are not in the log yet. A topic or channel that no consumer can empty has a
   reason (`held_up`).
3. With `exit` the process ends by itself once nothing is left, as with SIGTERM. It does so only
   once: after a restart it goes on draining and keeps running.
4. Topics are examined in slices of time. The final check that nothing is left runs in one go.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from sparq.broker.draining import BY_MAX, TOPICS_MAX, Drain, Draining
from sparq.daemon.http import Call, HttpError, Route
from sparq.nsqd import parameters
from sparq.nsqd.parameters import shown_time
from sparq.nsqd.stats_format import SLICE_SECONDS, remaining
from sparq.options.units import SECOND
from sparq.protocol.errors import RemoteError

if TYPE_CHECKING:
    from sparq.broker.broker import Broker
    from sparq.broker.topic import Topic
    from sparq.nsqd.server import Nsqd

LEFT_SHOWN: Final = 100
CHECK_SECONDS: Final = 0.25
LINGER_SECONDS: Final = 1.0
"""How long nsqd shows itself empty before it ends: waiting programs poll every half second."""

PAUSED, TOPIC_PAUSED = "paused", "topic paused"
NO_CHANNEL, NO_CONSUMERS = "no channel", "no consumers"

logger = logging.getLogger(__name__)


class QueueRemainder(NamedTuple):
    """Messages left in a channel, or in a topic itself.

    Attributes:
        channel: None: messages that no channel may see yet.
        held_up: why no consumer can take them; "": nothing prevents it.
    """

    topic: str
    channel: str | None
    depth: int
    in_flight: int
    deferred: int
    held_up: str

    @property
    def messages(self) -> int:
        """The total number of messages left."""
        return self.depth + self.in_flight + self.deferred


def left_in(topic: Topic) -> Iterator[QueueRemainder]:
    """Yield the messages left in a topic and its channels; places without any are skipped."""
    if depth := topic.depth() + topic.publishing.pending_messages:
        why = NO_CHANNEL if not topic.channels else TOPIC_PAUSED if topic.paused else ""
        yield QueueRemainder(topic.name, None, depth, 0, 0, why)
    for channel in tuple(topic.channels.values()):
        found = channel.depth(), channel.in_flight.count, channel.deferred_count()
        if not any(found):
            continue
        why = ""
        if channel.paused or topic.paused:
            why = PAUSED if channel.paused else TOPIC_PAUSED
        elif not channel.sessions and channel.range_reader is None:
            why = NO_CONSUMERS
        yield QueueRemainder(topic.name, channel.name, *found, why)


def has_nothing_left(broker: Broker) -> bool:
    """Whether nothing is left at this moment."""
    return not any(True for topic in broker.topics.values() for _ in left_in(topic))


async def remainders(broker: Broker) -> list[QueueRemainder]:
    """Return the messages left; the event loop runs in between."""
    found: list[QueueRemainder] = []
    until = time.perf_counter() + SLICE_SECONDS
    for topic in remaining(broker, list(broker.topics.values())):
        found += left_in(topic)
        if time.perf_counter() >= until:
            await asyncio.sleep(0)
            until = time.perf_counter() + SLICE_SECONDS
    return found


class DrainRoutes:
    """The drain handlers of one nsqd."""

    def __init__(self, nsqd: Nsqd) -> None:
        self._nsqd = nsqd
        self._broker = nsqd.broker

    def routes(self) -> list[Route]:
        """The table of endpoints."""
        return [
            Route("GET", "/drain", self.show),
            Route("POST", "/drain", partial(self.change, begins=True, of_topic=False)),
            Route("DELETE", "/drain", partial(self.change, begins=False, of_topic=False)),
            Route("POST", "/topic/drain", partial(self.change, begins=True, of_topic=True)),
            Route("DELETE", "/topic/drain", partial(self.change, begins=False, of_topic=True)),
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

    async def change(self, call: Call, *, begins: bool, of_topic: bool) -> dict[str, Any]:
        """Refuse publishes to nsqd or to one topic from now on, or accept them again.

        With `exit`, the process ends once nothing is left. The topic need not exist.
        """
        topic = parameters.name_of(call, "topic") if of_topic else ""
        before = self._broker.drains.now
        if begins and topic and topic not in before.topics and len(before.topics) >= TOPICS_MAX:
            raise HttpError(403, f"LIMIT_REACHED: {TOPICS_MAX} topics are draining already")
        by, leaves = call.client[:BY_MAX], not of_topic and call.flag("exit", False)

        def make(now: Draining) -> Draining:
            # A repeated request keeps the start time; its own `exit` replaces the earlier one.
            since_ns = time.time_ns() if (old := now.of(topic)) is None else old.since_ns
            return now.changed(topic, Drain(since_ns, by, leaves) if begins else None)

        if self._nsqd.exiting:
            raise HttpError(503, "EXITING")
        try:
            await self._nsqd.change_drains(make)
        except RemoteError as error:
            raise HttpError(500, f"INTERNAL_ERROR: {error.text}") from error
        what = f"topic {topic}: " if topic else ""
        if begins:
            more = ", and nsqd exits once nothing is left" if leaves else ""
            logger.info("DRAIN: %sbegun by %s: publishes are refused%s", what, by, more)
        elif before.of(topic) is not None:
            logger.info("DRAIN: %sended by %s: publishes are accepted again", what, by)
        if topic:
            return {"topic": topic, **_document(self._broker.drains.now.of(topic))}
        return await self.show(call)


def _document(drain: Drain | None) -> dict[str, Any]:
    if drain is None:
        return {"draining": False, "since": None, "by": None, "exit": False}
    since = shown_time(drain.since_ns)
    return {"draining": True, "since": since, "by": drain.by, "exit": drain.exit}


class ExitWhenDrained:
    """End the process when a drain with `exit` has nothing left."""

    def __init__(self, nsqd: Nsqd, stop: asyncio.Event) -> None:
        """Begin to watch; a drain begun in an earlier run continues.

        `stop`: the event that starts the orderly stop.
        """
        self._nsqd = nsqd
        self._stop = stop
        self._changed = asyncio.Event()
        nsqd.drain_watchers.append(self._changed.set)
        drain = nsqd.broker.drains.now.node
        if drain is not None:
            since = shown_time(drain.since_ns)
            logger.info("DRAIN: continues, begun by %s at %s", drain.by, since)
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Stop watching."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _watch(self) -> None:
        broker, drains, empty_since = self._nsqd.broker, self._nsqd.broker.drains, None
        while True:
            if drains.now.node is None:
                self._changed.clear()
                await self._changed.wait()
            await asyncio.sleep(CHECK_SECONDS)
            # In slices, then in one go: messages that move between topics are not missed.
            if drains.now.node is None or await remainders(broker) or not has_nothing_left(broker):
                empty_since = None
                continue
            if empty_since is None:
                empty_since = time.monotonic()
                refused = drains.refused_count
                logger.info("DRAIN: nothing is left; messages refused so far: %d", refused)
            if time.monotonic() - empty_since >= LINGER_SECONDS and await self._leave():
                return

    async def _leave(self) -> bool:
        """Stop nsqd if the drain has `exit` (rule 3); False: it does not, or no longer."""
        asked: list[Drain] = []

        def make(now: Draining) -> Draining:
            # Another change may have come first.
            if now.node is None or not now.node.exit:
                return now
            asked.append(now.node)
            return now.changed("", replace(now.node, exit=False))

        node = self._nsqd.broker.drains.now.node
        if node is None or not node.exit:
            return False
        try:
            # Cleared on disk before the stop: otherwise each later start would exit at once.
            await self._nsqd.change_drains(make)
        except RemoteError as error:
            text = "DRAIN: could not clear exit, so nsqd will exit again after the next start: %s"
            logger.warning(text, error.text)
        for drain in asked:
            seconds = (time.time_ns() - drain.since_ns) / SECOND
            logger.info("DRAIN: nothing is left after %.1f s: nsqd exits", seconds)
            self._stop.set()
        return bool(asked)
