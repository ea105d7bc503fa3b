"""Run `sparq admin`: open the cluster, call the verb's function, exit with its status.

A signal stops the verb with status 1; daemons that already got the request may have executed it.
The connections to the cluster are closed in any case.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from typing import Final

from sparq.client.arguments import split_texts
from sparq.cluster.fleet import Fleet
from sparq.program.verbs import ParsedCommand
from sparq.protocol.address import lookupd_url
from sparq.tools.admin.job import Job
from sparq.tools.admin.verbs import PROGRAM
from sparq.tools.cluster import upstream_of
from sparq.tools.command_line import IN_ENVIRONMENT, ToolError, UsageError
from sparq.tools.common import check_addresses, run
from sparq.tools.pipes import PipeOutput

FUNCTIONS: Final = {
    "list": "listing.list_them",
    "seek": "seeking.seek",
    "move": "moving.move",
    "drain": "draining.drain",
    "peek": "finding.peek",
    "find": "finding.find",
    "export": "exporting.export",
    "audit": "listing.audit",
    "dismiss": "listing.dismiss",
    "policies": "policies.policies",
    "redrive": "redriving.redrive",
    "completion": "completion.completion",
    **dict.fromkeys(("requeue", "finish", "cancel", "copy"), "selecting.act"),
}
"""The function of each verb; verbs that are not listed here are in `changes`."""

WITHOUT_CLUSTER: Final = ("audit", "dismiss", "completion")


def start(request: ParsedCommand) -> int:
    """Run the program; return the exit status."""
    return run(f"{PROGRAM} {request.verb}", partial(work, request, PipeOutput()))


async def work(request: ParsedCommand, output: PipeOutput, stop: asyncio.Event) -> int:
    """Run the verb until it is done or the event is set; return the exit status.

    Raises:
        UsageError, ToolError: nothing was done.
    """
    module, function = FUNCTIONS.get(request.verb, "changes.change").split(".")
    act: Callable[[Job], Awaitable[int]] = getattr(
        import_module(f"sparq.tools.admin.{module}"), function
    )
    async with opened(request) as fleet:
        job = Job(request, fleet, output)
        doing = asyncio.ensure_future(act(job))
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait([doing, stopping], return_when=asyncio.FIRST_COMPLETED)
        was_stopped = not doing.done()
        doing.cancel()
        stopping.cancel()
        await asyncio.gather(doing, stopping, return_exceptions=True)
        if was_stopped:
            raise ToolError("stopped by a signal: some daemons may already have done their part")
        return max(doing.result(), await _count(job))


async def _count(job: Job) -> int:
    """Check the number of nsqds against `--expect-nodes`; return the exit status."""
    expected = job.options.expect_nodes
    if not expected or job.verb in WITHOUT_CLUSTER:
        return 0
    found = await job.fleet.nodes()
    answered = [node.address for node in found.value if node.address not in found.errors]
    if len(answered) >= expected:
        return 0
    names = ", ".join(answered) or "none"
    job.warn(
        f"found {len(answered)} of {expected} expected nsqds ({names}): start the others, then run"
        " this again"
    )
    return 1


@asynccontextmanager
async def opened(request: ParsedCommand) -> AsyncIterator[Fleet]:
    """Open the cluster that the flags name.

    Raises:
        UsageError: the flags name no cluster or two kinds of address, or the token or a
            file is not valid.
    """
    options = request.options
    nsqds, lookupds = options.nsqd_http_addresses, options.lookupd_http_addresses
    check_addresses("nsqd-http-address", nsqds, lookupd_url)
    check_addresses("lookupd-http-address", lookupds, lookupd_url)
    if request.verb not in WITHOUT_CLUSTER:
        if not any(nsqds) and not any(lookupds):
            raise UsageError(
                f"--lookupd-http-address or --nsqd-http-address required {IN_ENVIRONMENT}"
            )
        if any(nsqds) and any(lookupds):
            raise UsageError("use --lookupd-http-address or --nsqd-http-address, not both")
    async with upstream_of(options) as upstream:
        yield Fleet(upstream, nsqds=split_texts(nsqds), lookupds=split_texts(lookupds))
