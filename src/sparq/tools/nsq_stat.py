"""The program `nsq_stat`: prints a channel's stats, summed over its nsqds, a row per interval.

1. The first sample gives no row: ingress and egress are differences between two samples. With
   `--count=N` it exits after N rows.
2. nsqds given by address are asked there; nsqlookupds are asked for the topic's nsqds before each
   row, and one nsqlookupd that answers is enough.
3. If an nsqd does not answer, the tool exits, because a sum without it would be wrong.
4. Exit status: 0 after the last row and after SIGHUP, SIGINT and SIGTERM, else 1.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from typing import Final

from sparq.cluster.rows import ChannelRow, tables
from sparq.options.units import SECOND
from sparq.tools.cluster import ANYWHERE, ClusterPoller, fleet_of
from sparq.tools.commands import NsqStatOptions as Options
from sparq.tools.commands import ToolError, UsageError
from sparq.tools.common import unless_stopped
from sparq.tools.terminal import STDOUT, Pipe

PROGRAM: Final = "nsq_stat"
ROWS_PER_HEADING: Final = 25
GROUPS: Final = f"{'-' * 6}rate{'-' * 6}+{'-' * 16}depth{'-' * 16}+{'-' * 14}metadata{'-' * 15}"
ROW: Final = "{:>7} {:>7} | {:>7} {:>7} {:>7} {:>5} {:>5} | {:>7} {:>7} {:>12} {:>7}"
COLUMNS: Final = ROW.format(
    *("ingress", "egress", "total", "mem", "disk", "inflt"),
    *("def", "req", "t-o", "msgs", "clients"),
)


async def serve(options: Options, stop: asyncio.Event, output: Pipe = STDOUT) -> int:
    """Print rows until there are enough or the event is set; return the exit status.

    Raises:
        UsageError: the options are not valid.
        ToolError, BrokenPipeError: a row cannot be computed, or not written.
    """
    if not options.topic or not options.channel:
        raise UsageError("--topic and --channel are required")
    await unless_stopped(_report(options, output), stop)
    return 0


async def _report(options: Options, output: Pipe) -> None:
    interval, clock = options.interval_ns / SECOND, asyncio.get_running_loop().time
    before: ChannelRow | None = None
    async with fleet_of(options, ANYWHERE) as fleet:
        cluster = ClusterPoller(fleet, options.topic, options.channel)
        due = clock()
        for number in itertools.count():
            sample = await _sample(cluster, fleet.lookupds, options)
            lines = [GROUPS, COLUMNS] if number % ROWS_PER_HEADING == 0 else []
            if before is not None:
                lines.append(line(sample, before, interval))
            if lines:
                await output.write("".join(f"{each}\n" for each in lines).encode())
            if number == options.count:
                return
            before = sample
            # Fixed steps; after a late response, a whole interval from now.
            due = due + interval if due + interval > clock() else clock() + interval
            await asyncio.sleep(due - clock())


def line(now: ChannelRow, before: ChannelRow, interval_seconds: float) -> str:
    """Format the current row, with the rates since the sample before."""
    ingress = now.messages - before.messages
    egress = ingress - (now.depth - before.depth)
    return ROW.format(
        *(int(ingress / interval_seconds), int(egress / interval_seconds)),
        *(now.depth, now.depth - now.backend_depth, now.backend_depth),
        *(now.in_flight, now.deferred, now.requeued, now.timed_out, now.messages, now.clients),
    )


async def _sample(cluster: ClusterPoller, lookupds: Iterable[str], options: Options) -> ChannelRow:
    """Sum the channel's figures over the nsqds; raises ToolError if one of them did not answer."""
    answers = await cluster.stats()
    topic, channel = options.topic, options.channel
    asked = set(lookupds)
    for what, errors in (
        ("nsqd stats", {at: why for at, why in cluster.errors.items() if at not in asked}),
        ("topic producers", cluster.errors if asked <= cluster.errors.keys() else {}),
    ):
        if errors:
            texts = "; ".join(f"{address}: {reason}" for address, reason in errors.items())
            raise ToolError(f"ERROR: failed to get {what} - {texts}")
    _, channels, *_ = tables((stats, None) for stats in answers.values())
    found = channels.find(topic, channel)
    if found is None:
        raise ToolError(
            f"ERROR: failed to find channel({channel}) in stats metadata for topic({topic});"
            f" sparq top --once --topic={topic} lists its channels"
        )
    return found
