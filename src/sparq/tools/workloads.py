"""The workloads of `sparq bench`: publishing, consuming, and the latency between the two.

1. Each workload runs for a time, or until there is nothing left to do, and reports how many
   messages it moved. The startup (connecting, the first message) is not measured.
2. The workloads do what a user's program would do with `sparq.client`, so the CPU time of this
   process is part of the measurement.
"""

from __future__ import annotations

import asyncio
import math
import struct
import time
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from sparq.client.consumer import Consumer
from sparq.client.producer import Producer
from sparq.tools.command_line import ToolError

MIB: Final = 1 << 20
STAMP: Final = struct.Struct(">q")
NANOSECOND: Final = 1e-9
UNANSWERED_SECONDS: Final = 1.0
"""`LatencyWorkload` stops publishing while this many seconds' worth of messages has no OK.

A slower nsqd then sets the rate."""

MESSAGE_SECONDS: Final = 10.0
"""Time for a message in nsqd to reach a waiting consumer, in addition to the measured time."""


@dataclass(slots=True)
class Measurement:
    """The result of one workload.

    Attributes:
        name: the name of the workload.
        messages: the number of messages.
        seconds: the time they took.
        body_size: bytes of each message.
        times: single times in seconds, if they were measured.
    """

    name: str
    messages: int
    seconds: float
    body_size: int
    times: Sequence[float] = field(default=())

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds if self.seconds else 0.0

    @property
    def mib_rate(self) -> float:
        """MiB of bodies per second."""
        return self.rate * self.body_size / MIB

    def quantile_ms(self, part: float) -> float:
        """Return the quantile of the times, in ms; NaN if there are none."""
        if not self.times:
            return math.nan
        ascending = sorted(self.times)
        return ascending[max(0, math.ceil(part * len(ascending)) - 1)] * 1000


async def run_all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run the coroutines concurrently; the first error cancels the others and is raised as is."""
    # Not a TaskGroup, which would raise an ExceptionGroup instead of the error itself.
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class PublishWorkload:
    """Publishes from tasks that each wait for the OK before the next publish.

    Args:
        producer: the producer.
        topic: the topic to publish to.
        body: the body of each message.
        batch: messages per publish; 1: each on its own.
    """

    def __init__(self, producer: Producer, topic: str, body: bytes, batch: int = 1) -> None:
        self._producer = producer
        self._topic = topic
        self._body = body
        self._bodies = [body] * batch

    async def once(self) -> int:
        """Publish once; return the number of messages."""
        if len(self._bodies) == 1:
            await self._producer.publish(self._topic, self._body)
        else:
            await self._producer.multi_publish(self._topic, self._bodies)
        return len(self._bodies)

    async def run(self, name: str, tasks: int, seconds: float) -> Measurement:
        """Publish from this number of tasks for this time."""
        times = array("d")
        began = time.perf_counter()
        end = began + seconds

        async def task() -> None:
            before = time.perf_counter()
            while before < end:
                await self.once()
                now = time.perf_counter()
                times.append(now - before)
                before = now

        await run_all(task() for _ in range(tasks))
        elapsed = time.perf_counter() - began
        count = len(times) * len(self._bodies)
        return Measurement(name, count, elapsed, len(self._body), times)

    async def fill(self, count: int, tasks: int) -> None:
        """Publish at least this number of messages, quickly."""
        left = count

        async def task() -> None:
            nonlocal left
            while left > 0:
                left -= len(self._bodies)
                await self.once()

        await run_all(task() for _ in range(tasks))


class Counting:
    """Counts finished messages, starting after the first ones, until the time is over."""

    def __init__(self, seconds: float) -> None:
        self.messages = 0
        self.elapsed = 0.0
        self._seconds = seconds
        self._began = 0.0

    def add(self, count: int) -> bool:
        """Add finished messages; return whether the time is over."""
        now = time.perf_counter()
        # The first messages start the clock and are not counted: they also took the connection's
        # startup.
        if not self._began:
            self._began = now
            return False
        self.messages += count
        self.elapsed = now - self._began
        return self.elapsed >= self._seconds


async def consume(
    consumer: Consumer, name: str, *, batch: int, waiting: int, seconds: float, body_size: int
) -> Measurement:
    """Finish messages that wait in the channel, until the time is over or none is left.

    Args:
        consumer: started.
        name: the name of the workload.
        batch: messages per batch; 1: one by one.
        waiting: the number of messages in the channel.
        seconds: the maximum time.
        body_size: bytes of each message.

    Raises:
        ToolError: messages do not arrive.
    """
    counting = Counting(seconds)
    taken = 0
    async with patience(seconds + MESSAGE_SECONDS), aclosing(_finished(consumer, batch)) as counts:
        async for count in counts:
            taken += count
            if counting.add(count) or taken >= waiting:
                break
    return Measurement(name, counting.messages, counting.elapsed, body_size)


async def _finished(consumer: Consumer, batch: int) -> AsyncGenerator[int, None]:
    """Finish messages; yield how many were finished together."""
    if batch == 1:
        async for message in consumer:
            await message.finish()
            yield 1
    else:
        async for found in consumer.batches(batch):
            await found.finish()
            yield len(found)


@asynccontextmanager
async def patience(seconds: float) -> AsyncIterator[None]:
    """Limit the time of the block. Raises ToolError: it took longer."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise ToolError(f"messages that nsqd holds did not arrive within {seconds:.0f} s") from None


class LatencyWorkload:
    """Publishes at a fixed rate and consumes at the same time.

    Args:
        producer: the producer.
        topic: the topic to publish to.
        body_size: bytes of each message, at least those of a timestamp.
        rate: messages per second.
    """

    def __init__(self, producer: Producer, topic: str, body_size: int, rate: int) -> None:
        self.answered = array("d")
        self.delivered = array("d")
        self._producer = producer
        self._topic = topic
        self._filling = bytes(max(0, body_size - STAMP.size))
        self._rate = rate
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: list[asyncio.Task[None]] = []
        self._wanted = 1
        self._arrived = asyncio.Event()

    async def run(self, consumer: Consumer, seconds: float) -> list[Measurement]:
        """Measure for this time: from publish to OK, and from publish to delivery.

        Raises:
            ToolError: messages do not arrive.
            RemoteError, SparqClientError: a publish failed.
        """
        consuming = asyncio.create_task(self._consume(consumer))
        try:
            await self._publish_one()
            await self._until_delivered(1)
            self.answered, self.delivered = array("d"), array("d")
            began = time.perf_counter()
            sent = await self._publish(seconds)
            elapsed = time.perf_counter() - began
            await asyncio.gather(*self._failed, *self._tasks)
            await self._until_delivered(sent)
        finally:
            consuming.cancel()
            await asyncio.gather(consuming, *self._tasks, return_exceptions=True)
        size = STAMP.size + len(self._filling)
        return [
            Measurement("latency, publish to OK", sent, elapsed, size, self.answered),
            Measurement("latency, publish to delivery", sent, elapsed, size, self.delivered),
        ]

    async def _until_delivered(self, count: int) -> None:
        self._wanted = count
        self._arrived.clear()
        if len(self.delivered) < count:
            async with patience(MESSAGE_SECONDS):
                await self._arrived.wait()

    async def _publish(self, seconds: float) -> int:
        """Publish at the rate, however long the OKs take; return the number of messages sent.

        It ends early if a publish fails.
        """
        began, sent, total = time.perf_counter(), 0, int(self._rate * seconds)
        unanswered_max = max(1, int(self._rate * UNANSWERED_SECONDS))
        while sent < total and (now := time.perf_counter() - began) < 2 * seconds:
            if self._failed:
                break
            due = min(total, int(now * self._rate) + 1, sent + unanswered_max - len(self._tasks))
            for _ in range(sent, due):
                # A task for each message: if the next publish waited for the OK, a slow nsqd would
                # be sent less, and its latency would look better than it is.
                task = asyncio.create_task(self._publish_one())
                self._tasks.add(task)
                task.add_done_callback(self._note_end)
            sent = max(sent, due)
            await asyncio.sleep(max(0.0, began + sent / self._rate - time.perf_counter()))
        return sent

    def _note_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failed.append(task)

    async def _publish_one(self) -> None:
        before = time.monotonic_ns()
        await self._producer.publish(self._topic, STAMP.pack(before) + self._filling)
        self.answered.append((time.monotonic_ns() - before) * NANOSECOND)

    async def _consume(self, consumer: Consumer) -> None:
        async for message in consumer:
            (sent_at,) = STAMP.unpack_from(message.body)
            self.delivered.append((time.monotonic_ns() - sent_at) * NANOSECOND)
            if len(self.delivered) >= self._wanted:
                self._arrived.set()
            await message.finish()
