"""The lines of the table: kinds of runs, each for every peer that has the needed features.

1. A run is limited in time, not in messages, since rates differ by a factor of a thousand. It
   counts the messages between two marks. If the run empties a full queue, the first mark is at the
   start; otherwise it follows a warm-up. `bench.instructions` limits runs in messages instead; such
   a run has no warm-up.
2. Each run uses a new topic, so that runs do not affect each other.
3. If messages are published and consumed at the same time, the publisher is at most `LAG` messages
   ahead.
"""

from __future__ import annotations

import itertools
import math
import struct
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, Protocol, cast

from bench.generator import (
    DEADLINE_SECONDS,
    Consumer,
    Figures,
    Publisher,
    Run,
    fill,
    request_of,
)
from bench.peers.nsq import NsqPeer
from bench.peers.peer import Deliveries, Peer, random_body

BATCH, BATCH_WINDOW = 200, 16
WINDOW = 2000
LAG = 5000
WARM_SECONDS = 0.1
FILL_SECONDS, COUNTED_FILL_SECONDS = 0.5, 600.0
COUNTED, SINGLE, WINDOWS = 20_000, 400, 40
"""How long a run is that counts instructions: messages in general, and one at a time; windows."""
SECONDS_A_CHANNEL = 0.02
"""Minimum length of a fan-out run per channel: messages that a broker has buffered for a consumer
must be few compared with those delivered."""

STAMP = struct.Struct(">q")
_topics = itertools.count()


class Measure(Protocol):
    """A run of a line."""

    def __call__(
        self, peer: Peer, seconds: float, messages: int = 0
    ) -> Coroutine[None, None, Figures]:
        """Run for a number of seconds; if `messages` is not 0, until as many are moved."""


class Line(NamedTuple):
    """A line of the table.

    Attributes:
        name: its name in the table.
        run: runs once against a peer.
        needs: features that a peer must have.
        seconds: minimum length of a run.
        has_times: whether its runs return times of requests or deliveries.
        messages: number of messages of a run that counts instructions; 0: there is none.
    """

    name: str
    run: Measure
    needs: frozenset[str] = frozenset()
    seconds: float = 0.0
    has_times: bool = False
    messages: int = COUNTED


class Shape(NamedTuple):
    """How messages are published, and to how many channels.

    Attributes:
        size: bytes of a body.
        batch: messages per request; 1: single publishes.
        window: maximum number of unanswered requests per connection.
        over_http: whether to publish by HTTP POST.
        channels: number of channels of the topic.
        ready: RDY count of each consumer.
    """

    size: int = 200
    batch: int = 1
    window: int = WINDOW
    connections: int = 1
    over_http: bool = False
    channels: int = 0
    ready: int = 2500


@asynccontextmanager
async def a_run(peer: Peer, channels: int, ready: int) -> AsyncIterator[tuple[Run, str]]:
    """A run, and a topic that no other run has; yields both, and removes what they leave."""
    topic, names = f"bench{next(_topics)}", [f"ch{number}" for number in range(channels)]
    peer.prepare(topic, names, ready)
    run = Run(peer, lambda: 0)
    try:
        yield run, topic
    finally:
        await run.close()
        peer.drop(topic, names)


def publish(shape: Shape) -> Measure:
    """A run that only publishes; channels have no consumers."""

    async def measure(peer: Peer, seconds: float, messages: int = 0) -> Figures:
        body = random_body(shape.size)
        limit = messages // (shape.batch * shape.connections) or math.inf
        async with a_run(peer, shape.channels, shape.ready) as (run, topic):
            publishers = []
            for _ in range(shape.connections):
                if shape.over_http:
                    publishing = cast(NsqPeer, peer).publishing_http(topic)
                else:
                    publishing = peer.publishing(topic, batches=shape.batch > 1)
                request = request_of(publishing, body, shape.batch)
                publisher = Publisher(run, publishing, request, shape.window, limit)
                publishers.append(await publisher.connected())
            run.messages = lambda: sum(each.answered for each in publishers) * shape.batch
            begin = run.mark()
            for publisher in publishers:
                publisher.begin()
            if not messages:
                await run.go_on(WARM_SECONDS)
                run.times.clear()
                begin = run.mark()
            return await run.figures(begin, seconds, messages)

    return measure


def deliver(ready: int, consumers: int, count: int, size: int = 200) -> Measure:
    """A run that empties a full channel and acknowledges each message."""

    async def measure(peer: Peer, seconds: float, messages: int = 0) -> Figures:
        async with a_run(peer, 1, ready * consumers) as (run, topic):
            limits = (messages, COUNTED_FILL_SECONDS) if messages else (count, FILL_SECONDS)
            total = await fill(peer, topic, random_body(size), *limits)
            found: list[Consumer] = []

            def changed(_: Deliveries) -> None:
                if sum(each.taken for each in found) >= total:
                    run.finish()

            for _ in range(consumers):
                consuming = peer.consuming(topic, "ch0", size, ready)
                found.append(await Consumer(run, consuming, changed).connected())
            run.messages = lambda: sum(each.taken for each in found)
            begin = run.mark()
            for consumer in found:
                consumer.begin()
            return await run.figures(begin, seconds, messages)

    return measure


def at_once(shape: Shape) -> Measure:
    """A run that publishes while each channel is consumed; counts deliveries per channel."""

    async def measure(peer: Peer, seconds: float, messages: int = 0) -> Figures:
        batch = shape.batch if "batch" in peer.can else 1
        window = shape.window if batch > 1 else WINDOW
        async with a_run(peer, shape.channels, shape.ready) as (run, topic):
            found: list[Consumer] = []
            publishing = peer.publishing(topic, batches=batch > 1)
            request = request_of(publishing, random_body(shape.size), batch)
            ahead, limit = LAG // batch, messages // batch or math.inf
            publisher = Publisher(run, publishing, request, min(window, ahead), min(ahead, limit))
            await publisher.connected()

            def changed(_: Deliveries) -> None:
                least = min(each.taken for each in found)
                publisher.allow(min(ahead + least // batch, limit))

            for number in range(shape.channels):
                consuming = peer.consuming(topic, f"ch{number}", shape.size, shape.ready)
                found.append(await Consumer(run, consuming, changed).connected())
            run.messages = lambda: sum(each.taken for each in found) / len(found)
            begin = run.mark()
            for consumer in found:
                consumer.begin()
            publisher.begin()
            if not messages:
                await run.go_on(WARM_SECONDS)
                begin = run.mark()
            return await run.figures(begin, seconds, messages)

    return measure


def latency(rate: int, ready: int) -> Measure:
    """A run at an even rate that times each message from just before sending to its arrival."""

    async def measure(peer: Peer, seconds: float, messages: int = 0) -> Figures:
        body, count = random_body(200), max(1, int(seconds * rate))
        async with a_run(peer, 1, ready) as (run, topic):

            def changed(taken: Deliveries) -> None:
                now = time.monotonic_ns()
                run.times.extend((now - stamp) / 1e9 for stamp in taken.stamps)

            consuming = peer.consuming(topic, "ch0", len(body), ready)
            consuming.acknowledger.is_stamped = True
            consumer = await Consumer(run, consuming, changed).connected()
            publishing = peer.publishing(topic, batches=False)
            publisher = await Publisher(run, publishing, b"-", WINDOW, 0).connected()
            run.messages = lambda: consumer.taken
            consumer.begin()
            await run.go_on(WARM_SECONDS)
            begin, due = run.mark(), time.monotonic()
            for _ in range(count):
                due += 1 / rate
                await run.go_on(max(0.0, due - time.monotonic()))
                stamped = STAMP.pack(time.monotonic_ns()) + body[8:]
                publisher.transport.write(publishing.one(stamped))
            deadline = due + DEADLINE_SECONDS
            while consumer.taken < count and time.monotonic() < deadline:
                await run.go_on(0.01)
            return run.since(begin)

    return measure


BATCHES, CHANNELS, HTTP = frozenset({"batch"}), frozenset({"channels"}), frozenset({"http"})


def counted(noun: str, count: int) -> str:
    """A number with a noun."""
    return f"{count} {noun}{'s' * (count != 1)}"


def publishing_lines() -> Sequence[Line]:
    """Lines that publish, over TCP and HTTP."""
    batches = Shape(batch=BATCH, window=BATCH_WINDOW)
    one = publish(Shape(window=1))
    mpub_one = publish(Shape(batch=BATCH, window=1))
    many = publish(Shape(connections=10, window=200))
    found = [
        Line("MPUB, pipelined, 200 of 200 B", publish(batches), BATCHES),
        Line("MPUB, pipelined, 200 of 1 KiB", publish(batches._replace(size=1024)), BATCHES),
        Line("MPUB, one at a time, 200 of 200 B", mpub_one, BATCHES, has_times=True),
        Line("PUB, pipelined, 200 B", publish(Shape())),
        Line("PUB, pipelined, 1 KiB", publish(Shape(size=1024))),
        Line("PUB, pipelined, 200 B, 10 connections", many),
        Line("PUB, one at a time, 200 B", one, has_times=True, messages=SINGLE),
    ]
    for path, batch in (("/pub", 1), ("/mpub", BATCH)):
        for connections in (1, 10):
            run = publish(Shape(batch=batch, window=1, connections=connections, over_http=True))
            name = f"HTTP {path}, {counted('connection', connections)}"
            found.append(Line(name, run, HTTP, messages=COUNTED if batch > 1 else SINGLE))
    return found


def delivering_lines() -> Sequence[Line]:
    """Lines that deliver and finish, and one that also publishes meanwhile."""
    found = []
    for consumers in (1, 50):
        for ready, count in ((1, 20_000), (200, 100_000), (2500, 200_000)):
            name = f"deliver + FIN, {counted('consumer', consumers)}, RDY {ready}"
            window = consumers * ready
            messages = SINGLE if window == 1 else max(COUNTED, window, WINDOWS * ready)
            found.append(Line(name, deliver(ready, consumers, count), messages=messages))
    large = deliver(2500, 1, 50_000, 1024)
    both = at_once(Shape(batch=BATCH, window=BATCH_WINDOW, channels=1))
    found.append(Line("deliver + FIN, 1 consumer, RDY 2500, 1 KiB", large))
    return [*found, Line("both at once, 200 B, RDY 2500", both)]


def fan_out_lines() -> Sequence[Line]:
    """Lines with a topic that has several channels."""
    found = []
    for channels in (1, 10, 50):
        shape = Shape(batch=BATCH, window=BATCH_WINDOW, channels=channels)
        name, seconds = f"fan-out, {counted('channel', channels)}", channels * SECONDS_A_CHANNEL
        messages = max(4_000, COUNTED // channels)
        found += [
            Line(f"{name}, no consumers", publish(shape), BATCHES | CHANNELS),
            Line(f"{name}, a consumer each", at_once(shape), CHANNELS, seconds, messages=messages),
        ]
    return found


LINES: tuple[Line, ...] = (
    *publishing_lines(),
    *delivering_lines(),
    *fan_out_lines(),
    *(
        Line(f"latency at {rate:,} msg/s, RDY 100", latency(rate, 100), frozenset(), 1.0, True, 0)
        for rate in (50, 1000)
    ),
)
