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
from functools import partial
from typing import Final, NamedTuple

from sparq.cluster.figures import NsqdFigures
from sparq.protocol.address import parse_address
from sparq.protocol.durations import SECOND
from sparq.tools.cluster import ClusterPoller, opened
from sparq.tools.command_line import ToolError, UsageError
from sparq.tools.commands import NsqStatOptions as Options
from sparq.tools.common import check_http_sources, check_positive, run, unless_stopped
from sparq.tools.pipes import PipeOutput

PROGRAM: Final = "nsq_stat"
ROWS_PER_HEADING: Final = 25
GROUPS: Final = f"{'-' * 6}rate{'-' * 6}+{'-' * 16}depth{'-' * 16}+{'-' * 14}metadata{'-' * 15}"
ROW: Final = "{:>7} {:>7} | {:>7} {:>7} {:>7} {:>5} {:>5} | {:>7} {:>7} {:>12} {:>7}"
COLUMNS: Final = ROW.format(
    *("ingress", "egress", "total", "mem", "disk", "inflt"),
    *("def", "req", "t-o", "msgs", "clients"),
)


def start(options: Options) -> int:
    """Run the program; return the exit status."""
    return run(PROGRAM, partial(stat, options, PipeOutput()))


async def stat(options: Options, output: PipeOutput, stop: asyncio.Event) -> int:
    """Print rows until there are enough or the event is set; return the exit status.

    Raises:
        UsageError: the options are not valid.
        ToolError, BrokenPipeError: a row cannot be computed, or not written.
    """
    check(options)
    await unless_stopped(_report(options, output), stop)
    return 0


def check(options: Options) -> None:
    """Check the options, in NSQ's order and with its wording.

    Raises:
        UsageError: one is not valid; the text names the flag.
    """
    if not options.topic or not options.channel:
        raise UsageError("--topic and --channel are required")
    check_positive(
        options,
        *("interval_ns", "http_client_connect_timeout_ns", "http_client_request_timeout_ns"),
        "count",
    )
    nsqds, lookupds = options.nsqd_http_addresses, options.lookupd_http_addresses
    check_http_sources(nsqds, lookupds)
    for flag, addresses in (("nsqd", nsqds), ("lookupd", lookupds)):
        for address in addresses:
            _check_address(flag, address)


def _check_address(flag: str, address: str) -> None:
    try:
        if "://" in address:
            raise ValueError(f"address should not contain scheme: {address!r}")
        parse_address(address)
    except ValueError as error:
        raise UsageError(f"--{flag}-http-address error - {error}") from None


class StatSample(NamedTuple):
    """A channel's figures in `/stats`, summed over nsqds."""

    message_count: int = 0
    depth: int = 0
    backend_depth: int = 0
    in_flight_count: int = 0
    deferred_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    client_count: int = 0

    def row(self, before: StatSample, interval_seconds: float) -> str:
        """Format the current row, with the rates since the sample before."""
        ingress = self.message_count - before.message_count
        egress = ingress - (self.depth - before.depth)
        return ROW.format(
            int(ingress / interval_seconds),
            int(egress / interval_seconds),
            self.depth,
            self.depth - self.backend_depth,
            self.backend_depth,
            self.in_flight_count,
            self.deferred_count,
            self.requeue_count,
            self.timeout_count,
            self.message_count,
            self.client_count,
        )


def sample_of(answers: Iterable[NsqdFigures], topic: str, channel: str) -> StatSample | None:
    """Sum a channel's figures over the nsqds; None if no nsqd has the channel."""
    found = [part for each in answers if (part := each.channel(topic, channel)) is not None]
    sums = (sum(getattr(part, name) for part in found) for name in StatSample._fields)
    return StatSample(*sums) if found else None


async def _report(options: Options, output: PipeOutput) -> None:
    interval, clock = options.interval_ns / SECOND, asyncio.get_running_loop().time
    before: StatSample | None = None
    async with opened(options, options.topic, options.channel) as cluster:
        due = clock()
        for number in itertools.count():
            sample = await _sample(cluster, options)
            lines = [GROUPS, COLUMNS] if number % ROWS_PER_HEADING == 0 else []
            if before is not None:
                lines.append(sample.row(before, interval))
            if lines:
                await output.write("".join(f"{line}\n" for line in lines).encode())
            if number == options.count:
                return
            before = sample
            # Fixed steps; after a late response, a whole interval from now.
            due = due + interval if due + interval > clock() else clock() + interval
            await asyncio.sleep(due - clock())


async def _sample(cluster: ClusterPoller, options: Options) -> StatSample:
    answers = await cluster.stats()
    topic, channel = options.topic, options.channel
    lookupds = set(options.lookupd_http_addresses)
    failed = {at: why for at, why in cluster.errors.items() if at not in lookupds}
    if failed:
        raise ToolError(f"ERROR: failed to get nsqd stats - {_error_text(failed)}")
    if lookupds and lookupds <= cluster.errors.keys():
        raise ToolError(f"ERROR: failed to get topic producers - {_error_text(cluster.errors)}")
    sample = sample_of((each.stats for each in answers.values()), topic, channel)
    if sample is None:
        raise ToolError(
            f"ERROR: failed to find channel({channel}) in stats metadata for topic({topic});"
            f" sparq top --once --topic={topic} lists its channels"
        )
    return sample


def _error_text(errors: dict[str, str]) -> str:
    return "; ".join(f"{address}: {reason}" for address, reason in errors.items())
