"""Messages left in an nsqd that drains, and the end of its process.

1. Messages left are those that wait, are in flight or deferred in a channel, that no channel may
   see yet, and that are not in the log yet. A topic or channel that no consumer can empty has a
   reason (`held_up`).
2. With `exit` the process ends by itself once nothing is left, as with SIGTERM. It does so only
   once: after a restart it goes on draining and keeps running.
3. Topics are examined in slices of time. The final check that nothing is left runs in one go.
4. This module is loaded at the start and does not import HTTP, which is loaded later (see `site`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from sparq.broker.draining import Drain, Draining
from sparq.nsqd.stats_format import SLICE_SECONDS, remaining
from sparq.options.units import SECOND
from sparq.protocol.errors import RemoteError
from sparq.protocol.instant import rfc3339

if TYPE_CHECKING:
    from sparq.broker.broker import Broker
    from sparq.broker.topic import Topic
    from sparq.nsqd.server import Nsqd

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
        elif not channel.sessions and channel.hold is None:
            why = NO_CONSUMERS
        yield QueueRemainder(topic.name, channel.name, *found, why)


def has_nothing_left(broker: Broker) -> bool:
    """Whether nothing is left at this moment."""
    return not any(True for topic in broker.topics.values() for _ in left_in(topic))


async def remainders(broker: Broker) -> list[QueueRemainder]:
    """Return the messages left, largest first; the event loop runs in between."""
    found: list[QueueRemainder] = []
    until = time.perf_counter() + SLICE_SECONDS
    for topic in remaining(broker, list(broker.topics.values())):
        found += left_in(topic)
        if time.perf_counter() >= until:
            await asyncio.sleep(0)
            until = time.perf_counter() + SLICE_SECONDS
    return sorted(found, key=attrgetter("messages"), reverse=True)


class ExitWhenDrained:
    """End the process when a drain with `exit` has nothing left."""

    def __init__(self, nsqd: Nsqd, stop: asyncio.Event) -> None:
        """`stop`: the event that starts the orderly stop."""
        self._nsqd = nsqd
        self._stop = stop
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        nsqd.drain_watchers.append(self._changed.set)

    def start(self) -> None:
        """Begin to watch; a drain begun in an earlier run continues."""
        drain = self._nsqd.broker.drains.now.node
        if drain is not None:
            since = rfc3339(drain.since_ns)
            logger.info("DRAIN: continues, begun by %s at %s", drain.by, since)
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _watch(self) -> None:
        drains, empty_since = self._nsqd.broker.drains, None
        while True:
            if drains.now.node is None:
                self._changed.clear()
                await self._changed.wait()
            await asyncio.sleep(CHECK_SECONDS)
            if drains.now.node is None or not await self._is_empty():
                empty_since = None
                continue
            if empty_since is None:
                empty_since = time.monotonic()
                refused = drains.refused_count
                logger.info("DRAIN: nothing is left; messages refused so far: %d", refused)
            if time.monotonic() - empty_since >= LINGER_SECONDS and await self._leave():
                return

    async def _is_empty(self) -> bool:
        """Check in slices, then in one go: messages that move between topics are not missed."""
        return not await remainders(self._nsqd.broker) and has_nothing_left(self._nsqd.broker)

    async def _leave(self) -> bool:
        """Stop nsqd if the drain has `exit` (rule 2); False: it does not, or no longer."""
        node = self._nsqd.broker.drains.now.node
        if node is None or not node.exit:
            return False
        asked: list[Drain] = []

        def make(now: Draining) -> Draining:
            # Another change may have come first.
            if now.node is None or not now.node.exit:
                return now
            asked.append(now.node)
            return now._replace(node=now.node._replace(exit=False))

        try:
            # Cleared on disk before the stop: otherwise each later start would exit at once.
            await self._nsqd.change_drains(make)
        except RemoteError as error:
            logger.warning(
                "DRAIN: could not clear exit, so nsqd will exit again after the next start: %s",
                error.text,
            )
        if asked:
            seconds = (time.time_ns() - node.since_ns) / SECOND
            logger.info("DRAIN: nothing is left after %.1f s: nsqd exits", seconds)
            self._stop.set()
        return bool(asked)
