"""Figures in the API: the cluster, its topics, channels, nodes and clients, and the last hour.

1. All figures come from the picture that all viewers share (`watch`). A request queries no node,
   except for latencies and clients, which are fetched once for all viewers.
2. Lists are filtered, sorted and paged here. `after` waits for the next picture: a client that
   passes the `number` of its last picture gets each picture once, without polling.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from sparq.cluster import figures
from sparq.daemon.http import Call, HttpError
from sparq.nsqadmin.desk import Desk
from sparq.nsqadmin.v2.schemas import plain
from sparq.nsqadmin.v2.table import Arguments, Endpoints, Parameter
from sparq.nsqadmin.watch import paging
from sparq.nsqadmin.watch.history import Subject
from sparq.nsqadmin.watch.merge import STATES
from sparq.nsqadmin.watch.picture import Picture

WAIT_SECONDS: Final = 25.0
"""How long `after` waits; then the current picture is sent, which still has the same number."""

SHOWN: Final = 10
NUMBER_MAX: Final = 1 << 53

AFTER: Final = Parameter(
    "after",
    "wait up to 25 seconds for a picture with a larger number",
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
    default=paging.LIMIT,
    minimum=1,
    maximum=paging.LIMIT_MAX,
)
FILTER: Final = Parameter("filter", "only names that contain this text, ignoring case")
STATE: Final = Parameter("state", "only channels in this state", choices=("", *STATES))
PAGED: Final = (FILTER, OFFSET, LIMIT, AFTER)


ENDPOINTS: Final = Endpoints()


def _sort(default: str) -> Parameter:
    """The parameter for the sort order of rows."""
    words = "a figure of the rows, or `name`; with a leading `-`, largest first"
    return Parameter("sort", words, default=default)


async def _picture(desk: Desk, asked: Arguments) -> Picture:
    """The current picture, or with `after` the next one."""
    after = asked.get("after")
    if after is None:
        return await desk.watch.look()
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            return await desk.watch.changed(after)
    except TimeoutError:
        return await desk.watch.look()


def _stamp(picture: Picture) -> dict[str, Any]:
    return {"number": picture.number, "time": picture.time}


def _page(
    picture: Picture, fetch: Callable[..., paging.Page[Any]], asked: Arguments
) -> dict[str, Any]:
    """Get a page of rows from `fetch` (`paging`), and convert it to JSON values."""
    wanted = {name: asked[name] for name in ("sort", "filter", "offset", "limit")}
    try:
        page = fetch(**wanted)
    except ValueError as error:
        raise HttpError(400, f"INVALID_ARG_SORT: {error}") from None
    return {**plain(page), **_stamp(picture)}


@ENDPOINTS.add(
    "GET",
    "/overview",
    "the cluster in one answer: totals, notices, largest topics and channels",
    "Overview",
    AFTER,
)
async def _overview(desk: Desk, _call: Call, asked: Arguments) -> Any:
    picture = await _picture(desk, asked)
    return {
        **_stamp(picture),
        "totals": plain(picture.totals),
        "notices": plain(picture.notices),
        "lookupds": plain(picture.lookupds),
        "errors": picture.errors,
        "deepest": plain(paging.page(picture.channels, sort="-depth", limit=SHOWN).rows),
        "slowest": plain(paging.page(picture.channels, sort="-lag_seconds", limit=SHOWN).rows),
        "busiest": plain(paging.page(picture.topics, sort="-in_rate", limit=SHOWN).rows),
        "has_go": picture.has_go,
    }


@ENDPOINTS.add("GET", "/attention", "notices about what needs attention", "Attention", AFTER)
async def _attention(desk: Desk, _call: Call, asked: Arguments) -> Any:
    picture = await _picture(desk, asked)
    return {**_stamp(picture), "notices": plain(picture.notices)}


@ENDPOINTS.add(
    "GET",
    "/history",
    "figures of the last hour: of the cluster, a topic, a channel or a node",
    "History",
    Parameter("topic", "for this topic"),
    Parameter("channel", "for this channel of `topic`"),
    Parameter("node", "for this node; default: the whole cluster"),
)
async def _history(desk: Desk, _call: Call, asked: Arguments) -> Any:
    of: Subject = "cluster"
    if asked["topic"] and asked["channel"]:
        of = ("channel", asked["topic"], asked["channel"])
    elif asked["topic"]:
        of = ("topic", asked["topic"])
    elif asked["node"]:
        of = ("node", asked["node"])
    return desk.watch.history.series(of).document()


@ENDPOINTS.add("GET", "/topics", "topics", "TopicPage", _sort("name"), *PAGED)
async def _topics(desk: Desk, _call: Call, asked: Arguments) -> Any:
    picture = await _picture(desk, asked)
    return _page(picture, partial(paging.page, picture.topics), asked)


@ENDPOINTS.add(
    "GET",
    "/channels",
    "channels",
    "ChannelPage",
    Parameter("topic", "only channels of this topic"),
    STATE,
    _sort("name"),
    *PAGED,
)
async def _channels(desk: Desk, _call: Call, asked: Arguments) -> Any:
    picture = await _picture(desk, asked)
    of = {"topic": asked["topic"], "state": asked["state"]}
    return _page(picture, partial(paging.page, picture.channels, **of), asked)


@ENDPOINTS.add("GET", "/nodes", "nodes", "NodePage", _sort("hostname"), *PAGED)
async def _nodes(desk: Desk, _call: Call, asked: Arguments) -> Any:
    picture = await _picture(desk, asked)
    return _page(picture, partial(paging.page_of_nodes, picture.nodes), asked)


@ENDPOINTS.add(
    "GET",
    "/clients",
    "consumers, grouped by host and user agent",
    "ClientPage",
    Parameter("topic", "only consumers of this topic"),
    Parameter("channel", "only consumers of this channel; needs `topic`"),
    _sort("-connections"),
    *PAGED,
)
async def _clients(desk: Desk, _call: Call, asked: Arguments) -> Any:
    picture = await _picture(desk, asked)
    if asked["topic"]:
        found = (await desk.watch.detail(asked["topic"], asked["channel"])).clients
    else:
        found = await desk.watch.clients()
    return _page(picture, partial(paging.page_of_clients, found), asked)


@ENDPOINTS.add("GET", "/topics/:topic", "one topic", "TopicDetail", AFTER)
async def _topic(desk: Desk, _call: Call, asked: Arguments) -> Any:
    picture = await _picture(desk, asked)
    name = asked["topic"]
    topic = picture.topics.find(name)
    if topic is None:
        raise HttpError(404, "TOPIC_NOT_FOUND")
    detail = await desk.watch.detail(name)
    channels = paging.page(picture.channels, topic=name, limit=paging.LIMIT_MAX)
    return {
        **_stamp(picture),
        "topic": plain(topic),
        "nodes": [
            {"node": node.address, "state": node.state, "topic": plain(part)}
            for node, part in picture.topic_nodes(name)
        ],
        "channels": plain(channels.rows),
        "latency": detail.topic.latency.document(),
        "errors": detail.errors,
    }


@ENDPOINTS.add(
    "GET", "/topics/:topic/:channel", "one channel with its consumers", "ChannelDetail", AFTER
)
async def _channel(desk: Desk, _call: Call, asked: Arguments) -> Any:
    picture = await _picture(desk, asked)
    names = asked["topic"], asked["channel"]
    channel = picture.channels.find(*names)
    if channel is None:
        is_known = picture.topics.find(names[0]) is not None
        raise HttpError(404, "CHANNEL_NOT_FOUND" if is_known else "TOPIC_NOT_FOUND")
    detail = await desk.watch.detail(*names)
    counts = {} if detail.channel is None else detail.channel.counts
    return {
        **_stamp(picture),
        "channel": plain(channel),
        "nodes": [
            {"node": node.address, "state": node.state, "channel": plain(part)}
            for node, part in picture.channel_nodes(*names)
        ],
        "clients": plain(detail.clients),
        "delivery": {name: counts.get(name, 0) for name in figures.DELIVERY},
        "latency": None if detail.channel is None else detail.channel.latency.document(),
        "errors": detail.errors,
    }


@ENDPOINTS.add("GET", "/nodes/:node", "one node", "NodeDetail", _sort("name"), *PAGED)
async def _node(desk: Desk, _call: Call, asked: Arguments) -> Any:
    picture = await _picture(desk, asked)
    node = picture.node(asked["node"])
    if node is None:
        raise HttpError(404, "NODE_NOT_FOUND")
    topics, channels = picture.at_node(node.address)
    # If only channels have the figure to sort by, topics are sorted by name.
    is_of_topics = asked["sort"].removeprefix("-") in (paging.BY_NAME, *topics.columns)
    of_topics = asked if is_of_topics else {**asked, "sort": paging.BY_NAME}
    return {
        **_stamp(picture),
        "node": plain(node),
        "topics": _page(picture, partial(paging.page, topics), of_topics),
        "channels": _page(picture, partial(paging.page, channels), asked),
    }
