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
import random
from typing import Final

from sparq.client.consumer import Consumer
from sparq.tools import common
from sparq.tools.commands import NsqTailOptions as Options
from sparq.tools.commands import ToolError, UsageError
from sparq.tools.terminal import STDOUT, Pipe

PROGRAM: Final = "nsq_tail"
STOP_SECONDS: Final = 2.0
"""Time for the line being written at the end; a paused reader may never read it."""


async def serve(options: Options, stop: asyncio.Event, output: Pipe = STDOUT) -> int:
    """Print until there are enough messages or the event is set; return the exit status.

    Raises:
        UsageError: the options are not valid.
        ToolError, BrokenPipeError: standard output cannot be written.
    """
    limit = options.n
    number = random.randrange(1_000_000)  # noqa: S311 - a name that is probably free, no secret
    channel = options.channel or f"tail{number:06d}#ephemeral"
    consumers = common.consumers_of(PROGRAM, options, options.topics, channel, most=limit)
    if not consumers:
        raise UsageError("--topic required")
    shown = 0
    # One batch at a time over all topics: otherwise two of them could exceed `--n` together.
    writing = asyncio.Lock()

    async def follow(consumer: Consumer) -> None:
        """Print the consumer's messages until there are enough or it is stopped."""
        nonlocal shown
        prefix = f"{consumer.topic} | ".encode() if options.print_topic else b""
        async for batch in consumer.batches(wait=0):
            async with writing:
                count = min(len(batch), limit - shown) if limit else len(batch)
                try:
                    if count:
                        lines = [prefix + body + b"\n" for body in batch.bodies[:count]]
                        await output.write(b"".join(lines))
                except (ToolError, BrokenPipeError):
                    await batch.requeue(0, backoff=False)
                    raise
                shown += count
                # nsqd is not to wait for their timeout; backing off would be wrong, since nothing
                # has failed.
                for message in batch[count:] if count < len(batch) else ():
                    message.requeue(0, backoff=False)
                await batch.finish()
            if limit and shown >= limit:
                return

    await common.consume(consumers, stop, options.wait_for_nsqd_ns, follow, STOP_SECONDS)
    return 0
