"""ApiMessages in the API: pages of a channel and of the log, search, single messages, dead letters.

1. Only the role `bodies` sees message bodies. Without it the same routes show the rest of each
   message, and searches are refused, because matches would reveal bodies (`access.roles`).
2. A search streams events while it runs (`stream=true`), or answers with one bounded step and a
   token. It ends when the client disconnects.
3. Dead letters are sent back with the action `copy_message`, `BATCH` messages at a time, so that
   each entry of the audit log names all of its messages. Letters that were sent back stay in their
   topic and are marked.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import fields
from typing import Any, Final

from sparq.daemon.http import Call, Content, HttpError
from sparq.nsqadmin.access.roles import Role
from sparq.nsqadmin.actions import ActionRequest
from sparq.nsqadmin.messages import peek as peeking
from sparq.nsqadmin.messages.checked import STATES
from sparq.nsqadmin.messages.peek import (
    DisplayLimits,
    SearchCriteria,
    by_node,
    find,
    whole_body,
)
from sparq.nsqadmin.messages.times import BUCKETS, BUCKETS_MAX, seek_preview, times
from sparq.nsqadmin.services import Services
from sparq.nsqadmin.v2.answers import (
    ApiLetterPage,
    ApiMessagePage,
    ApiMessages,
    ApiPreview,
    ApiSearchPage,
    ApiSendBack,
    ApiSentBack,
    ApiTimes,
    plain,
)
from sparq.nsqadmin.v2.endpoints import ApiEndpoints, Arguments, Parameter
from sparq.protocol.dead_letters import REDRIVE_CHANNEL

BATCH: Final = 50
ALL_MAX: Final = 10_000

TOPIC: Final = Parameter("topic", "the topic", is_needed=True)
CHANNEL: Final = Parameter("channel", "the channel", is_needed=True)
ANY_CHANNEL: Final = Parameter("channel", "adds each message's state in this channel")
NODES: Final = Parameter("nodes", "only these nodes, comma-separated", "list", default=())
SHOWN: Final = (
    Parameter(
        "limit",
        "maximum number of messages",
        "integer",
        default=peeking.LIMIT,
        minimum=1,
        maximum=peeking.LIMIT_MAX,
    ),
    Parameter("bodies", "include bodies; default: if the role allows it", "flag", default=None),
    Parameter(
        "body_bytes",
        "maximum bytes of each body",
        "integer",
        default=peeking.SHOWN_BYTES,
        minimum=1,
        maximum=peeking.SHOWN_BYTES_MAX,
    ),
    NODES,
)
AFTER: Final = Parameter("after", "`next` of the previous answer")
SOUGHT: Final = (
    TOPIC,
    ANY_CHANNEL,
    Parameter("from", "a place: only messages from there on"),
    Parameter("to", "a place: only messages before it"),
    Parameter("text", "only bodies that contain this text"),
    Parameter("regex", "only bodies that match this pattern (RE2)"),
    Parameter("json", "JSON condition `PATH` or `PATH OPERATOR VALUE`, see docs/http.md"),
    Parameter("attempts", "needs `channel`: number of attempts, such as `3`, `>=3` or `<3`"),
    Parameter(
        "state", "needs `channel`: only messages in this state", choices=("", *STATES, "finished")
    ),
)


ONE: Final = (TOPIC, Parameter("id", "message id, 16 hexadecimal digits", is_needed=True))
ENDPOINTS: Final = ApiEndpoints()


def show_in(services: Services, call: Call, arguments: Arguments) -> DisplayLimits:
    """Decide how much of each message, and how many messages, the sender may see.

    Raises:
        HttpError: 401 or 403 if bodies are requested and the role is missing.
    """
    bodies = arguments["bodies"]
    if bodies:
        services.access.require(call.request, Role.BODIES)
    elif bodies is None:
        # Not asked for: without the role, they are left out instead of refusing the request.
        bodies = services.access.identify(call.request).may(Role.BODIES)
    return DisplayLimits(
        arguments.get("limit", 1), bodies, arguments["body_bytes"], arguments["nodes"]
    )


def sought_in(arguments: Arguments) -> SearchCriteria:
    """Read the search criteria from a query's arguments."""
    names = ("text", "regex", "json", "attempts", "state", "channel")
    return SearchCriteria(
        arguments["from"], arguments["to"], **{name: arguments[name] for name in names}
    )


def page_document(page: peeking.MessagePage | peeking.SearchPage) -> dict[str, Any]:
    """Convert a page to JSON values."""
    names = [each.name for each in fields(page) if each.name != "answers"]
    return {**{name: getattr(page, name) for name in names}, **page.answers.document()}


@ENDPOINTS.add(
    "GET",
    "/messages",
    "a channel's messages by time; read-only",
    ApiMessagePage,
    TOPIC,
    CHANNEL,
    Parameter("state", "only messages in this state", default="waiting", choices=STATES),
    *SHOWN,
    AFTER,
)
async def _messages(services: Services, call: Call, arguments: Arguments) -> Any:
    names, show = (arguments["topic"], arguments["channel"]), show_in(services, call, arguments)
    state, after = arguments["state"], arguments["after"]
    return page_document(
        await peeking.peek(services.fleet, *names, state=state, after=after, show=show)
    )


@ENDPOINTS.add(
    "GET",
    "/log",
    "a topic's log by time; the last page has a `next`, too, for later messages",
    ApiMessagePage,
    TOPIC,
    ANY_CHANNEL,
    Parameter("from", "place to start at; default: the oldest message"),
    *SHOWN,
    AFTER,
)
async def _log(services: Services, call: Call, arguments: Arguments) -> Any:
    of = {"place": arguments["from"], "channel": arguments["channel"], "after": arguments["after"]}
    show = show_in(services, call, arguments)
    return page_document(
        await peeking.log_page(services.fleet, arguments["topic"], **of, show=show)
    )


@ENDPOINTS.add(
    "GET",
    "/search",
    "search for messages: one step, or events until the end",
    ApiSearchPage,
    *SOUGHT,
    *SHOWN,
    AFTER,
    Parameter("stream", "send events until everything is searched", "flag", default=False),
    media=("text/event-stream",),
)
async def _search(services: Services, call: Call, arguments: Arguments) -> Any:
    topic, sought, show = (
        arguments["topic"],
        sought_in(arguments),
        show_in(services, call, arguments),
    )
    page = await peeking.search(services.fleet, topic, sought, after=arguments["after"], show=show)
    if not arguments["stream"]:
        return _step(page)
    response = await call.stream("text/event-stream", {"Cache-Control": "no-store"})
    found = 0
    while True:
        found += len(page.messages)
        await response.write(_event("step", _step(page)))
        if page.next is None or found >= show.limit:
            break
        page = await peeking.search(services.fleet, topic, sought, after=page.next, show=show)
    await response.write(_event("end", {"next": page.next, "done": page.done}))
    return response


def _step(page: peeking.SearchPage) -> dict[str, Any]:
    return {**page_document(page), "done": page.done}


def _event(name: str, data: Any) -> bytes:
    """Format a server-sent event; the JSON contains no line breaks."""
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


@ENDPOINTS.add(
    "GET",
    "/message",
    "one message, from each node that has a message with this id",
    ApiMessages,
    *ONE,
    ANY_CHANNEL,
    *SHOWN[1:],
)
async def _message(services: Services, call: Call, arguments: Arguments) -> Any:
    show = show_in(services, call, arguments)
    found, answers = await find(
        services.fleet, arguments["topic"], arguments["id"], arguments["channel"], show
    )
    return {"messages": found, **answers.document()}


@ENDPOINTS.add(
    "GET",
    "/body",
    "the whole body of a message",
    None,
    *ONE,
    Parameter("node", "the node that has it", is_needed=True),
    media=("application/octet-stream",),
)
async def _body(services: Services, _call: Call, arguments: Arguments) -> Any:
    """Send the body as a binary file, so that browsers save it instead of showing it."""
    body = await whole_body(services.fleet, arguments["topic"], arguments["id"], arguments["node"])
    return Content(body, "application/octet-stream")


@ENDPOINTS.add(
    "GET",
    "/times",
    "number of messages by publish time",
    ApiTimes,
    TOPIC,
    Parameter("channel", "adds this channel's position"),
    Parameter(
        "buckets",
        "number of time intervals",
        "integer",
        default=BUCKETS,
        minimum=1,
        maximum=BUCKETS_MAX,
    ),
    NODES,
)
async def _times(services: Services, _call: Call, arguments: Arguments) -> Any:
    names = arguments["topic"], arguments["channel"]
    found = await times(
        services.fleet, *names, buckets=arguments["buckets"], nodes=arguments["nodes"]
    )
    return {**found.document(), **found.answers.document()}


@ENDPOINTS.add(
    "GET",
    "/seek",
    "preview of a seek; nothing is moved",
    ApiPreview,
    TOPIC,
    CHANNEL,
    Parameter("to", "a place, see Replay in docs/http.md", is_needed=True),
    NODES,
)
async def _preview(services: Services, _call: Call, arguments: Arguments) -> Any:
    names = arguments["topic"], arguments["channel"]
    found = await seek_preview(services.fleet, *names, arguments["to"], arguments["nodes"])
    return {**found.document(), **found.answers.document()}


@ENDPOINTS.add(
    "GET",
    "/dead-letters",
    "dead letters of a topic, when each was sent back, and which came back",
    ApiLetterPage,
    TOPIC,
    Parameter("from", "place to start at; default: the oldest letter"),
    *SHOWN,
    AFTER,
)
async def _letters(services: Services, call: Call, arguments: Arguments) -> Any:
    show, place, after = show_in(services, call, arguments), arguments["from"], arguments["after"]
    found = await services.letters.page(arguments["topic"], place=place, after=after, show=show)
    return {"origin": found.origin, "marks": plain(found.marks), **page_document(found.page)}


@ENDPOINTS.add(
    "POST",
    "/dead-letters",
    "send dead letters back to the channel that they came from: those named, or all not sent yet",
    ApiSentBack,
    body=ApiSendBack,
)
async def _send(services: Services, call: Call, arguments: Arguments) -> Any:
    body: ApiSendBack = arguments["body"]
    topic, to, channel = body.topic, body.to, body.channel or REDRIVE_CHANNEL
    result: dict[str, Any] = {"to": to, "sent": 0, "refused": {}, "errors": {}, "more": False}
    async for batch in _batches(services, body):
        if to:
            order = ActionRequest("copy_message", topic, arguments={"ids": batch, "to": to})
        else:
            order = ActionRequest("redrive_message", topic, channel, arguments={"ids": batch})
        report = await services.actions.perform(call.request, order)
        for one in report.outcomes:
            answer = one.answer if isinstance(one.answer, dict) else {}
            result["sent"] += len(answer.get("done") or ())
            for each in answer.get("refused") or ():
                result["refused"][f"{one.address}/{each.get('id')}"] = str(each.get("why"))
            if one.error:
                result["errors"][one.address] = one.error
        result["errors"] |= report.warnings
    result["more"] = body.all and result["sent"] >= ALL_MAX
    return result


async def _batches(services: Services, body: ApiSendBack) -> AsyncIterator[dict[str, list[str]]]:
    """Yield ids by node, at most `BATCH` messages at a time.

    With `all`, those of letters that were there at the start and have not been sent back.
    """
    topic, named = body.topic, body.messages
    if not body.all:
        if not named:
            raise HttpError(400, "INVALID_BODY: set `messages` or `all`")
        for at in range(0, len(named), BATCH):
            try:
                yield by_node(named[at : at + BATCH])
            except ValueError as error:
                raise HttpError(400, f"INVALID_BODY: {error}") from None
        return
    sent = await services.letters.sent(topic)
    show, after, left = DisplayLimits(BATCH, bodies=False), "", ALL_MAX
    ends: dict[str, int] = {}
    while left > 0:
        page = await peeking.log_page(services.fleet, topic, after=after, show=show)
        for node, reach in page.reach.items():
            # The end at the first page: letters that come back meanwhile would otherwise be sent
            # again, endlessly.
            ends.setdefault(node, int(reach["end_index"]))
        there = [m for m in page.messages if int(m["index"]) < ends.get(m["node"], 0)]
        keys = [f"{m['node']}/{m['id']}" for m in there]
        unsent = [key for key in keys if key not in sent][:left]
        left -= len(unsent)
        if unsent:
            yield by_node(unsent)
        if not there or page.next is None:
            return
        after = page.next
