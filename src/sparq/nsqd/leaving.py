"""What is left in an nsqd that drains, and its end.

1. What is left is what waits, is in flight or deferred in a channel, what no channel sees yet, and
   what is on its way to the log. A topic or channel that nobody can work off says why.
2. With `exit` the process ends by itself once nothing is left, as SIGTERM ends it. That is done
   once: started again it drains on, and stays.
3. Many topics are looked at some at a time. That nothing is left is found at one moment.
4. It is loaded at the start, and knows no HTTP, which is loaded later (see `site`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from sparq.broker.drain_file import Drain, Draining
from sparq.nsqd.figures import SLICE_SECONDS, standing
from sparq.protocol.durations import SECOND
from sparq.protocol.errors import RemoteError
from sparq.protocol.instant import rfc3339

if TYPE_CHECKING:
    from sparq.broker.broker import Broker
    from sparq.broker.topic import Topic
    from sparq.nsqd.server import Nsqd

LOOK_SECONDS: Final = 0.25
LINGER_SECONDS: Final = 1.0
"""How long nsqd is seen empty before it ends: whoever waits for that asks every half second."""

PAUSED, TOPIC_PAUSED = "paused", "topic paused"
NO_CHANNEL, NO_CONSUMERS = "no channel", "no consumers"

logger = logging.getLogger(__name__)


class Left(NamedTuple):
    """What is left in a channel, or in a topic itself.

    Attributes:
        channel: None: messages that no channel sees yet.
        held_up: why nobody works it off; "": somebody may.
    """

    topic: str
    channel: str | None
    depth: int
    in_flight: int
    deferred: int
    held_up: str

    @property
    def messages(self) -> int:
        """All of them."""
        return self.depth + self.in_flight + self.deferred


def left_in(topic: Topic) -> Iterator[Left]:
    """What is left in a topic and in its channels, none where nothing is."""
    if depth := topic.depth() + topic.publishing.pending_messages:
        why = NO_CHANNEL if not topic.channels else TOPIC_PAUSED if topic.paused else ""
        yield Left(topic.name, None, depth, 0, 0, why)
    for channel in tuple(topic.channels.values()):
        found = channel.depth(), channel.in_flight.count, channel.deferred_count()
        if not any(found):
            continue
        why = ""
        if channel.paused or topic.paused:
            why = PAUSED if channel.paused else TOPIC_PAUSED
        elif not channel.sessions and channel.hold is None:
            why = NO_CONSUMERS
        yield Left(topic.name, channel.name, *found, why)


def has_nothing_left(broker: Broker) -> bool:
    """Whether nothing is left at this moment."""
    return not any(True for topic in broker.topics.values() for _ in left_in(topic))


async def looked(broker: Broker) -> list[Left]:
    """What is left, largest first; the loop runs on in between."""
    found: list[Left] = []
    until = time.perf_counter() + SLICE_SECONDS
    for topic in standing(broker, list(broker.topics.values())):
        found += left_in(topic)
        if time.perf_counter() >= until:
            await asyncio.sleep(0)
            until = time.perf_counter() + SLICE_SECONDS
    return sorted(found, key=attrgetter("messages"), reverse=True)


class Leave:
    """Has the process end when a drain that asks for it has nothing left."""

    def __init__(self, nsqd: Nsqd, stop: asyncio.Event) -> None:
        """`stop`: the event that ends the process in its order."""
        self._nsqd = nsqd
        self._stop = stop
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        nsqd.drain_watchers.append(self._changed.set)

    def start(self) -> None:
        """Begin to watch; what an earlier run has begun goes on."""
        drain = self._nsqd.broker.drains.now.node
        if drain is not None:
            since = rfc3339(drain.since_ns)
            logger.info("DRAIN: goes on since %s, begun by %s", since, drain.by)
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Watch no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _watch(self) -> None:
        drains, empty_since = self._nsqd.broker.drains, None
        while True:
            if drains.now.node is None:
                self._changed.clear()
                await self._changed.wait()
            await asyncio.sleep(LOOK_SECONDS)
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
        """Found in slices, and then at one moment: what moves between topics is not missed."""
        return not await looked(self._nsqd.broker) and has_nothing_left(self._nsqd.broker)

    async def _leave(self) -> bool:
        """End, if that is asked for (rule 2); False: it is not, or no longer."""
        node = self._nsqd.broker.drains.now.node
        if node is None or not node.exit:
            return False
        asked: list[Drain] = []

        def make(now: Draining) -> Draining:
            # It may have been changed by whoever came before.
            if now.node is None or not now.node.exit:
                return now
            asked.append(now.node)
            return now._replace(node=now.node._replace(exit=False))

        try:
            await self._nsqd.change_drains(make)
        except RemoteError as error:
            logger.warning("DRAIN: the next start will end by itself, too: %s", error.text)
        if asked:
            seconds = (time.time_ns() - node.since_ns) / SECOND
            logger.info("DRAIN: nothing is left after %.1f s: nsqd ends", seconds)
            self._stop.set()
        return bool(asked)
