"""Messages of all nsqds of a topic, page by page, as nsqd's inspection routes give them.

1. Nothing is taken: attempts, order and depth stay as they are.
2. An nsqd that cannot be asked, or has no such routes (Go's), is among the job's errors; the others
   give their part.
3. What an nsqd says is read with care: what is no message is left out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

from sparq.cluster.nodes import Node
from sparq.cluster.upstream import UpstreamError
from sparq.tools.admin.job import Job
from sparq.tools.admin.next_steps import has_nothing, in_words
from sparq.tools.admin.survey import survey
from sparq.tools.command_line import Failed

Message = dict[str, Any]
PAGE_MAX: Final = 1000
BUDGET_MS: Final = "500"
NOT_HERE: Final = "MESSAGE_NOT_FOUND"


async def nodes_of(job: Job) -> list[Node]:
    """The nsqds that have the topic, or the channel, and answer.

    Raises:
        Failed: there is none.
    """
    found = await survey(job.fleet, job.topic, job.channel)
    job.errors |= found.errors
    nodes = [found.nodes[address] for address in found.having if address in found.nodes]
    if not nodes and not job.errors:
        raise Failed(f"no nsqd has the {job.what}")
    return nodes


async def pages(
    job: Job,
    node: Node,
    path: str,
    query: Mapping[str, str],
    on_progress: Callable[[str, float], None] | None = None,
) -> AsyncIterator[list[Message]]:
    """Pages of messages of one nsqd, each message with its nsqd's address as `node`.

    An error ends the pages, and is among the job's errors.

    Args:
        job: what was asked for.
        node: the nsqd.
        path: of an inspection route.
        query: its parameters.
        on_progress: is told an nsqd's address, and which part of its log was searched.
    """
    after = ""
    while True:
        try:
            answer = await job.fleet.get(node, path, **query, after=after)
        except UpstreamError as error:
            note(job, node.address, error.reason)
            return
        yield messages_in(answer, node.address)
        found = answer if isinstance(answer, dict) else {}
        progress = found.get("progress")
        if on_progress is not None and isinstance(progress, int | float):
            on_progress(node.address, float(progress))
        following = found.get("next")
        if found.get("done") is True or not isinstance(following, str) or following == after:
            return
        after = following


def note(job: Job, address: str, reason: str) -> None:
    """Keep in mind why an nsqd gave nothing, unless it has nothing to give."""
    if has_nothing(reason) or NOT_HERE in reason:
        return
    job.errors[address] = in_words(reason)


def messages_in(answer: Any, address: str) -> list[Message]:
    """The messages of an answer that are such."""
    listed = answer.get("messages") if isinstance(answer, dict) else None
    return [message for one in listed or () if (message := message_in(one, address)) is not None]


def message_in(one: Any, address: str) -> Message | None:
    """A message with its nsqd's address; None for what is none."""
    if not isinstance(one, dict) or not isinstance(one.get("id"), str):
        return None
    return {"node": address, **one}


def by_time(message: Message) -> tuple[int, str]:
    """When a message was published, for sorting."""
    stamp = message.get("timestamp")
    return int(stamp) if isinstance(stamp, str) and stamp.isdigit() else 0, str(message["id"])


def search_query(job: Job, **more: str) -> dict[str, str]:
    """The parameters of `/topic/search` that the flags ask for."""
    options = job.options
    return {
        **{"topic": job.topic, "channel": job.channel, "text": options.text},
        **{"json": options.where, "attempts": options.attempts, "state": options.state},
        **{"from": options.start, "to": options.end, "budget_ms": BUDGET_MS},
        **more,
    }


def bodies(size: int) -> dict[str, str]:
    """The parameters for so many bytes of each body."""
    return {"bodies": "true", "body_bytes": str(size)} if size else {"bodies": "false"}
