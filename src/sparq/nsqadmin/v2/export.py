"""Exports lists and messages as CSV or JSON lines, streamed: it needs the memory of one page.

1. An export has the rows that the same filter shows: figures of one snapshot, or messages page by
   page.
2. In CSV, a text that a spreadsheet would take for a formula (it begins with `=`, `+`, `-`, `@`, a
   tab or a line end) gets an apostrophe in front.
3. If some nodes could not answer, a last line `incomplete` names them and the reasons.
4. An export has at most `ROWS_MAX` messages; if there are more, its last line says so.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import math
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import structs

from sparq.cluster.messages import Message
from sparq.cluster.rows import BY_NAME, ChannelRow, TopicRow, in_order
from sparq.daemon.access.rules import Role
from sparq.daemon.http import HttpError
from sparq.nsqadmin import messages
from sparq.nsqadmin.messages import DisplayLimits, MessagePage, SearchPage
from sparq.nsqadmin.v2.endpoints import ApiRequest, Parameter
from sparq.nsqadmin.v2.routes import (
    ANY_CHANNEL,
    ENDPOINTS,
    FILTER,
    NODES,
    SOUGHT,
    STATE,
    sought_in,
)
from sparq.nsqadmin.watch.rows import ClientGroup, NodeRow

FORMATS: Final = {
    "csv": ("text/csv; charset=utf-8", "csv"),
    "jsonl": ("application/x-ndjson; charset=utf-8", "jsonl"),
}
FIGURES: Final[dict[str, Any]] = {
    "channels": ChannelRow,
    "topics": TopicRow,
    "nodes": NodeRow,
    "clients": ClientGroup,
}
MESSAGES: Final = ("messages", "log", "search")
ROWS_MAX: Final = 1_000_000
PAGE_ROWS: Final = 200
RISKY: Final = ("=", "+", "-", "@", "\t", "\r", "\n")

MESSAGE_COLUMNS: Final = (
    *("node", "id", "index", "time", "attempts", "size", "state", "due", "since", "deadline"),
    *("client", "encoding", "cut", "body"),
)

Line = dict[str, Any]
Chunk = tuple[Sequence[Line], dict[str, str]]
"""Some lines, and by address the reasons why data is missing."""


@ENDPOINTS.add(
    Role.READ,
    "GET",
    "/export",
    "figures or messages as a file",
    Parameter(
        "what", "figures or messages to export", choices=(*FIGURES, *MESSAGES), default="channels"
    ),
    Parameter("format", "CSV or JSON lines", choices=(*FORMATS,), default="csv"),
    Parameter("sort", "for figures: sort order, as in the lists", default=""),
    FILTER,
    STATE,
    Parameter("topic", "for messages: the topic; for figures: only this topic"),
    ANY_CHANNEL,
    *SOUGHT,
    Parameter(
        "message_state",
        "for `messages` (default: waiting) and `search` (default: any)",
        choices=("", *messages.STATES, "finished"),
    ),
    NODES,
    Parameter(
        "max", "maximum number of messages", "integer", default=10_000, minimum=1, maximum=ROWS_MAX
    ),
    media=("text/csv", "application/x-ndjson"),
)
async def _export(ask: ApiRequest) -> Any:
    what, (kind, suffix) = ask["what"], FORMATS[ask["format"]]
    columns = FIGURES[what].__struct_fields__ if what in FIGURES else MESSAGE_COLUMNS
    chunks = _figures(ask) if what in FIGURES else _messages(ask)
    first = await anext(chunks)  # a refusal is raised here, before anything is sent
    name = f'attachment; filename="nsqadmin-{what}.{suffix}"'
    headers = {"Content-Disposition": name, "Cache-Control": "no-store"}
    response = await ask.call.stream(kind, headers)
    lines = csv_lines if suffix == "csv" else json_lines
    missing = dict(first[1])
    await response.write(lines(columns, first[0], head=True))
    async for some, errors in chunks:
        missing |= errors
        await response.write(lines(columns, some))
    if missing:
        await response.write(incomplete(suffix, missing))
    return response


async def _figures(ask: ApiRequest) -> AsyncIterator[Chunk]:
    watch, what = ask.services.watch, ask["what"]
    rows = await watch.clients() if what == "clients" else getattr(await watch.current(), what)
    of = ask.some("topic", "state") if what in ("channels", "topics") else {}
    default = {"nodes": "hostname", "clients": "-connections"}.get(what, BY_NAME)
    try:
        found = in_order(rows, sort=ask["sort"] or default, filter=ask["filter"], **of)
    except ValueError as error:
        raise HttpError(400, f"INVALID_ARGUMENT: {error}") from None
    # At least one page, even an empty one: `_export` needs it to write the heading.
    for at in range(0, max(1, len(found)), PAGE_ROWS):
        yield [structs.asdict(row) for row in found[at : at + PAGE_ROWS]], {}
        await asyncio.sleep(0)  # the event loop serves other requests in between


async def _messages(ask: ApiRequest) -> AsyncIterator[Chunk]:
    access, request = ask.services.access, ask.call.request
    if not ask["topic"]:
        raise HttpError(400, "MISSING_ARG_TOPIC")
    if ask["what"] == "search":
        access.require(request, Role.BODIES)
    bodies = access.decide(request).may(Role.BODIES)
    show = DisplayLimits(PAGE_ROWS, bodies, messages.SHOWN_BYTES_MAX, ask["nodes"])
    after: str | None = ""
    left = ask["max"]
    # At 0, one more message is looked for: a page may have a `next` without any (a log always has).
    while after is not None and left >= 0:
        page = await _page(ask, after, show)
        unable = dict.fromkeys(page.unable, "NSQ's Go nsqd does not show messages")
        yield [_line(message) for message in page.messages[:left]], {**page.errors, **unable}
        left -= len(page.messages)
        is_end = ask["what"] == "log" and not page.messages
        # No messages and the same token again: the nodes of this page do not answer.
        is_stuck = not page.messages and page.next == after
        if is_end or is_stuck:
            break
        after = page.next
    if left < 0:
        yield [], {"max": f"there are more than {ask['max']:,} messages"}


async def _page(ask: ApiRequest, after: str, show: DisplayLimits) -> MessagePage | SearchPage:
    topic, state = ask["topic"], ask["message_state"]
    of: dict[str, Any] = {"after": after, "show": show}
    if ask["what"] == "search":
        return await messages.search(ask.fleet, topic, sought_in(ask, state), **of)
    channel = ask["channel"]
    if ask["what"] == "log":
        return await messages.log_page(ask.fleet, topic, place=ask["from"], channel=channel, **of)
    return await messages.peek(ask.fleet, topic, channel, state=state or "waiting", **of)


def _line(message: Message) -> Line:
    client = message.get("client") or {}
    return {**message, "client": client.get("client_id", "")} if "client" in message else message


def csv_lines(columns: Sequence[str], lines: Iterable[Line], head: bool = False) -> bytes:
    """Format lines as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    if head:
        writer.writerow(columns)
    for line in lines:
        writer.writerow([harmless(line.get(column)) for column in columns])
    return text.getvalue().encode("utf-8", "replace")


def harmless(value: Any) -> Any:
    """Convert a value to a cell that no spreadsheet evaluates (rule 2)."""
    value = msgspec.to_builtins(value)
    if isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    elif isinstance(value, dict):
        value = json.dumps(value)
    elif isinstance(value, float) and not math.isfinite(value):
        value = None
    return f"'{value}" if isinstance(value, str) and value.startswith(RISKY) else value


def json_lines(_columns: Sequence[str], lines: Iterable[Line], head: bool = False) -> bytes:
    """Format lines as JSON lines, which have no header line."""
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def incomplete(suffix: str, missing: dict[str, str]) -> bytes:
    """The last line of an incomplete export."""
    if suffix == "jsonl":
        return json_lines((), [{"incomplete": missing}])
    reasons = "; ".join(f"{address}: {why}" for address, why in sorted(missing.items()))
    return csv_lines(("what", "why"), [{"what": "incomplete", "why": reasons}])
