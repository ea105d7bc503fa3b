"""`find`: messages by id, text, a value of their JSON, attempts, state or time, at all nsqds.

All nsqds are searched at once, each in bounded requests, until it has as many as are wanted or has
come to its end; what they found is put together by time.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from sparq.cluster.nodes import Node
from sparq.cluster.upstream import UpstreamError
from sparq.tools.admin.changes import check_names
from sparq.tools.admin.job import Job
from sparq.tools.admin.listing import say_missing
from sparq.tools.admin.reading import (
    PAGE_MAX,
    Message,
    bodies,
    by_time,
    message_in,
    nodes_of,
    note,
    pages,
    search_query,
)
from sparq.tools.admin.showing import show_messages
from sparq.tools.command_line import Failed, UsageError

SEARCH = "/topic/search"


async def find(job: Job) -> int:
    """Print what is found; the exit status: 1 also where a message with this id is not found.

    Raises:
        UsageError: flags that do not go together.
        Failed: there is no such topic or channel, or no such message.
    """
    check_search(job)
    nodes = await nodes_of(job)
    if job.options.id:
        found = await asyncio.gather(*(_by_id(job, node) for node in nodes))
        messages = [one for one in found if one is not None]
        if not messages:
            say_missing(job)
            raise Failed(f"no nsqd that answered has a message {job.options.id} of {job.what}")
    else:
        progress = Progress(len(nodes))
        some = await asyncio.gather(*(_search(job, node, progress.note) for node in nodes))
        progress.end()
        messages = sorted((one for each in some for one in each), key=by_time)
        messages = messages[: job.options.limit]
    if job.options.ids:
        await job.say(*(str(message["id"]) for message in messages))
    else:
        await show_messages(job, messages)
    return say_missing(job)


def check_search(job: Job) -> None:
    """Hold the flags of a search to what goes together.

    Raises:
        UsageError: the text names the flag.
    """
    check_names(job)
    if not job.channel and (job.options.attempts or job.options.state):
        raise UsageError("--attempts and --state are of a channel: name one after the topic")


async def _by_id(job: Job, node: Node) -> Message | None:
    query = {"topic": job.topic, "channel": job.channel, "id": job.options.id}
    try:
        answer = await job.fleet.get(node, "/message", **query, **bodies(job.options.body_bytes))
    except UpstreamError as error:
        note(job, node.address, error.reason)
        return None
    return message_in(answer, node.address)


async def _search(job: Job, node: Node, on_progress: Callable[[str, float], None]) -> list[Message]:
    limit = job.options.limit
    more = {"limit": str(min(limit, PAGE_MAX)), **bodies(job.options.body_bytes)}
    messages: list[Message] = []
    async for page in pages(job, node, SEARCH, search_query(job, **more), on_progress):
        messages += page
        if len(messages) >= limit:
            break
    return messages[:limit]


class Progress:
    """How far a search is, on a terminal's stderr.

    Args:
        nodes: how many nsqds are searched.
    """

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._parts: dict[str, float] = {}
        self._is_shown = sys.stderr.isatty()

    def note(self, address: str, part: float) -> None:
        """One nsqd has searched this part of its log."""
        self._parts[address] = min(1.0, max(0.0, part))
        if self._is_shown:
            done = sum(self._parts.values()) / max(1, self._nodes)
            sys.stderr.write(f"\rsearched {done:.0%} ")
            sys.stderr.flush()

    def end(self) -> None:
        """Take the line away."""
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
