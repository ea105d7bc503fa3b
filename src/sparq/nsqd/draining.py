"""`/drain`: this nsqd is to be left. Publishes are refused, what it holds is worked off.

1. A change is answered when it is on disk; it holds from then on, also after kill -9 and a restart.
2. What is left is what waits, is in flight or deferred in a channel, what no channel sees yet, and
   what is on its way to the log. A topic or channel that nobody can work off says why.
3. With `exit` the process ends by itself once nothing is left, as SIGTERM ends it. That is done
   once: started again it drains on, and stays.
4. Many topics are looked at some at a time. That nothing is left is found at one moment.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sparq.broker.drain_file import BY_MAX, TOPICS_MAX, Drain, Draining
from sparq.daemon.http import Call, HttpError, Route
from sparq.nsqd import parameters
from sparq.nsqd.figures import SLICE_SECONDS, standing
from sparq.nsqd.seeking import shown_time
from sparq.protocol.durations import SECOND
from sparq.protocol.errors import RemoteError

if TYPE_CHECKING:
    from sparq.broker.broker import Broker
    from sparq.broker.draining import Make
    from sparq.broker.topic import Topic
    from sparq.nsqd.server import Nsqd

PATH: Final = "/drain"
TOPIC_PATH: Final = "/topic/drain"
LEFT_SHOWN: Final = 100
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


class DrainRoutes:
    """The handlers of one nsqd."""

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
        """Whether it drains, since when, and what is left."""
        left = await looked(self._broker)
        drains = self._broker.drains
        shown = heapq.nlargest(LEFT_SHOWN, left, key=lambda one: (bool(one.held_up), one.messages))
        return {
            **_told(drains.now.node),
            "refused": drains.refused_count,
            "empty": not left and has_nothing_left(self._broker),
            "topics": len({one.topic for one in left}),
            "channels": sum(one.channel is not None for one in left),
            "depth": sum(one.depth for one in left),
            "in_flight": sum(one.in_flight for one in left),
            "deferred": sum(one.deferred for one in left),
            "left": [one._asdict() for one in shown],
            "draining_topics": {name: _told(one) for name, one in drains.now.topics.items()},
        }

    async def begin(self, call: Call) -> dict[str, Any]:
        """Refuse publishes from now on; with `exit` end once nothing is left."""
        drain = Drain(time.time_ns(), _who(call), call.flag("exit", False))

        def make(now: Draining) -> Draining:
            # Asked for again it goes on, and ends as was asked for last.
            began = drain if now.node is None else drain._replace(since_ns=now.node.since_ns)
            return now._replace(node=began)

        await self._change(make)
        what = ", and ends once nothing is left" if drain.exit else ""
        logger.info("DRAIN: begun by %s: publishes are refused%s", drain.by, what)
        return await self.show(call)

    async def end(self, call: Call) -> dict[str, Any]:
        """Take publishes again."""
        was_on = self._broker.drains.now.node is not None
        await self._change(lambda now: now._replace(node=None))
        if was_on:
            logger.info("DRAIN: ended by %s: publishes are taken again", _who(call))
        return await self.show(call)

    async def begin_topic(self, call: Call) -> dict[str, Any]:
        """Refuse publishes to one topic, there or not, from now on."""
        topic = parameters.name_of(call, "topic")
        topics = self._broker.drains.now.topics
        if topic not in topics and len(topics) >= TOPICS_MAX:
            raise HttpError(403, f"LIMIT_REACHED: {TOPICS_MAX} topics drain already")
        drain = Drain(time.time_ns(), _who(call))
        await self._change(lambda now: now._replace(topics={topic: drain, **now.topics}))
        logger.info("DRAIN: topic %s: begun by %s: publishes are refused", topic, drain.by)
        return {"topic": topic, **_told(self._broker.drains.now.topics.get(topic))}

    async def end_topic(self, call: Call) -> dict[str, Any]:
        """Take publishes to a topic again."""
        topic = parameters.name_of(call, "topic")
        was_on = topic in self._broker.drains.now.topics

        def make(now: Draining) -> Draining:
            return now._replace(topics={k: v for k, v in now.topics.items() if k != topic})

        await self._change(make)
        if was_on:
            logger.info(
                "DRAIN: topic %s: ended by %s: publishes are taken again", topic, _who(call)
            )
        return {"topic": topic, **_told(self._broker.drains.now.topics.get(topic))}

    async def _change(self, make: Make) -> None:
        if self._nsqd.exiting:
            raise HttpError(503, "EXITING")
        try:
            await self._nsqd.change_drains(make)
        except RemoteError as error:
            raise HttpError(500, f"INTERNAL_ERROR: {error.text}") from error


def _who(call: Call) -> str:
    """Who has sent a request."""
    return (call.request.remote or "a unix socket")[:BY_MAX]


def _told(drain: Drain | None) -> dict[str, Any]:
    if drain is None:
        return {"draining": False, "since": None, "by": None, "exit": False}
    since = shown_time(drain.since_ns)
    return {"draining": True, "since": since, "by": drain.by, "exit": drain.exit}


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
            since = shown_time(drain.since_ns)
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
        """End, if that is asked for (rule 3); False: it is not, or no longer."""
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
