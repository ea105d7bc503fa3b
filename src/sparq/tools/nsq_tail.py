"""The program `nsq_tail`: prints the messages of topics as they come, a line each.

1. A message is finished once its line is written. What is not printed (because enough is, or the
   reader has gone) is given back to nsqd, which delivers it again.
2. Its channel is one of its own by default, that goes when it does: it takes nothing from anybody.
3. A reader that pauses (a pager) pauses nsq_tail, not its connections.
4. An nsqd that is given and cannot be reached at the start ends it, after `--wait-for-nsqd`.
5. Exit status: 0 when `--n` messages are printed and after a signal, 1 when standard output takes
   no more (silently where that is a pipe that nobody reads).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from functools import partial
from typing import Final

from sparq.client.batch import Batch
from sparq.client.config import Config
from sparq.client.consumer import Consumer
from sparq.tools.command_line import Failed, UsageError
from sparq.tools.commands import NsqTailOptions as Options
from sparq.tools.common import check_names, check_sources, consumer_config, missing, run
from sparq.tools.pipes import Output

PROGRAM: Final = "nsq_tail"
STOP_SECONDS: Final = 2.0
"""For the line that is being written when it ends; a paused reader may never take it."""


def start(options: Options) -> int:
    """Run the program; the exit status."""
    return run(PROGRAM, partial(tail, options, Output()))


async def tail(options: Options, output: Output, stop: asyncio.Event) -> int:
    """Print until there is enough or the event is set; the exit status.

    Raises:
        UsageError: the options ask for what cannot be.
        Failed, BrokenPipeError: what was to be printed cannot be written.
    """
    consumers = _consumers(options)
    printer = Printer(options, output)
    async with contextlib.AsyncExitStack() as stack:
        for consumer in consumers:
            await stack.enter_async_context(consumer)
        printing = [asyncio.create_task(printer.follow(consumer)) for consumer in consumers]
        printing.append(asyncio.create_task(missing(consumers, options.wait_for_nsqd_ns)))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([stopping, *printing], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*(consumer.stop(STOP_SECONDS) for consumer in consumers))
    for task in (stopping, *printing):
        task.cancel()
    for result in await asyncio.gather(*printing, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
    return 0


def _consumers(options: Options) -> list[Consumer]:
    """A consumer a topic. Raises UsageError: the options ask for what cannot be."""
    check_sources(options.nsqd_tcp_addresses, options.lookupd_http_addresses)
    if not options.topics:
        raise UsageError("--topic required")
    if options.n < 0:
        raise UsageError(f"--n should not be negative: {options.n}")
    number = random.randrange(1_000_000)  # noqa: S311 - a name that is probably free, no secret
    channel = options.channel or f"tail{number:06d}#ephemeral"
    check_names(options.topics, channel)
    config = _config(options)
    return [
        Consumer(
            topic,
            channel,
            nsqd_tcp_addresses=options.nsqd_tcp_addresses,
            lookupd_http_addresses=options.lookupd_http_addresses,
            config=config,
        )
        for topic in dict.fromkeys(options.topics)
    ]


def _config(options: Options) -> Config:
    """The consumers' options; by default a message is shown however often it was delivered."""
    config = consumer_config(PROGRAM, options, options.max_in_flight)
    if not options.n:
        return config
    return Config.of(config, {"max_in_flight": min(config.max_in_flight, options.n)})


class Printer:
    """Writes what consumers receive, and answers for it.

    Attributes:
        shown: messages written.
    """

    def __init__(self, options: Options, output: Output) -> None:
        self.shown = 0
        self._limit = options.n
        self._print_topic = options.print_topic
        self._output = output
        self._writing = asyncio.Lock()

    async def follow(self, consumer: Consumer) -> None:
        """Print what it receives, until there is enough or it is stopped.

        Raises:
            Failed, BrokenPipeError: standard output takes no more.
        """
        prefix = f"{consumer.topic} | ".encode() if self._print_topic else b""
        async for batch in consumer.batches(wait=0):
            async with self._writing:
                await self._show(prefix, batch)
            if self._limit and self.shown >= self._limit:
                return

    async def _show(self, prefix: bytes, batch: Batch) -> None:
        count = len(batch)
        if self._limit:
            count = min(count, self._limit - self.shown)
        try:
            if count:
                lines = [prefix + body + b"\n" for body in batch.bodies[:count]]
                await self._output.write(b"".join(lines))
        except (Failed, BrokenPipeError):
            await batch.requeue(0, backoff=False)
            raise
        self.shown += count
        for message in batch[count:] if count < len(batch) else ():
            message.requeue(0, backoff=False)
        await batch.finish()
