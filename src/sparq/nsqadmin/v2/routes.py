"""The routes of the API (docs/nsqadmin.md), each with the types of its answer and body.

1. Figures come from the snapshot that all viewers share (`watch`). A request queries no node,
   except for latencies and clients, which are fetched once for all viewers.
2. Lists are filtered, sorted and paged here. `after` waits for the next snapshot: a client that
   passes the `number` of its last snapshot gets each snapshot once, without polling.
3. Only the role `bodies` sees message bodies. Without it the same routes show the rest of each
   message, and searches are refused, because matches would reveal bodies (`access`).
4. A search streams events while it runs (`stream=true`), or answers with one bounded step and a
   token. It ends when the client disconnects.
5. `nsqadmin.actions` performs actions, checks roles and requires typed names. An action that failed
   everywhere is a 502 with its report.
6. Dead letters are sent back with the action `copy_message` or `redrive_message`, `BATCH` messages
   at a time, so that each entry of the audit log names all of its messages. Letters that were sent
   back stay in their topic and are marked.
7. In CSV, a text that a spreadsheet would take for a formula (it begins with `=`, `+`, `-`, `@`, a
   tab or a line end) gets an apostrophe in front.
8. The OpenAPI document is public: it describes the API and reveals nothing about the cluster. A
   test checks every answer against it.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import math
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct, structs

from sparq.cluster import draining, policies
from sparq.cluster.actions import Report
from sparq.cluster.cluster_stats import LATENCY
from sparq.cluster.draining import DrainProgress
from sparq.cluster.figures import DELIVERY, STATES, SelectionResult, checked
from sparq.cluster.figures import Amount as Count
from sparq.cluster.fleet import UnknownNode
from sparq.cluster.messages import Message
from sparq.cluster.rows import BY_NAME, LIMIT_MAX, ChannelRow, TopicRow, in_order, page_of
from sparq.cluster.rows import LIMIT as ROWS
from sparq.cluster.upstream import UpstreamError
from sparq.daemon.access.audit import FILTERS
from sparq.daemon.access.rules import Role
from sparq.daemon.http import Content, HttpError
from sparq.nsqadmin import actions, messages
from sparq.nsqadmin.actions import ActionRequest, References, error_of
from sparq.nsqadmin.dead_letters import DeadLetterPage
from sparq.nsqadmin.messages import (
    DisplayLimits,
    MessagePage,
    MessagesFound,
    Preview,
    SearchCriteria,
    SearchPage,
    Times,
)
from sparq.nsqadmin.services import Services
from sparq.nsqadmin.v2.endpoints import (
    ApiEndpoints,
    ApiRequest,
    ApiStruct,
    Handler,
    Parameter,
    document,
)
from sparq.nsqadmin.watch.rows import ClientGroup, Lookupd, NodeRow, Notice, Totals
from sparq.nsqadmin.watch.snapshot import ClusterSnapshot
from sparq.protocol.dead_letters import REDRIVE_CHANNEL
from sparq.protocol.messages import NodeMessage
from sparq.protocol.names import is_valid_name

WAIT_SECONDS: Final = 25.0
"""How long `after` waits; then the current snapshot is sent, which still has the same number."""

SHOWN: Final = 10
NUMBER_MAX: Final = 1 << 53
BATCH: Final = 50
ALL_MAX: Final = 10_000

ENDPOINTS: Final = ApiEndpoints()
Errors: TypeAlias = dict[str, str]


@ENDPOINTS.add(Role.NONE, "GET", "/openapi.json")
async def _document(ask: ApiRequest) -> dict[str, Any]:
    """This document."""
    return document(ENDPOINTS, ask.services.url(""), NodeMessage)


# Figures


class ApiStamp(ApiStruct):
    """Part of answers that come from a snapshot of the cluster."""

    number: Count
    time: float


class ApiPage(ApiStamp):
    """A page of rows."""

    total: Count
    offset: Count
    limit: Count


class ApiChannelPage(ApiPage):
    """Channels."""

    rows: Sequence[ChannelRow]


class ApiTopicPage(ApiPage):
    """Topics."""

    rows: Sequence[TopicRow]


class ApiNodePage(ApiPage):
    """Nodes."""

    rows: Sequence[NodeRow]


class ApiClientPage(ApiPage):
    """Consumers."""

    rows: Sequence[ClientGroup]


class ApiAttention(ApiStamp):
    """What needs attention."""

    notices: Sequence[Notice]


class ApiOverview(ApiAttention):
    """The cluster."""

    totals: Totals
    lookupds: Sequence[Lookupd]
    errors: Errors
    deepest: Sequence[ChannelRow]
    slowest: Sequence[ChannelRow]
    busiest: Sequence[TopicRow]
    has_go: bool


class ApiTopicAtNode(ApiStruct):
    """A topic at one node."""

    node: str
    state: str
    topic: TopicRow


class ApiChannelAtNode(ApiStruct):
    """A channel at one node."""

    node: str
    state: str
    channel: ChannelRow


class ApiTopicDetail(ApiStamp):
    """One topic."""

    topic: TopicRow
    nodes: list[ApiTopicAtNode]
    channels: Sequence[ChannelRow]
    latency: Any
    errors: Errors


class ApiChannelDetail(ApiStamp):
    """One channel."""

    channel: ChannelRow
    nodes: list[ApiChannelAtNode]
    clients: Sequence[ClientGroup]
    delivery: dict[str, Count]
    latency: Any
    errors: Errors


class ApiNodeDetail(ApiStamp):
    """One node."""

    node: NodeRow
    topics: ApiTopicPage
    channels: ApiChannelPage


AFTER_NUMBER: Final = Parameter(
    "after",
    "wait up to 25 seconds for a snapshot with a larger number",
    "integer",
    default=None,
    maximum=NUMBER_MAX,
)
OFFSET: Final = Parameter(
    "offset", "number of rows to skip", "integer", default=0, maximum=NUMBER_MAX
)
LIMIT: Final = Parameter(
    "limit",
    "maximum number of rows",
    "integer",
    default=ROWS,
    minimum=1,
    maximum=LIMIT_MAX,
)
FILTER: Final = Parameter("filter", "only names that contain this text, ignoring case")
STATE: Final = Parameter("state", "only channels in this state", choices=("", *STATES))
PAGED: Final = (FILTER, OFFSET, LIMIT, AFTER_NUMBER)


def _sort(default: str) -> Parameter:
    """The parameter for the sort order of rows."""
    words = "a figure of the rows, or `name`; with a leading `-`, largest first"
    return Parameter("sort", words, default=default)


async def _snapshot(ask: ApiRequest) -> tuple[ClusterSnapshot, dict[str, Any]]:
    """The current snapshot, or with `after` the next one, and the fields of `ApiStamp`."""
    watch = ask.services.watch
    if ask["after"] is None:
        snapshot = await watch.current()
    else:
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                snapshot = await watch.changed(ask["after"])
        except TimeoutError:
            snapshot = await watch.current()
    return snapshot, {"number": snapshot.number, "time": snapshot.time}


def _page(ask: ApiRequest, rows: Sequence[Any], **of: str) -> dict[str, Any]:
    """The page of rows that a request asks for; `of` selects them (`in_order`)."""
    wanted = {**ask.some("sort", "filter", "offset", "limit"), **of}
    try:
        return page_of(rows, **wanted)._asdict()
    except ValueError as error:
        raise HttpError(400, f"INVALID_ARG_SORT: {error}") from None


@ENDPOINTS.add(Role.READ, "GET", "/overview", AFTER_NUMBER)
async def _overview(ask: ApiRequest) -> ApiOverview:
    """The cluster in one answer: totals, notices, largest topics and channels."""
    snapshot, stamp = await _snapshot(ask)
    return ApiOverview(
        **stamp,
        totals=snapshot.totals,
        notices=snapshot.notices,
        lookupds=snapshot.lookupds,
        errors=snapshot.errors,
        deepest=page_of(snapshot.channels, sort="-depth", limit=SHOWN).rows,
        slowest=page_of(snapshot.channels, sort="-lag_seconds", limit=SHOWN).rows,
        busiest=page_of(snapshot.topics, sort="-in_rate", limit=SHOWN).rows,
        has_go=snapshot.has_go,
    )


@ENDPOINTS.add(Role.READ, "GET", "/attention", AFTER_NUMBER)
async def _attention(ask: ApiRequest) -> ApiAttention:
    """Notices about what needs attention."""
    snapshot, stamp = await _snapshot(ask)
    return ApiAttention(**stamp, notices=snapshot.notices)


@ENDPOINTS.add(
    Role.READ,
    "GET",
    "/history",
    Parameter("topic", "for this topic"),
    Parameter("channel", "for this channel of `topic`"),
    Parameter("node", "for this node; default: the whole cluster"),
)
async def _history(ask: ApiRequest) -> dict[str, Sequence[float | None]]:
    """Figures of the last hour: of the cluster, a topic, a channel or a node."""
    topic, channel, node = ask["topic"], ask["channel"], ask["node"]
    of: tuple[str, ...] = ("channel", topic, channel) if channel else ("topic", topic)
    if not topic:
        of = ("node", node) if node else ("cluster",)
    found = ask.services.watch.history.series(*of)
    return {"time": found.times, **found.values}


@ENDPOINTS.add(Role.READ, "GET", "/topics", _sort("name"), *PAGED)
async def _topics(ask: ApiRequest) -> ApiTopicPage:
    """Topics."""
    snapshot, stamp = await _snapshot(ask)
    return ApiTopicPage(**stamp, **_page(ask, snapshot.topics))


@ENDPOINTS.add(
    Role.READ,
    "GET",
    "/channels",
    Parameter("topic", "only channels of this topic"),
    STATE,
    _sort("name"),
    *PAGED,
)
async def _channels(ask: ApiRequest) -> ApiChannelPage:
    """Channels."""
    snapshot, stamp = await _snapshot(ask)
    page = _page(ask, snapshot.channels, **ask.some("topic", "state"))
    return ApiChannelPage(**stamp, **page)


@ENDPOINTS.add(Role.READ, "GET", "/nodes", _sort("hostname"), *PAGED)
async def _nodes(ask: ApiRequest) -> ApiNodePage:
    """Nodes."""
    snapshot, stamp = await _snapshot(ask)
    return ApiNodePage(**stamp, **_page(ask, snapshot.nodes))


@ENDPOINTS.add(
    Role.READ,
    "GET",
    "/clients",
    Parameter("topic", "only consumers of this topic"),
    Parameter("channel", "only consumers of this channel; needs `topic`"),
    _sort("-connections"),
    *PAGED,
)
async def _clients(ask: ApiRequest) -> ApiClientPage:
    """Consumers, grouped by host and user agent."""
    _, stamp = await _snapshot(ask)
    watch = ask.services.watch
    if ask["topic"]:
        found = (await watch.detail(ask["topic"], ask["channel"])).clients
    else:
        found = await watch.clients()
    return ApiClientPage(**stamp, **_page(ask, found))


@ENDPOINTS.add(Role.READ, "GET", "/topics/:topic", AFTER_NUMBER)
async def _topic(ask: ApiRequest) -> ApiTopicDetail:
    """One topic."""
    snapshot, stamp = await _snapshot(ask)
    topic = snapshot.topics.find(ask["topic"])
    if topic is None:
        raise HttpError(404, "TOPIC_NOT_FOUND")
    detail = await ask.services.watch.detail(topic.topic)
    return ApiTopicDetail(
        **stamp,
        topic=topic,
        nodes=[
            ApiTopicAtNode(node=node.address, state=node.state, topic=part)
            for node, part in snapshot.topic_nodes(topic.topic)
        ],
        channels=page_of(snapshot.channels, topic=topic.topic, limit=LIMIT_MAX).rows,
        latency=(detail.stats or {}).get(LATENCY),
        errors=detail.errors,
    )


@ENDPOINTS.add(Role.READ, "GET", "/topics/:topic/:channel", AFTER_NUMBER)
async def _channel(ask: ApiRequest) -> ApiChannelDetail:
    """One channel with its consumers."""
    snapshot, stamp = await _snapshot(ask)
    names = ask["topic"], ask["channel"]
    channel = snapshot.channels.find(*names)
    if channel is None:
        is_known = snapshot.topics.find(names[0]) is not None
        raise HttpError(404, "CHANNEL_NOT_FOUND" if is_known else "TOPIC_NOT_FOUND")
    detail = await ask.services.watch.detail(*names)
    stats = detail.stats or {}
    return ApiChannelDetail(
        **stamp,
        channel=channel,
        nodes=[
            ApiChannelAtNode(node=node.address, state=node.state, channel=part)
            for node, part in snapshot.channel_nodes(*names)
        ],
        clients=detail.clients,
        delivery={name: stats.get(name, 0) for name in DELIVERY},
        latency=stats.get(LATENCY),
        errors=detail.errors,
    )


@ENDPOINTS.add(Role.READ, "GET", "/nodes/:node", _sort("name"), *PAGED)
async def _node(ask: ApiRequest) -> ApiNodeDetail:
    """One node."""
    snapshot, stamp = await _snapshot(ask)
    node = snapshot.node(ask["node"])
    if node is None:
        raise HttpError(404, "NODE_NOT_FOUND")
    found = snapshot.at_node(node.address)
    # If only channels have the figure to sort by, topics are sorted by name.
    is_of_topics = ask["sort"].removeprefix("-") in (BY_NAME, *TopicRow.__struct_fields__)
    of_topics = {} if is_of_topics else {"sort": BY_NAME}
    return ApiNodeDetail(
        **stamp,
        node=node,
        topics=ApiTopicPage(**stamp, **_page(ask, found.topics, **of_topics)),
        channels=ApiChannelPage(**stamp, **_page(ask, found.channels)),
    )


# Messages

TOPIC: Final = Parameter("topic", "the topic", is_needed=True)
CHANNEL: Final = Parameter("channel", "the channel", is_needed=True)
ANY_CHANNEL: Final = Parameter("channel", "adds each message's state in this channel")
NODES: Final = Parameter("nodes", "only these nodes, comma-separated", "list", default=())
SHOWN_ONE: Final = (
    Parameter("bodies", "include bodies; default: if the role allows it", "flag", default=None),
    Parameter(
        "body_bytes",
        "maximum bytes of each body",
        "integer",
        default=messages.SHOWN_BYTES,
        minimum=1,
        maximum=messages.SHOWN_BYTES_MAX,
    ),
    NODES,
)
SHOWN_MANY: Final = (
    Parameter(
        "limit",
        "maximum number of messages",
        "integer",
        default=messages.LIMIT,
        minimum=1,
        maximum=messages.LIMIT_MAX,
    ),
    *SHOWN_ONE,
    Parameter("after", "`next` of the previous answer"),
)
SOUGHT: Final = (
    Parameter("from", "a place: only messages from there on"),
    Parameter("to", "a place: only messages before it"),
    Parameter("text", "only bodies that contain this text"),
    Parameter("regex", "only bodies that match this pattern (RE2)"),
    Parameter("json", "JSON condition `PATH` or `PATH OPERATOR VALUE`, see docs/http.md"),
    Parameter("attempts", "needs `channel`: number of attempts, such as `3`, `>=3` or `<3`"),
)
ONE: Final = (TOPIC, Parameter("id", "message id, 16 hexadecimal digits", is_needed=True))


def show_in(ask: ApiRequest) -> DisplayLimits:
    """Decide how much of each message, and how many messages, the sender may see.

    Raises:
        HttpError: 401 or 403 if bodies are requested and the role is missing.
    """
    bodies, access = ask["bodies"], ask.services.access
    if bodies:
        access.require(ask.call.request, Role.BODIES)
    elif bodies is None:
        # Not asked for: without the role, they are left out instead of refusing the request.
        bodies = access.decide(ask.call.request).may(Role.BODIES)
    return DisplayLimits(ask.arguments.get("limit", 1), bodies, ask["body_bytes"], ask["nodes"])


@ENDPOINTS.add(
    Role.READ,
    "GET",
    "/messages",
    TOPIC,
    CHANNEL,
    Parameter("state", "only messages in this state", default="waiting", choices=messages.STATES),
    *SHOWN_MANY,
)
async def list_messages(ask: ApiRequest) -> MessagePage:
    """A channel's messages by time; read-only."""
    of = ask.some("topic", "channel", "state", "after")
    return await messages.peek(ask.fleet, **of, show=show_in(ask))


@ENDPOINTS.add(
    Role.READ,
    "GET",
    "/log",
    TOPIC,
    ANY_CHANNEL,
    Parameter("from", "place to start at; default: the oldest message"),
    *SHOWN_MANY,
)
async def list_log(ask: ApiRequest) -> MessagePage:
    """A topic's log by time; the last page has a `next`, too, for later messages."""
    of = ask.some("topic", "channel", "after")
    return await messages.log_page(ask.fleet, **of, place=ask["from"], show=show_in(ask))


@ENDPOINTS.add(
    Role.BODIES,
    "GET",
    "/search",
    TOPIC,
    ANY_CHANNEL,
    *SOUGHT,
    Parameter(
        "state",
        "needs `channel`: only messages in this state",
        choices=("", *messages.STATES, "finished"),
    ),
    *SHOWN_MANY,
    Parameter("stream", "send events until everything is searched", "flag", default=False),
    media=("text/event-stream",),
)
async def search(ask: ApiRequest) -> SearchPage:
    """Search for messages: one step, or events until the end."""
    show, after, found = show_in(ask), ask["after"], 0
    names = ("text", "regex", "json", "attempts", "state", "channel")
    sought = SearchCriteria(ask["from"], ask["to"], **ask.some(*names))
    page = await messages.search(ask.fleet, ask["topic"], sought, after=after, show=show)
    if not ask["stream"]:
        return page
    response = await ask.call.stream("text/event-stream", {"Cache-Control": "no-store"})
    while True:
        found += len(page.messages)
        await response.write(_event("step", page))
        if page.next is None or found >= show.limit:
            break
        page = await messages.search(ask.fleet, ask["topic"], sought, after=page.next, show=show)
    await response.write(_event("end", {"next": page.next, "done": page.done}))
    return response  # type: ignore[return-value] # the media type's answer


def _event(name: str, data: Any) -> bytes:
    """Format a server-sent event; the JSON contains no line breaks."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(data))


@ENDPOINTS.add(Role.READ, "GET", "/message", *ONE, ANY_CHANNEL, *SHOWN_ONE)
async def _message(ask: ApiRequest) -> MessagesFound:
    """One message, from each node that has a message with this id."""
    names = ask["topic"], ask["id"], ask["channel"]
    return await messages.find(ask.fleet, *names, show_in(ask))


@ENDPOINTS.add(
    Role.BODIES,
    "GET",
    "/body",
    *ONE,
    Parameter("node", "the node that has it", is_needed=True),
    media=("application/octet-stream",),
)
async def _body(ask: ApiRequest) -> Any:
    """The whole body of a message."""
    # Send the body as a binary file, so that browsers save it instead of showing it.
    body = await messages.whole_body(ask.fleet, ask["topic"], ask["id"], ask["node"])
    return Content(body, "application/octet-stream")


@ENDPOINTS.add(
    Role.READ,
    "GET",
    "/times",
    TOPIC,
    Parameter("channel", "adds this channel's position"),
    Parameter(
        "buckets",
        "number of time intervals",
        "integer",
        default=messages.BUCKETS,
        minimum=1,
        maximum=messages.BUCKETS_MAX,
    ),
    NODES,
)
async def _times(ask: ApiRequest) -> Times:
    """Number of messages by publish time."""
    return await messages.times(ask.fleet, **ask.arguments)


@ENDPOINTS.add(
    Role.READ,
    "GET",
    "/seek",
    TOPIC,
    CHANNEL,
    Parameter("to", "a place, see Replay in docs/http.md", is_needed=True),
    NODES,
)
async def _preview(ask: ApiRequest) -> Preview:
    """Preview of a seek; nothing is moved."""
    return await messages.seek_preview(ask.fleet, **ask.arguments)


@ENDPOINTS.add(
    Role.READ,
    "GET",
    "/dead-letters",
    TOPIC,
    Parameter("from", "place to start at; default: the oldest letter"),
    *SHOWN_MANY,
)
async def _letters(ask: ApiRequest) -> DeadLetterPage:
    """Dead letters of a topic, when each was sent back, and which came back."""
    of = {"place": ask["from"], "after": ask["after"], "show": show_in(ask)}
    return await ask.services.letters.page(ask["topic"], **of)


class ApiSentBack(ApiStruct):
    """How many dead letters were sent back."""

    to: str
    sent: Count
    refused: Errors
    errors: Errors
    more: bool


class ApiSendBack(Struct):
    """Dead letters to send back."""

    topic: str
    channel: Annotated[str, Meta(description="where the letters wait; default: redrive")] = ""
    to: Annotated[
        str, Meta(description="publish copies to this topic instead, for all of its channels")
    ] = ""
    messages: References = []
    all: Annotated[
        bool, Meta(description="send all that were not sent back yet, at most 10,000")
    ] = False


@ENDPOINTS.add(Role.OPERATE, "POST", "/dead-letters", body=ApiSendBack)
async def _send(ask: ApiRequest) -> ApiSentBack:
    """Send dead letters back to their channel: those named, or all that were not sent yet."""
    body: ApiSendBack = ask.body
    topic, to, channel = body.topic, body.to, body.channel or REDRIVE_CHANNEL
    letters = await _unsent(ask.services, topic) if body.all else body.messages
    if not letters and not body.all:
        raise HttpError(400, "INVALID_BODY: set `messages` or `all`")
    action, channel = ("copy_message", "") if to else ("redrive_message", channel)
    try:
        order = ActionRequest(action, topic, channel, messages=letters, to=to)
    except ValueError as error:
        raise HttpError(400, f"INVALID_BODY: {error}") from None
    result = ApiSentBack(to=to, sent=0, refused={}, errors={}, more=False)
    for at in range(0, len(letters), BATCH):
        batch = structs.replace(order, messages=letters[at : at + BATCH])
        report = await actions.perform(ask.services, ask.call.request, batch)
        for one in report.outcomes:
            if one.error:
                result.errors[one.address] = one.error
                continue
            answer = checked(one.answer, SelectionResult)
            result.sent += len(answer.done)
            for each in answer.refused:
                result.refused[f"{one.address}/{each.id}"] = each.why
        result.errors |= report.warnings
    result.more = body.all and result.sent >= ALL_MAX
    return result


async def _unsent(services: Services, topic: str) -> list[str]:
    """The first `ALL_MAX` letters of a topic that have not been sent back."""
    sent = await services.letters.sent(topic)
    show, found = DisplayLimits(messages.LIMIT_MAX, bodies=False), list[str]()
    after: str | None = ""
    while after is not None and len(found) < ALL_MAX:
        page = await messages.log_page(services.fleet, topic, after=after, show=show)
        letters = [f"{message['node']}/{message['id']}" for message in page.messages]
        found += [letter for letter in letters if letter not in sent]
        # The last page of a log has a `next`, too.
        after = page.next if letters else None
    return found[:ALL_MAX]


# Actions


class ApiOutcome(ApiStruct):
    """The outcome of one step at one daemon."""

    address: str
    step: str
    error: str
    answer: Any


class ApiReport(ApiStruct):
    """What an action did."""

    result: Literal["done", "partly", "failed"]
    failed: str
    outcomes: list[ApiOutcome]
    warnings: Errors


class ApiSeek(Struct):
    """A move of a channel."""

    topic: str
    channel: str
    to: str = ""
    nodes: list[str] = []


class ApiDismissed(ApiStruct):
    """A dismissed node."""

    node: str


async def _performed(ask: ApiRequest, order: ActionRequest) -> ApiReport:
    """Perform an order; the answer shows what was done at which daemon."""
    return _report(await actions.perform(ask.services, ask.call.request, order))


def _report(report: Report) -> ApiReport:
    outcomes = [
        ApiOutcome(address=one.address, step=one.step, error=error_of(one), answer=one.answer)
        for one in report.outcomes
    ]
    return ApiReport(
        result=report.result, failed=report.failed, outcomes=outcomes, warnings=report.warnings
    )


@ENDPOINTS.add(Role.FIND, "POST", "/actions", body=ActionRequest, writes=True)
async def _act(ask: ApiRequest) -> ApiReport:
    """Perform an action: pause, empty, delete, publish, requeue messages, close a client, ...."""
    return await _performed(ask, ask.body)


@ENDPOINTS.add(Role.OPERATE, "POST", "/seek", body=ApiSeek, writes=True)
async def _seek(ask: ApiRequest) -> ApiReport:
    """Move a channel to a place in the log."""
    body: ApiSeek = ask.body
    answers = await messages.nodes_of(ask.fleet, body.topic, body.nodes)
    messages.check_place(body.to, len(answers.nodes))
    names = "seek_channel", body.topic, body.channel
    return await _performed(ask, ActionRequest(*names, to=body.to, nodes=body.nodes))


NODE_DRAIN: Final = "/nodes/:node/drain"


@ENDPOINTS.add(Role.READ, "GET", NODE_DRAIN)
async def _drain_shown(ask: ApiRequest) -> DrainProgress:
    """Whether a node is draining, and what is left there."""
    try:
        return await draining.progress(ask.fleet, await ask.fleet.node(ask["node"]))
    except UnknownNode:
        raise HttpError(404, "NODE_NOT_FOUND") from None
    except UpstreamError as error:
        if policies.is_gos(error.reason):
            raise HttpError(501, "NOT_SUPPORTED: the node is NSQ's Go nsqd") from None
        raise HttpError(502, f"UPSTREAM_ERROR: {error}") from None


@ENDPOINTS.add(
    Role.ADMINISTER,
    "POST",
    NODE_DRAIN,
    Parameter("exit", "exit once nothing is left", "flag", default=False),
    writes=True,
)
async def _drain(ask: ApiRequest) -> ApiReport:
    """Drain a node: it refuses publishes."""
    return await _performed(ask, ActionRequest("drain_node", node=ask["node"], exit=ask["exit"]))


@ENDPOINTS.add(Role.ADMINISTER, "DELETE", NODE_DRAIN, writes=True)
async def _undrain(ask: ApiRequest) -> ApiReport:
    """End a drain: the node accepts publishes."""
    return await _performed(ask, ActionRequest("undrain_node", node=ask["node"]))


@ENDPOINTS.add(Role.OPERATE, "POST", "/nodes/:node/dismiss")
async def _dismiss(ask: ApiRequest) -> ApiDismissed:
    """Dismiss a node that is gone."""
    if not ask.services.watch.dismiss(ask["node"]):
        raise HttpError(404, "NODE_NOT_FOUND: only a node that is gone can be dismissed")
    return ApiDismissed(node=ask["node"])


# Policies and the audit log


class ApiPolicies(ApiStruct):
    """By node, policies by source and flags, or the settings of a topic or channel by key."""

    nodes: dict[str, dict[str, Any]]
    errors: Errors
    unable: list[str]
    differ: bool = False


class ApiPolicyDocument(Struct, forbid_unknown_fields=True):
    """Policies: patterns, and settings by key (docs/policies.md)."""

    policies: list[dict[str, str | int | bool]]


class ApiAuditPage(ApiStruct):
    """Entries of the audit log."""

    entries: list[dict[str, Any]]
    next: str | None
    scanned_bytes: Count


CHANGED: Final = (
    Parameter("dry_run", "only report the changes at each nsqd", "flag", default=False),
    Parameter("typed", "the word `policies`, to confirm; not needed with `dry_run`"),
)


@ENDPOINTS.add(
    Role.READ,
    "GET",
    "/policies",
    Parameter("topic", "settings of this topic, which need not exist"),
    Parameter("channel", "needs `topic`: settings of this channel"),
)
async def _show_policies(ask: ApiRequest) -> ApiPolicies:
    """Policies of each nsqd, or the settings of a topic or channel and their sources."""
    topic, channel = ask["topic"], ask["channel"]
    if (topic or channel) and not is_valid_name(topic):
        raise HttpError(400, "INVALID_ARG_TOPIC: not a valid topic name")
    if channel and not is_valid_name(channel):
        raise HttpError(400, "INVALID_ARG_CHANNEL: not a valid channel name")
    found = await policies.query(ask.fleet, topic, channel)
    if not found.nodes:
        if found.unable and not found.errors:
            raise HttpError(501, "NOT_SUPPORTED: all nodes are NSQ's Go nsqds")
        reasons = "; ".join(f"{address}: {why}" for address, why in found.errors.items())
        raise HttpError(502, f"UPSTREAM_ERROR: {reasons or 'no nsqd is known'}")
    differ = not topic and len(policies.groups(found.nodes, *policies.SOURCES)) > 1
    return ApiPolicies(**asdict(found), differ=differ)


@ENDPOINTS.add(Role.ADMINISTER, "PUT", "/policies", *CHANGED, body=ApiPolicyDocument, writes=True)
async def _set_policies(ask: ApiRequest) -> ApiReport:
    """Set the run-time policies of all nsqds, replacing the previous ones."""
    return await _policies(ask, msgspec.json.encode(ask.body))


@ENDPOINTS.add(Role.ADMINISTER, "DELETE", "/policies", *CHANGED, writes=True)
async def _drop_policies(ask: ApiRequest) -> ApiReport:
    """Drop the run-time policies of all nsqds; those of their files stay."""
    return await _policies(ask, None)


async def _policies(ask: ApiRequest, document: bytes | None) -> ApiReport:
    """Set the policies of a document, or drop all; with `dry_run` only report the changes."""
    if ask["dry_run"]:
        try:
            return _report(await policies.send(ask.fleet, document, dry_run=True))
        except policies.DocumentRefused as error:
            raise HttpError(400, f"{policies.REFUSED}: {error}") from None
    action, body = "drop_policies" if document is None else "set_policies", document or b""
    return await _performed(ask, ActionRequest(action, typed=ask["typed"], body=body.decode()))


@ENDPOINTS.add(
    Role.ADMINISTER,
    "GET",
    "/audit",
    Parameter("before", "`next` of the previous answer"),
    LIMIT,
    *(Parameter(name, f"only entries with this {name}") for name in FILTERS),
)
async def _audit(ask: ApiRequest) -> ApiAuditPage:
    """Audit log: users' actions, newest first."""
    filters = {name: value for name, value in ask.some(*FILTERS).items() if value}
    page = await ask.services.audit.page(ask["before"], ask["limit"], filters)
    return ApiAuditPage(**asdict(page))


# Export: a list or messages as CSV or JSON lines, streamed: it needs the memory of one page.
#
# An export has the rows that the same filter shows: figures of one snapshot, or messages page by
# page, at most `ROWS_MAX`. If there are more, or if some nodes could not answer, a last line says
# so.

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
MESSAGES: Final[dict[str, Handler]] = {
    "messages": list_messages,
    "log": list_log,
    "search": search,
}
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
    """Figures or messages as a file."""
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
    """Pages of the endpoint that lists such messages."""
    what = ask["what"]
    if not ask["topic"]:
        raise HttpError(400, "MISSING_ARG_TOPIC")
    if what == "search":
        ask.services.access.require(ask.call.request, Role.BODIES)
    default = "waiting" if what == "messages" else ""
    arguments = {**ask.arguments, "state": ask["message_state"] or default, "stream": False}
    arguments |= {"limit": PAGE_ROWS, "bodies": None, "body_bytes": messages.SHOWN_BYTES_MAX}
    after: str | None = ""
    left = ask["max"]
    # At 0, one more message is looked for: a page may have a `next` without any (a log always has).
    while after is not None and left >= 0:
        page = await MESSAGES[what](replace(ask, arguments={**arguments, "after": after}))
        unable = dict.fromkeys(page.unable, "NSQ's Go nsqd does not show messages")
        yield [_line(message) for message in page.messages[:left]], {**page.errors, **unable}
        left -= len(page.messages)
        is_end = what == "log" and not page.messages
        # No messages and the same token again: the nodes of this page do not answer.
        is_stuck = not page.messages and page.next == after
        if is_end or is_stuck:
            break
        after = page.next
    if left < 0:
        yield [], {"max": f"there are more than {ask['max']:,} messages"}


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
    """Convert a value to a cell that no spreadsheet evaluates (rule 7)."""
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
