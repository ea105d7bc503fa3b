"""The program `nsq_tail`: prints the messages of topics as they arrive, one per line.

1. A message is finished once its line is written. A message that is not printed (because there are
   enough, or the reader has gone) is requeued, and nsqd delivers it again.
2. By default it uses its own ephemeral channel, so it takes no messages from other consumers.
3. A reader that pauses (a pager) pauses nsq_tail, not its connections.
4. If an nsqd named with `--nsqd-tcp-address` cannot be reached at the start, the tool exits
   with status 1, after `--wait-for-nsqd`. An nsqlookupd that cannot be reached is asked again.
5. Exit status: 0 when `--n` messages are printed and after a signal, 1 if standard output cannot be
   written (without an error message if it is a pipe without a reader).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from functools import partial
from typing import Final

from sparq.client.config import Config
from sparq.client.consumer import Consumer
from sparq.tools import common
from sparq.tools.commands import NsqTailOptions as Options
from sparq.tools.commands import ToolError, UsageError
from sparq.tools.terminal import PipeOutput

PROGRAM: Final = "nsq_tail"
STOP_SECONDS: Final = 2.0
"""Time for the line being written at the end; a paused reader may never read it."""


def start(options: Options) -> int:
    """Run the program; return the exit status."""
    return common.run(PROGRAM, partial(tail, options, PipeOutput()))


async def tail(options: Options, output: PipeOutput, stop: asyncio.Event) -> int:
    """Print until there are enough messages or the event is set; return the exit status.

    Raises:
        UsageError: the options are not valid.
        ToolError, BrokenPipeError: standard output cannot be written.
    """
    common.check_sources(options)
    if not options.topics:
        raise UsageError("--topic required")
    if options.n < 0:
        raise UsageError(f"--n should not be negative: {options.n}")
    number = random.randrange(1_000_000)  # noqa: S311 - a name that is probably free, no secret
    channel = options.channel or f"tail{number:06d}#ephemeral"
    common.check_names(options.topics, channel)
    config = common.consumer_config(PROGRAM, options, options.max_in_flight)
    if options.n:
        config = Config.of(config, {"max_in_flight": min(config.max_in_flight, options.n)})
    consumers = [
        common.consumer_of(options, topic, channel, config)
        for topic in dict.fromkeys(options.topics)
    ]
    printer = Printer(options, output)
    async with contextlib.AsyncExitStack() as stack:
        for consumer in consumers:
            await stack.enter_async_context(consumer)
        printing = [asyncio.create_task(printer.follow(consumer)) for consumer in consumers]
        printing.append(asyncio.create_task(common.missing(consumers, options.wait_for_nsqd_ns)))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([stopping, *printing], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*(consumer.stop(STOP_SECONDS) for consumer in consumers))
    for task in (stopping, *printing):
        task.cancel()
    for result in await asyncio.gather(*printing, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
    return 0


class Printer:
    """Writes messages to standard output, and finishes or requeues them.

    Attributes:
        shown: messages written.
    """

    def __init__(self, options: Options, output: PipeOutput) -> None:
        self.shown = 0
        self._limit = options.n
        self._print_topic = options.print_topic
        self._output = output
        # One batch at a time over all topics: otherwise two of them could exceed `--n` together.
        self._writing = asyncio.Lock()

    async def follow(self, consumer: Consumer) -> None:
        """Print the consumer's messages until there are enough or it is stopped.

        Raises:
            ToolError, BrokenPipeError: standard output cannot be written.
        """
        prefix = f"{consumer.topic} | ".encode() if self._print_topic else b""
        async for batch in consumer.batches(wait=0):
            async with self._writing:
                count = len(batch)
                if self._limit:
                    count = min(count, self._limit - self.shown)
                try:
                    if count:
                        lines = [prefix + body + b"\n" for body in batch.bodies[:count]]
                        await self._output.write(b"".join(lines))
                except (ToolError, BrokenPipeError):
                    await batch.requeue(0, backoff=False)
                    raise
                self.shown += count
                # nsqd is not to wait for their timeout; backing off would be wrong, since nothing
                # has failed.
                for message in batch[count:] if count < len(batch) else ():
                    message.requeue(0, backoff=False)
                await batch.finish()
            if self._limit and self.shown >= self._limit:
                return
