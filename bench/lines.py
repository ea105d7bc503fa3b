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
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast

from bench import load
from bench.generator import (
    DEADLINE_SECONDS,
    Consumer,
    Figures,
    Run,
    add_consumer,
    add_publisher,
    fill,
    request_of,
)
from bench.peers.nsq import NsqPeer
from bench.peers.peer import Deliveries, Peer, Publishing

BATCH = 200
BATCH_WINDOW = 16
WINDOW = 2000
LAG = 5000
WARM_SECONDS = 0.1
FILL_SECONDS = 0.5
COUNTED_FILL_SECONDS = 600.0
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


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table.

    Attributes:
        name: its name in the table.
        needs: features that a peer must have.
        run: runs once against a peer.
        seconds: minimum length of a run.
        has_times: whether its runs return times of requests or deliveries.
        messages: number of messages of a run that counts instructions; 0: there is none.
    """

    name: str
    needs: frozenset[str]
    run: Measure
    seconds: float = 0.0
    has_times: bool = False
    messages: int = COUNTED


@dataclass(frozen=True, slots=True)
class Shape:
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

    @property
    def names(self) -> list[str]:
        """Names of the channels."""
        return [f"ch{number}" for number in range(self.channels)]

    def publishing(self, peer: Peer, topic: str) -> Publishing:
        """Open a connection for the requests."""
        if self.over_http:
            return cast(NsqPeer, peer).publishing_http(topic)
        return peer.publishing(topic, batches=self.batch > 1)


def new_topic() -> str:
    """A topic name that no other run has."""
    return f"bench{next(_topics)}"


def publish(shape: Shape) -> Measure:
    """A run that only publishes; channels have no consumers."""

    async def measure(peer: Peer, seconds: float, messages: int = 0) -> Figures:
        topic, body = new_topic(), load.body(shape.size)
        peer.prepare(topic, shape.names, shape.ready)
        run = Run(peer, lambda: sum(each.answered for each in publishers) * shape.batch)
        limit = messages // (shape.batch * shape.connections) or math.inf
        publishers = []
        try:
            for _ in range(shape.connections):
                publishing = shape.publishing(peer, topic)
                request = request_of(publishing, body, shape.batch)
                window = shape.window
                publishers.append(await add_publisher(run, publishing, request, window, limit))
            begin = run.mark()
            for publisher in publishers:
                publisher.begin()
            if not messages:
                await run.go_on(WARM_SECONDS)
                run.times.clear()
                begin = run.mark()
            return await run.figures(begin, seconds, messages)
        finally:
            await run.close()
            peer.drop(topic, shape.names)

    return measure


def deliver(ready: int, consumers: int, count: int, size: int = 200) -> Measure:
    """A run that empties a full channel and acknowledges each message."""

    async def measure(peer: Peer, seconds: float, messages: int = 0) -> Figures:
        topic = new_topic()
        peer.prepare(topic, ["ch0"], ready * consumers)
        limits = (messages, COUNTED_FILL_SECONDS) if messages else (count, FILL_SECONDS)
        total = await fill(peer, topic, load.body(size), *limits)
        found: list[Consumer] = []

        def changed(_: Deliveries) -> None:
            if sum(each.taken for each in found) >= total:
                run.finish()

        run = Run(peer, lambda: sum(each.taken for each in found))
        try:
            for _ in range(consumers):
                consuming = peer.consuming(topic, "ch0", size, ready)
                found.append(await add_consumer(run, consuming, changed))
            begin = run.mark()
            for consumer in found:
                consumer.begin()
            return await run.figures(begin, seconds, messages)
        finally:
            await run.close()
            peer.drop(topic, ["ch0"])

    return measure


def at_once(shape: Shape) -> Measure:
    """A run that publishes while each channel is consumed; counts deliveries per channel."""

    async def measure(peer: Peer, seconds: float, messages: int = 0) -> Figures:
        topic, body = new_topic(), load.body(shape.size)
        batch = shape.batch if "batch" in peer.can else 1
        window = shape.window if batch > 1 else WINDOW
        peer.prepare(topic, shape.names, shape.ready)
        found: list[Consumer] = []
        run = Run(peer, lambda: sum(each.taken for each in found) / len(found))
        try:
            publishing = peer.publishing(topic, batches=batch > 1)
            request = request_of(publishing, body, batch)
            ahead, limit = LAG // batch, messages // batch or math.inf
            publisher = await add_publisher(
                run, publishing, request, min(window, ahead), min(ahead, limit)
            )

            def changed(_: Deliveries) -> None:
                least = min(each.taken for each in found)
                publisher.allow(min(ahead + least // batch, limit))

            for name in shape.names:
                consuming = peer.consuming(topic, name, shape.size, shape.ready)
                found.append(await add_consumer(run, consuming, changed))
            begin = run.mark()
            for consumer in found:
                consumer.begin()
            publisher.begin()
            if not messages:
                await run.go_on(WARM_SECONDS)
                begin = run.mark()
            return await run.figures(begin, seconds, messages)
        finally:
            await run.close()
            peer.drop(topic, shape.names)

    return measure


def latency(rate: int, ready: int) -> Measure:
    """A run at an even rate that times each message from just before sending to its arrival."""

    async def measure(peer: Peer, seconds: float, messages: int = 0) -> Figures:
        topic = new_topic()
        body = load.body(200)
        peer.prepare(topic, ["ch0"], ready)

        def changed(taken: Deliveries) -> None:
            now = time.monotonic_ns()
            run.times.extend((now - stamp) / 1e9 for stamp in taken.stamps)

        run = Run(peer, lambda: consumer.taken)
        try:
            consuming = peer.consuming(topic, "ch0", len(body), ready)
            consuming.acknowledger.is_stamped = True
            consumer = await add_consumer(run, consuming, changed)
            publishing = peer.publishing(topic, batches=False)
            publisher = await add_publisher(run, publishing, b"-", WINDOW, 0)
            consumer.begin()
            await run.go_on(WARM_SECONDS)
            begin = run.mark()
            due = time.monotonic()
            for _ in range(max(1, int(seconds * rate))):
                due += 1 / rate
                await run.go_on(max(0.0, due - time.monotonic()))
                stamped = STAMP.pack(time.monotonic_ns()) + body[8:]
                publisher.transport.write(publishing.one(stamped))
            deadline = due + DEADLINE_SECONDS
            while consumer.taken < max(1, int(seconds * rate)) and time.monotonic() < deadline:
                await run.go_on(0.01)
            return run.since(begin)
        finally:
            await run.close()
            peer.drop(topic, ["ch0"])

    return measure


ANY: frozenset[str] = frozenset()
BATCHES, CHANNELS, HTTP = frozenset({"batch"}), frozenset({"channels"}), frozenset({"http"})


def publishing_lines() -> Sequence[Line]:
    """Lines that publish, over TCP and HTTP."""
    mpub = Shape(batch=BATCH, window=BATCH_WINDOW)
    found = [
        Line("MPUB, pipelined, 200 of 200 B", BATCHES, publish(mpub)),
        Line(
            "MPUB, pipelined, 200 of 1 KiB",
            BATCHES,
            publish(Shape(size=1024, batch=BATCH, window=BATCH_WINDOW)),
        ),
        Line(
            "MPUB, one at a time, 200 of 200 B",
            BATCHES,
            publish(Shape(batch=BATCH, window=1)),
            has_times=True,
        ),
        Line("PUB, pipelined, 200 B", ANY, publish(Shape())),
        Line("PUB, pipelined, 1 KiB", ANY, publish(Shape(size=1024))),
        Line(
            "PUB, pipelined, 200 B, 10 connections", ANY, publish(Shape(connections=10, window=200))
        ),
        Line(
            "PUB, one at a time, 200 B",
            ANY,
            publish(Shape(window=1)),
            has_times=True,
            messages=SINGLE,
        ),
    ]
    for path, batch in (("/pub", 1), ("/mpub", BATCH)):
        for connections in (1, 10):
            shape = Shape(batch=batch, window=1, connections=connections, over_http=True)
            noun = "connection" if connections == 1 else "connections"
            name, count = f"HTTP {path}, {connections} {noun}", COUNTED if batch > 1 else SINGLE
            found.append(Line(name, HTTP, publish(shape), messages=count))
    return found


def delivering_lines() -> Sequence[Line]:
    """Lines that deliver and finish, and one that also publishes meanwhile."""
    found = []
    for consumers in (1, 50):
        for ready, count in ((1, 20_000), (200, 100_000), (2500, 200_000)):
            noun = "consumer" if consumers == 1 else "consumers"
            name = f"deliver + FIN, {consumers} {noun}, RDY {ready}"
            in_flight = consumers * ready
            counted = SINGLE if in_flight == 1 else max(COUNTED, in_flight, WINDOWS * ready)
            found.append(Line(name, ANY, deliver(ready, consumers, count), messages=counted))
    found.append(
        Line("deliver + FIN, 1 consumer, RDY 2500, 1 KiB", ANY, deliver(2500, 1, 50_000, 1024))
    )
    both = Shape(batch=BATCH, window=BATCH_WINDOW, channels=1)
    found.append(Line("both at once, 200 B, RDY 2500", ANY, at_once(both)))
    return found


def fan_out_lines() -> Sequence[Line]:
    """Lines with a topic that has several channels."""
    found = []
    for channels in (1, 10, 50):
        noun = "channel" if channels == 1 else "channels"
        shape = Shape(batch=BATCH, window=BATCH_WINDOW, channels=channels)
        name = f"fan-out, {channels} {noun}"
        found.append(Line(f"{name}, no consumers", BATCHES | CHANNELS, publish(shape)))
        seconds = channels * SECONDS_A_CHANNEL
        each = Line(f"{name}, a consumer each", CHANNELS, at_once(shape), seconds)
        found.append(replace(each, messages=max(4_000, COUNTED // channels)))
    return found


def latency_lines() -> Sequence[Line]:
    """Lines that measure latency at a low rate."""
    return [
        Line(
            f"latency at {rate:,} msg/s, RDY 100",
            ANY,
            latency(rate, 100),
            1.0,
            has_times=True,
            messages=0,
        )
        for rate in (50, 1000)
    ]


LINES: tuple[Line, ...] = (
    *publishing_lines(),
    *delivering_lines(),
    *fan_out_lines(),
    *latency_lines(),
)
