"""`find` and `peek`: show messages of all nsqds as table rows, without taking any.

`find` searches by id, text, a value of the JSON, attempts, state or time. It searches all nsqds at
once, each with bounded requests, until the nsqd has returned as many messages as wanted or reached
the end of its log; the results are merged by time. `peek` shows the messages of a channel, or the
newest of a topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from sparq.cluster.nodes import Node
from sparq.cluster.upstream import UpstreamError
from sparq.protocol.names import one_line
from sparq.tools.admin.job import Job
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
from sparq.tools.command_line import ToolError, UsageError
from sparq.tools.terminal import progress_shown
from sparq.tools.view import duration

SEARCH: Final = "/topic/search"
LOG: Final = "/topic/messages"
CHANNEL: Final = "/channel/messages"
HEADINGS: Final = ("id", "node", "time", "state", "attempts", "size", "body")
BODY_MAX: Final = 80


async def find(job: Job) -> int:
    """Print the messages found; return the exit status, which is 1 also if an id is not found.

    Raises:
        UsageError: flags do not go together.
        ToolError: there is no such topic or channel, or no such message.
    """
    check_search(job)
    nodes = await nodes_of(job)
    if job.options.id:
        found = await asyncio.gather(*(_by_id(job, node) for node in nodes))
        messages = [one for one in found if one is not None]
        if not messages:
            job.warn_of_errors()
            raise ToolError(f"no nsqd that answered has message {job.options.id} of {job.what}")
    else:
        parts = dict.fromkeys((node.address for node in nodes), 0.0)
        async with progress_shown(partial(_progress, parts)):
            some = await asyncio.gather(*(_search(job, node, parts) for node in nodes))
        messages = sorted((one for each in some for one in each), key=by_time)
        messages = messages[: job.options.limit]
    if job.options.ids:
        await job.say(*(str(message["id"]) for message in messages))
    else:
        await show_messages(job, messages)
    return job.warn_of_errors()


def check_search(job: Job) -> None:
    """Check that the flags of a search go together.

    Raises:
        UsageError: they do not; the text names the flag.
    """
    job.check_names()
    if not job.channel and (job.options.attempts or job.options.state):
        raise UsageError("--attempts and --state need a channel: name one after the topic")


async def _by_id(job: Job, node: Node) -> Message | None:
    query = {"topic": job.topic, "channel": job.channel, "id": job.options.id}
    try:
        answer = await job.fleet.get(node, "/message", **query, **bodies(job.options.body_bytes))
    except UpstreamError as error:
        note(job, node.address, error.reason)
        return None
    return message_in(job, answer, node.address)


async def _search(job: Job, node: Node, parts: dict[str, float]) -> list[Message]:
    limit = job.options.limit
    more = {"limit": str(min(limit, PAGE_MAX)), **bodies(job.options.body_bytes)}
    messages: list[Message] = []
    async for page in pages(job, node, SEARCH, search_query(job, **more), parts):
        messages += page
        if len(messages) >= limit:
            break
    return messages[:limit]


def _progress(parts: Mapping[str, float]) -> str:
    return f"searched {sum(parts.values()) / max(1, len(parts)):.0%}"


async def peek(job: Job) -> int:
    """Print messages; return the exit status.

    Raises:
        UsageError: flags do not go together.
        ToolError: there is no such topic or channel.
    """
    job.check_names()
    options = job.options
    if options.state == "finished" or (options.state and not job.channel):
        raise UsageError(
            "--state is waiting, in_flight or deferred, and needs a channel; for finished messages"
            " use find"
        )
    if options.start and job.channel:
        raise UsageError("--from needs a topic alone: remove the channel, or use find")
    nodes = await nodes_of(job)
    found = await asyncio.gather(*(_peek_at(job, node) for node in nodes))
    messages = sorted((one for some in found for one in some), key=_order(job))
    is_newest = not job.channel and not options.start
    chosen = messages[-options.limit :] if is_newest else messages[: options.limit]
    await show_messages(job, chosen)
    if len(messages) > len(chosen) and not options.json:
        which = "newest" if is_newest else "first"
        await job.say(f"the {which} {len(chosen):,} messages; --limit shows more")
    return job.warn_of_errors()


async def _peek_at(job: Job, node: Node) -> list[Message]:
    """Return messages of one nsqd, at most `--limit`, and one more if there are more."""
    options, limit = job.options, job.options.limit + 1
    query = {"topic": job.topic, "limit": str(min(limit, PAGE_MAX)), **bodies(options.body_bytes)}
    if job.channel:
        query |= {"channel": job.channel, "state": options.state or "waiting"}
    else:
        # The newest of the topic are among the newest `limit` of each nsqd.
        query |= {"from": options.start or f"last:{limit}"}
    messages: list[Message] = []
    async for page in pages(job, node, CHANNEL if job.channel else LOG, query):
        messages += page
        # Even the last page of a log has a `next`, for clients that follow the log.
        if len(messages) >= limit or not page:
            break
    return messages[:limit]


def _order(job: Job) -> Callable[[Message], tuple[Any, str]]:
    return _by_due if job.options.state == "deferred" else by_time


def _by_due(message: Message) -> tuple[str, str]:
    return str(message.get("due")), str(message["id"])


async def show_messages(job: Job, messages: Iterable[Message], **more: Any) -> None:
    """Print messages as a table, or as a JSON document with all their fields."""
    messages = list(messages)
    if job.options.json:
        await job.say_json({"messages": messages, **more, "errors": job.errors})
    else:
        await job.show(HEADINGS, map(_row, messages), 4)


def _row(message: Message) -> dict[str, Any]:
    # The body is the last column: cut it, and keep its beginning.
    body = message.get("body")
    text = one_line(body) if isinstance(body, str) else ""
    cut = text[:BODY_MAX] + ("..." if len(text) > BODY_MAX or message.get("cut") is True else "")
    return {
        "id": message["id"],
        "node": message["node"],
        "time": message.get("time"),
        "state": _state(message),
        "attempts": message.get("attempts"),
        "size": message.get("size"),
        "body": f"{cut} (base64)" if message.get("encoding") == "base64" else cut,
    }


def _state(message: Message) -> str:
    """Format the state with the client that holds the message and for how long, or the due time."""
    state = str(message.get("state") or "")
    if state == "in_flight":
        client = message.get("client")
        who = client.get("hostname") or client.get("client_id") if isinstance(client, dict) else ""
        held = message.get("in_flight_seconds")
        time = duration(float(held)) if isinstance(held, int | float) else ""
        return " ".join(filter(None, ("in flight", time, f"at {who}" if who else "")))
    due = message.get("due_seconds")
    if state == "deferred" and isinstance(due, int | float):
        return f"deferred, due in {duration(max(0.0, float(due)))}"
    return state
