"""`peek`: a look at the messages of a channel, or at the newest of a topic; nothing is taken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from sparq.cluster.nodes import Node
from sparq.tools.admin.changes import check_names
from sparq.tools.admin.job import Job
from sparq.tools.admin.listing import say_missing
from sparq.tools.admin.reading import PAGE_MAX, Message, bodies, by_time, nodes_of, pages
from sparq.tools.admin.showing import show_messages
from sparq.tools.command_line import UsageError

LOG: Final = "/topic/messages"
CHANNEL: Final = "/channel/messages"


async def peek(job: Job) -> int:
    """Print messages; the exit status.

    Raises:
        UsageError: flags that do not go together.
        Failed: there is no such topic or channel.
    """
    check_names(job)
    options = job.options
    if options.state == "finished" or (options.state and not job.channel):
        raise UsageError("--state takes a channel, and is waiting, in_flight or deferred; see find")
    if options.start and job.channel:
        raise UsageError("--from is of a topic: leave out the channel, or see find")
    nodes = await nodes_of(job)
    found = await asyncio.gather(*(_of_one(job, node) for node in nodes))
    messages = sorted((one for some in found for one in some), key=_order(job))
    is_newest = not job.channel and not options.start
    chosen = messages[-options.limit :] if is_newest else messages[: options.limit]
    await show_messages(job, chosen)
    return say_missing(job)


async def _of_one(job: Job, node: Node) -> list[Message]:
    """As many messages of one nsqd as all together may be."""
    options, limit = job.options, job.options.limit
    query = {"topic": job.topic, "limit": str(min(limit, PAGE_MAX)), **bodies(options.body_bytes)}
    if job.channel:
        query |= {"channel": job.channel, "state": options.state or "waiting"}
    else:
        query |= {"from": options.start or f"last:{limit}"}
    messages: list[Message] = []
    async for page in pages(job, node, CHANNEL if job.channel else LOG, query):
        messages += page
        # The end of a log has a `next`, for those who follow it.
        if len(messages) >= limit or not page:
            break
    return messages[:limit]


def _order(job: Job) -> Callable[[Message], tuple[Any, str]]:
    return _by_due if job.options.state == "deferred" else by_time


def _by_due(message: Message) -> tuple[str, str]:
    return str(message.get("due")), str(message["id"])
