"""`redrive`: send dead letters back to the topic and channel that they came from.

With ids it sends those letters, as `requeue` does; without ids, all letters that wait in the
channel when it begins, at most `--rate` per second. What is left is what the nsqds say afterwards:
letters that they refused, that failed again meanwhile, or that a consumer holds.

The channel is `redrive` unless another is named. It is created if the dead-letter topic has no
channel yet: the first channel of a topic gets all messages that waited there, and a later one none.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from sparq.cluster import actions
from sparq.cluster.figures import TopicFigures
from sparq.cluster.nodes import Node
from sparq.cluster.redriving import RedriveProgress
from sparq.cluster.redriving import redrive as redrive_at
from sparq.protocol.dead_letters import REDRIVE_CHANNEL
from sparq.tools.admin import selecting
from sparq.tools.admin.job import Job, in_words
from sparq.tools.admin.reading import Survey, known, survey
from sparq.tools.command_line import ToolError

HEADINGS: Final = ("nsqd", "redriven", "refused", "left")
WAITING: Final = ("nsqd", "would_redrive")


async def redrive(job: Job) -> int:
    """Send letters back; return the exit status.

    Raises:
        UsageError: a word is not a valid name or id.
        ToolError: nothing was done.
    """
    if not job.channel:
        words = (job.topic, REDRIVE_CHANNEL)
        job = replace(job, request=job.request._replace(words=words))
    if len(job.words) > 2:
        return await selecting.act(job)
    job.check_names()
    found = await _found(job)
    job.errors |= found.errors
    totals = _totals(job, found)
    if job.options.dry_run:
        rows = [{"nsqd": at, "would_redrive": count} for at, count in totals.items()]
        await job.show(WAITING, rows, 1)
        return job.warn_of_errors()
    progress = await _all(job, {at: (found.nodes[at], count) for at, count in totals.items()})
    return await _say(job, progress, await _left(job, [found.nodes[at] for at in progress]))


async def _found(job: Job) -> Survey:
    """Return the nsqds that have the channel, and its depth there.

    If the topic has no channel at all, this one is created.
    """
    found = await survey(job.fleet, job.topic, job.channel)
    if found.having or found.errors:
        return found
    topic = (await survey(job.fleet, job.topic)).having.values()
    if not topic:
        raise ToolError(f"no nsqd has the topic {job.topic}: nothing was done")
    having = (each for each in topic if isinstance(each, TopicFigures))
    others = sorted({one.channel_name for each in having for one in each.channels})
    if others:
        raise ToolError(
            f"no nsqd has the {job.what}, and a new channel would have no letters: name one of its"
            f" channels ({', '.join(others)})"
        )
    if job.options.dry_run:
        raise ToolError(f"no nsqd has the {job.what}; without --dry-run it would be created")
    report = await actions.create(job.fleet, job.topic, job.channel)
    if report.failed:
        raise ToolError(f"nothing was done: {in_words(report.failed)}")
    return await survey(job.fleet, job.topic, job.channel)


def _totals(job: Job, found: Survey) -> dict[str, int]:
    """Return the number of letters to send back at each nsqd."""
    left = job.options.limit or sys.maxsize
    totals = {}
    for address, figures in found.having.items():
        if address in found.nodes:
            totals[address] = min(left, max(0, figures.depth))
            left -= totals[address]
    return totals


async def _all(job: Job, nodes: Mapping[str, tuple[Node, int]]) -> dict[str, RedriveProgress]:
    """Send letters back at all nsqds at once; show the progress on a terminal."""
    progress = {address: RedriveProgress(total) for address, (_, total) in nodes.items()}
    query = {"topic": job.topic, "channel": job.channel}
    query |= {"to_all": "true"} if job.options.to_all else {}
    every = sum(total for _, total in nodes.values())
    shows = sys.stderr.isatty() and not job.options.json

    async def one(address: str) -> None:
        node, total = nodes[address]
        # `--rate` is the rate of the cluster: divided so that all nsqds finish at the same time.
        rate = job.options.rate * total / every if every else 0
        async for found in redrive_at(job.fleet, node, query, total, rate):
            progress[address] = found
            if shows:
                done = sum(each.done for each in progress.values())
                sys.stderr.write(f"\rredriven: {done:,} of {every:,} ")
                sys.stderr.flush()

    await asyncio.gather(*map(one, nodes))
    if shows:
        sys.stderr.write("\r\033[K")
    return progress


async def _left(job: Job, nodes: list[Node]) -> dict[str, int]:
    """Ask how many letters are in the channel now; an nsqd that does not say is left out."""
    stats = await job.fleet.stats(job.topic, job.channel, nodes=nodes)
    job.errors |= known(stats.errors)
    found = {at: each.channel(job.topic, job.channel) for at, each in stats.value.items()}
    return {at: 0 if figures is None else figures.left for at, figures in found.items()}


async def _say(job: Job, progress: Mapping[str, RedriveProgress], left: Mapping[str, int]) -> int:
    """Report what was sent back where, and why the rest was not; return the exit status."""
    reasons: Counter[str] = Counter()
    for address, one in progress.items():
        reasons.update(one.refused)
        if one.error:
            job.errors[address] = in_words(one.error)
    rows: list[dict[str, Any]] = [
        {"nsqd": at, "redriven": one.done, "refused": one.refused.total(), "left": left.get(at)}
        for at, one in progress.items()
    ]
    done = sum(one.done for one in progress.values())
    status = int(bool(reasons or job.errors))
    if job.options.json:
        result = "done" if not status else "partly" if done else "failed"
        record = {"verb": "redrive", "topic": job.topic, "channel": job.channel, "dry_run": False}
        record |= {"result": result, "redriven": done, "refused": dict(reasons), "rows": rows}
        record |= {"errors": job.errors, "next": job.next_steps(job.errors)}
        await job.say_json(record)
        return status
    await job.say(f"redriven: {done:,} letters of {job.what}")
    await job.show(HEADINGS, rows, 1)
    await job.say(*(f"  {count:,} NOT DONE: {why}" for why, count in reasons.most_common()))
    await job.say_errors(job.errors)
    return status
