"""`redrive`: send dead letters back to the topic and channel that they came from.

With ids it sends those letters, as `requeue` does; without ids, all letters that wait in the
channel when it begins, at most `--rate` per second. What is left is what the nsqds say afterwards:
letters that they refused, that failed again meanwhile, or that a consumer holds.

The channel is `redrive` unless another is named. It is created if the dead-letter topic has no
channel yet: the first channel of a topic gets all messages that waited there, and a later one none.
"""

from __future__ import annotations

import sys
from asyncio import gather
from collections import Counter
from typing import Any

from sparq.cluster import actions
from sparq.cluster.figures import TopicFigures
from sparq.cluster.redriving import RedriveProgress
from sparq.cluster.redriving import redrive as redrive_at
from sparq.protocol.dead_letters import REDRIVE_CHANNEL
from sparq.tools.admin import messages
from sparq.tools.admin.job import Job, Survey, in_words, known, result_of, survey
from sparq.tools.commands import ToolError


async def redrive(job: Job) -> int:
    """Send letters back; return the exit status.

    Raises:
        UsageError: a word is not a valid name or id.
        ToolError: nothing was done.
    """
    if not job.channel:
        job.words = (job.topic, REDRIVE_CHANNEL)
    if len(job.words) > 2:
        return await messages.act(job)
    job.check_names()
    found = await _found(job)
    job.errors |= found.errors
    left = job.options.limit or sys.maxsize
    totals: dict[str, int] = {}
    for address, figures in found.having.items():
        if address in found.nodes:
            totals[address] = min(left, max(0, figures.depth))
            left -= totals[address]
    if job.options.dry_run:
        rows = [{"nsqd": at, "would_redrive": count} for at, count in totals.items()]
        await job.show(("nsqd", "would_redrive"), rows, 1)
        return job.warn_of_errors()
    progress = {address: RedriveProgress(total) for address, total in totals.items()}
    query = {"topic": job.topic, "channel": job.channel}
    query |= {"to_all": "true"} if job.options.to_all else {}
    every = sum(totals.values())
    shows = sys.stderr.isatty() and not job.options.json

    async def redrive_one(address: str, total: int) -> None:
        # `--rate` is the rate of the cluster: divided so that all nsqds finish at the same time.
        rate = job.options.rate * total / every if every else 0
        node = found.nodes[address]
        async for so_far in redrive_at(job.fleet, node, query, total, rate):
            progress[address] = so_far
            if shows:
                done = sum(each.done for each in progress.values())
                sys.stderr.write(f"\rredriven: {done:,} of {every:,} ")
                sys.stderr.flush()

    await gather(*(redrive_one(address, total) for address, total in totals.items()))
    if shows:
        sys.stderr.write("\r\033[K")
    # How many letters are in the channel now; an nsqd that does not say is left out.
    nodes = [found.nodes[address] for address in totals]
    stats = await job.fleet.stats(job.topic, job.channel, nodes=nodes)
    job.errors |= known(stats.errors)
    channels = {at: each.channel(job.topic, job.channel) for at, each in stats.value.items()}
    still = {at: 0 if figures is None else figures.left for at, figures in channels.items()}
    return await _say(job, progress, still)


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


async def _say(job: Job, progress: dict[str, RedriveProgress], left: dict[str, int]) -> int:
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
        result = "done" if not status else result_of(bool(done), True)
        record = {"verb": "redrive", "topic": job.topic, "channel": job.channel, "dry_run": False}
        record |= {"result": result, "redriven": done, "refused": dict(reasons), "rows": rows}
        record |= {"errors": job.errors, "next": job.next_steps(job.errors)}
        await job.say_json(record)
        return status
    await job.say(f"redriven: {done:,} letters of {job.what}")
    await job.show(("nsqd", "redriven", "refused", "left"), rows, 1)
    await job.say(*(f"  {count:,} NOT DONE: {why}" for why, count in reasons.most_common()))
    await job.say_errors(job.errors)
    return status
