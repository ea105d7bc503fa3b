"""`drain`: take an nsqd out of service; publishes are refused, its messages are worked off.

Without `--exit` the verb is done when nothing is left; with it, when the process has ended after
its last report that nothing was left. Channels and topics that nothing works off are listed on
stderr, each time the list changes. A drain that times out, or whose verb is stopped, goes on at the
nsqd: `--undo` ends it.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from sparq.cluster import draining
from sparq.cluster.draining import DrainProgress
from sparq.cluster.fleet import UnknownNode
from sparq.cluster.nodes import Node
from sparq.cluster.upstream import UpstreamError
from sparq.protocol.durations import SECOND
from sparq.tools.admin.changes import failures
from sparq.tools.admin.job import Job, in_words, lines_of
from sparq.tools.commands import ToolError, UsageError
from sparq.tools.terminal import progress_shown

POLL_SECONDS: Final = 0.5
"""Shorter than the time for which an nsqd reports itself empty before it exits."""

HELD_UP_SHOWN: Final = 5
SENTENCES: Final = {
    "undone": "{node} accepts publishes again",
    "ended": "{node} had nothing left, and its process has exited; messages refused: {refused:,}",
    "empty": "{node} is draining and has nothing left; messages refused: {refused:,}",
    "waiting": "{node} is still draining, {messages:,} messages left; run this again to wait",
    "unknown": "{node} does not answer: see its log; last seen: {messages:,} messages left",
}


async def drain(job: Job) -> int:
    """Drain the node; return the exit status, which is 1 also after the timeout.

    Raises:
        UsageError: flags do not go together.
        ToolError: nothing was done.
    """
    options = job.options
    if options.undo and (options.exit or options.timeout_ns):
        raise UsageError("--undo ends a drain: remove --exit and --timeout")
    address = job.words[0]
    try:
        node = await job.fleet.node(address)
        doing = draining.end if options.undo else partial(draining.begin, leave=options.exit)
        report = await doing(job.fleet, address)
    except UnknownNode:
        raise await job.no_such_node(address, "of this cluster: nothing was done") from None
    if failed := failures(report):
        raise ToolError("; ".join(lines_of(failed)))
    if options.undo:
        try:
            ended = draining.read(report.done[0].answer)
        except ValueError as error:
            raise ToolError(f"{address}: {error}") from None
        return await _say(job, "undone", ended, 0)
    watch = DrainWatch(job, node)
    seconds = options.timeout_ns / SECOND or None
    try:
        async with progress_shown(watch.shown), asyncio.timeout(seconds):
            is_done = await watch.wait()
    except TimeoutError:
        return await _say(job, "waiting", watch.last, 1)
    except UpstreamError as error:
        job.errors[node.address] = in_words(error.reason)
        return await _say(job, "unknown", watch.last, 1)
    if not is_done:
        return await _say(job, "undone", watch.last, 1)
    return await _say(job, "ended" if options.exit else "empty", watch.last, 0)


class DrainWatch:
    """The last known state of a draining node."""

    def __init__(self, job: Job, node: Node) -> None:
        self.job = job
        self.node = node
        self.last = DrainProgress(draining=True)
        self._told: list[tuple[str, str]] = []

    def shown(self) -> str:
        """Return the progress line."""
        last = self.last
        return (
            f"{last.messages:,} messages left in {last.channels:,} channels:"
            f" {last.in_flight:,} in flight, {last.deferred:,} deferred"
        )

    async def wait(self) -> bool:
        """Wait until nothing is left, or with `--exit` until the process has ended; False: undone.

        Raises:
            UpstreamError: the nsqd did not report its progress.
        """
        while True:
            try:
                self.last = await draining.progress(self.job.fleet, self.node)
            except UpstreamError as error:
                # The process ends its connections before it answers the last request.
                if error.status or not (self.last.exit and self.last.empty):
                    raise
                return True
            if not self.last.draining:
                return False
            if self.last.empty and not self.last.exit:
                return True
            held_up = self.last.held_up
            names = [(one.name, one.held_up) for one in held_up]
            if names != self._told:
                self._told = names
                for one in held_up[:HELD_UP_SHOWN]:
                    text = f"held up: {one.name}: {one.held_up}, {one.messages:,} messages"
                    self.job.warn(text)
                if len(held_up) > HELD_UP_SHOWN:
                    self.job.warn(f"and {len(held_up) - HELD_UP_SHOWN:,} more")
            await asyncio.sleep(POLL_SECONDS)


async def _say(job: Job, result: str, last: DrainProgress, status: int) -> int:
    """Report the outcome; return the exit status."""
    node = job.words[0]
    if job.options.json:
        record: dict[str, Any] = {"verb": "drain", "node": node, "result": result}
        await job.say_json({**record, **asdict(last), "errors": job.errors})
        return status
    for line in lines_of(job.errors):
        job.warn(line)
    figures = {"refused": last.refused, "messages": last.messages}
    await job.say(SENTENCES[result].format(node=node, **figures))
    if result in ("waiting", "unknown") and last.left:
        rows = [
            {
                "topic": one.topic,
                "channel": one.channel or "-",
                "left": one.messages,
                "held up by": one.held_up,
            }
            for one in last.left
        ]
        await job.show(("topic", "channel", "left", "held up by"), rows, 2)
    return status
