"""The program `sparq bench`: measures an nsqd's speed for programs that use `sparq.client`.

1. It measures publishing, consuming and latency in turn, with its own topic, which it deletes at
   the end, also after a signal. The topic's backlog is bounded, and dropped between two parts.
2. A publish counts when nsqd has answered OK, and nsqd's message count must match: the figures
   include no lost messages.
3. If the load and nsqd run on the same machine, the figures are of both together.
4. Exit status: 0 with a table at the end, which after a signal shows what was measured so far; 1 if
   nsqd cannot be reached or refuses a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from collections.abc import AsyncIterator, Sequence
from typing import Final

from sparq.client.arguments import parse_nsqd
from sparq.client.config import Config
from sparq.client.consumer import Consumer
from sparq.client.errors import SparqClientError
from sparq.client.producer import Producer
from sparq.protocol.address import lookupd_url
from sparq.protocol.durations import SECOND, format_duration
from sparq.protocol.errors import RemoteError
from sparq.tools.cluster import tls_of, token_of
from sparq.tools.command_line import ToolError, UsageError
from sparq.tools.commands import PARTS
from sparq.tools.commands import BenchOptions as Options
from sparq.tools.common import QUITTING, check_address, client_config, run, unless_stopped
from sparq.tools.pipes import PipeOutput
from sparq.tools.scratch_topic import ScratchTopic
from sparq.tools.table import aligned
from sparq.tools.terminal import progress_shown
from sparq.tools.workloads import LatencyWorkload, Measurement, PublishWorkload, consume

PROGRAM: Final = "sparq bench"
BATCH_TASKS: Final = 4
"""Tasks that publish batches: enough to have the next batch under way."""

SIZE_MAX: Final = 1 << 20
"""nsqd's default limit for a message."""

BACKLOG_BYTES_MAX: Final = 1 << 30
PUBLISH_SECONDS: Final = 10.0
STOP_SECONDS: Final = 1.0
HEADINGS: Final = ("", "MESSAGES/S", "MIB/S", "P50 MS", "P95 MS", "P99 MS", "MAX MS")


def start(options: Options) -> int:
    """Run the program; return the exit status."""
    return run(PROGRAM, functools.partial(bench, options), QUITTING)


async def bench(options: Options, stop: asyncio.Event) -> int:
    """Measure until everything is done or the event is set, and print the table.

    Raises:
        UsageError: the options are not valid.
        ToolError: nsqd cannot be reached, or refuses a request.
    """
    check(options)
    config = client_config(
        PROGRAM.replace(" ", "_"),
        options.client_opt,
        "client-opt",
        max_in_flight=options.max_in_flight,
        max_attempts=0,
        publish_timeout=PUBLISH_SECONDS,
    )
    topic = ScratchTopic(
        options.nsqd_http_address, token=token_of(options.token), tls=tls_of(options)
    )
    producer = Producer([options.nsqd_tcp_address], config=config)
    async with topic, producer:
        measuring = Bench(options, config, topic, producer)
        try:
            async with progress_shown(lambda: measuring.now):
                await unless_stopped(measuring.run(), stop)
        except (RemoteError, SparqClientError) as error:
            raise ToolError(str(error)) from error
        finally:
            await PipeOutput().write(report(options, topic.version, measuring.found).encode())
    return 0


def check(options: Options) -> None:
    """Check the options. Raises UsageError: one is not valid."""
    for flag, read in (("tcp", parse_nsqd), ("http", lookupd_url)):
        check_address(f"nsqd-{flag}-address", getattr(options, f"nsqd_{flag}_address"), read)
    for name in ("size", "tasks", "batch", "backlog", "max_in_flight", "rate"):
        if getattr(options, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} should be 1 or more")
    if options.duration_ns <= 0:
        raise UsageError("--duration should be positive")
    if options.size > SIZE_MAX:
        raise UsageError(f"--size should be at most {SIZE_MAX}")
    if options.size * options.backlog > BACKLOG_BYTES_MAX:
        raise UsageError(f"--size times --backlog should be at most {BACKLOG_BYTES_MAX}")


class Bench:
    """The measurements, in order.

    Attributes:
        found: the results so far.
        now: the progress line: what is being measured.
    """

    def __init__(
        self, options: Options, config: Config, topic: ScratchTopic, producer: Producer
    ) -> None:
        self.found: list[Measurement] = []
        self.now = ""
        self._options = options
        self._config = config
        self._topic = topic
        self._producer = producer
        self._seconds = options.duration_ns / SECOND
        self._body = (bytes(range(256)) * (options.size // 256 + 1))[: options.size]

    async def run(self) -> None:
        """Run all measurements, or those requested.

        Raises:
            ToolError: nsqd's message count does not match its acknowledgements.
            RemoteError, SparqClientError: a publish failed.
        """
        wanted = self._options.part or PARTS
        await self._publishing().once()
        for part in PARTS:
            if part in wanted:
                await {
                    "publish": self._publish,
                    "consume": self._consume,
                    "latency": self._latency,
                }[part]()

    def _publishing(self, batch: int = 1) -> PublishWorkload:
        return PublishWorkload(self._producer, self._topic.name, self._body, batch)

    async def _publish(self) -> None:
        tasks, batch = self._options.tasks, self._options.batch
        lines = [("publish, 1 task", 1, 1), (f"publish, {tasks:,} tasks", tasks, 1)]
        if batch > 1:
            lines.append((f"publish, {batch:,} at once", BATCH_TASKS, batch))
        for self.now, count, size in lines:
            before = await self._topic.message_count()
            found = await self._publishing(size).run(self.now, count, self._seconds)
            self._hold_to(found.messages, await self._topic.message_count() - before)
            self.found.append(found)
            await self._topic.empty()

    def _hold_to(self, acknowledged: int, counted: int) -> None:
        """Check nsqd's count; a publish that was sent again may be stored twice."""
        if not acknowledged <= counted <= acknowledged + self._producer.resent:
            raise ToolError(
                f"nsqd acknowledged {acknowledged:,} messages and counted {counted:,}:"
                " check that both addresses are of the same nsqd, and that it was not restarted"
            )

    async def _consume(self) -> None:
        batch = self._options.batch
        lines = [("consume, one by one", 1)]
        if batch > 1:
            lines.append((f"consume, batches of {batch:,}", batch))
        for name, size in lines:
            self.now = f"{name}: publishing the backlog"
            channel = await self._topic.new_channel()
            filler = self._publishing(max(1, min(1000, SIZE_MAX // self._options.size)))
            await filler.fill(self._options.backlog, BATCH_TASKS)
            self.now = name
            async with self._consumer(channel) as consumer:
                self.found.append(
                    await consume(
                        consumer,
                        name,
                        batch=size,
                        waiting=self._options.backlog,
                        seconds=self._seconds,
                        body_size=self._options.size,
                    )
                )

    async def _latency(self) -> None:
        self.now = f"latency at {self._options.rate:,} messages per second"
        channel = await self._topic.new_channel()
        latency = LatencyWorkload(
            self._producer, self._topic.name, self._options.size, self._options.rate
        )
        async with self._consumer(channel) as consumer:
            self.found += await latency.run(consumer, self._seconds)

    @contextlib.asynccontextmanager
    async def _consumer(self, channel: str) -> AsyncIterator[Consumer]:
        consumer = Consumer(
            self._topic.name,
            channel,
            nsqd_tcp_addresses=self._options.nsqd_tcp_address,
            config=self._config,
        )
        consumer.start()
        try:
            yield consumer
        finally:
            await consumer.stop(STOP_SECONDS)


def report(options: Options, version: str, found: Sequence[Measurement]) -> str:
    """Format the results as a table; empty if there are none."""
    if not found:
        return ""
    took = format_duration(options.duration_ns)
    head = f"{options.nsqd_tcp_address}, {version}: messages of {options.size:,} B, {took} each\n\n"
    lines = aligned([HEADINGS, *map(_row, found)], left=1)
    return head + "".join(f"{line}\n" for line in lines)


def _row(measurement: Measurement) -> tuple[str, ...]:
    times = [measurement.quantile_ms(part) for part in (0.5, 0.95, 0.99, 1.0)]
    return (
        measurement.name,
        f"{measurement.rate:,.0f}",
        f"{measurement.mib_rate:,.1f}",
        *("-" if math.isnan(time) else f"{time:,.2f}" for time in times),
    )
