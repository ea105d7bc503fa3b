"""Figures in the API: the cluster, its topics, channels, nodes and clients, and the last hour.

1. All figures come from the snapshot that all viewers share (`watch`). A request queries no node,
   except for latencies and clients, which are fetched once for all viewers.
2. Lists are filtered, sorted and paged here. `after` waits for the next snapshot: a client that
   passes the `number` of its last snapshot gets each snapshot once, without polling.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from sparq.cluster.cluster_stats import LATENCY
from sparq.cluster.figures import DELIVERY, STATES
from sparq.cluster.rows import TopicRow
from sparq.daemon.http import Call, HttpError
from sparq.nsqadmin.services import Services
from sparq.nsqadmin.v2.answers import (
    ApiAttention,
    ApiChannelDetail,
    ApiChannelPage,
    ApiClientPage,
    ApiNodeDetail,
    ApiNodePage,
    ApiOverview,
    ApiTopicDetail,
    ApiTopicPage,
    History,
    plain,
)
from sparq.nsqadmin.v2.endpoints import ApiEndpoints, Arguments, Parameter
from sparq.nsqadmin.watch import paging
from sparq.nsqadmin.watch.history import Subject
from sparq.nsqadmin.watch.snapshot import ClusterSnapshot

WAIT_SECONDS: Final = 25.0
"""How long `after` waits; then the current snapshot is sent, which still has the same number."""

SHOWN: Final = 10
NUMBER_MAX: Final = 1 << 53

AFTER: Final = Parameter(
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
    default=paging.LIMIT,
    minimum=1,
    maximum=paging.LIMIT_MAX,
)
FILTER: Final = Parameter("filter", "only names that contain this text, ignoring case")
STATE: Final = Parameter("state", "only channels in this state", choices=("", *STATES))
PAGED: Final = (FILTER, OFFSET, LIMIT, AFTER)


ENDPOINTS: Final = ApiEndpoints()


def _sort(default: str) -> Parameter:
    """The parameter for the sort order of rows."""
    words = "a figure of the rows, or `name`; with a leading `-`, largest first"
    return Parameter("sort", words, default=default)


async def _snapshot(services: Services, arguments: Arguments) -> ClusterSnapshot:
    """The current snapshot, or with `after` the next one."""
    after = arguments.get("after")
    if after is None:
        return await services.watch.current()
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            return await services.watch.changed(after)
    except TimeoutError:
        return await services.watch.current()


def _stamp(snapshot: ClusterSnapshot) -> dict[str, Any]:
    return {"number": snapshot.number, "time": snapshot.time}


def _page(
    snapshot: ClusterSnapshot, rows: Sequence[Any], asked: Arguments, **of: Any
) -> dict[str, Any]:
    """Get a page of rows as JSON values; `of` selects them (`paging.in_order`)."""
    wanted = {name: asked[name] for name in ("sort", "filter", "offset", "limit")}
    try:
        page = paging.page(rows, **wanted, **of)
    except ValueError as error:
        raise HttpError(400, f"INVALID_ARG_SORT: {error}") from None
    return {**plain(page), **_stamp(snapshot)}


@ENDPOINTS.add(
    "GET",
    "/overview",
    "the cluster in one answer: totals, notices, largest topics and channels",
    ApiOverview,
    AFTER,
)
async def _overview(services: Services, _call: Call, arguments: Arguments) -> Any:
    snapshot = await _snapshot(services, arguments)
    return {
        **_stamp(snapshot),
        "totals": plain(snapshot.totals),
        "notices": plain(snapshot.notices),
        "lookupds": plain(snapshot.lookupds),
        "errors": snapshot.errors,
        "deepest": plain(paging.page(snapshot.channels, sort="-depth", limit=SHOWN).rows),
        "slowest": plain(paging.page(snapshot.channels, sort="-lag_seconds", limit=SHOWN).rows),
        "busiest": plain(paging.page(snapshot.topics, sort="-in_rate", limit=SHOWN).rows),
        "has_go": snapshot.has_go,
    }


@ENDPOINTS.add("GET", "/attention", "notices about what needs attention", ApiAttention, AFTER)
async def _attention(services: Services, _call: Call, arguments: Arguments) -> Any:
    snapshot = await _snapshot(services, arguments)
    return {**_stamp(snapshot), "notices": plain(snapshot.notices)}


@ENDPOINTS.add(
    "GET",
    "/history",
    "figures of the last hour: of the cluster, a topic, a channel or a node",
    History,
    Parameter("topic", "for this topic"),
    Parameter("channel", "for this channel of `topic`"),
    Parameter("node", "for this node; default: the whole cluster"),
)
async def _history(services: Services, _call: Call, arguments: Arguments) -> Any:
    of: Subject = "cluster"
    if arguments["topic"] and arguments["channel"]:
        of = ("channel", arguments["topic"], arguments["channel"])
    elif arguments["topic"]:
        of = ("topic", arguments["topic"])
    elif arguments["node"]:
        of = ("node", arguments["node"])
    return services.watch.history.series(of).document()


@ENDPOINTS.add("GET", "/topics", "topics", ApiTopicPage, _sort("name"), *PAGED)
async def _topics(services: Services, _call: Call, arguments: Arguments) -> Any:
    snapshot = await _snapshot(services, arguments)
    return _page(snapshot, snapshot.topics, arguments)


@ENDPOINTS.add(
    "GET",
    "/channels",
    "channels",
    ApiChannelPage,
    Parameter("topic", "only channels of this topic"),
    STATE,
    _sort("name"),
    *PAGED,
)
async def _channels(services: Services, _call: Call, arguments: Arguments) -> Any:
    snapshot = await _snapshot(services, arguments)
    of = {"topic": arguments["topic"], "state": arguments["state"]}
    return _page(snapshot, snapshot.channels, arguments, **of)


@ENDPOINTS.add("GET", "/nodes", "nodes", ApiNodePage, _sort("hostname"), *PAGED)
async def _nodes(services: Services, _call: Call, arguments: Arguments) -> Any:
    snapshot = await _snapshot(services, arguments)
    return _page(snapshot, snapshot.nodes, arguments)


@ENDPOINTS.add(
    "GET",
    "/clients",
    "consumers, grouped by host and user agent",
    ApiClientPage,
    Parameter("topic", "only consumers of this topic"),
    Parameter("channel", "only consumers of this channel; needs `topic`"),
    _sort("-connections"),
    *PAGED,
)
async def _clients(services: Services, _call: Call, arguments: Arguments) -> Any:
    snapshot = await _snapshot(services, arguments)
    if arguments["topic"]:
        found = (await services.watch.detail(arguments["topic"], arguments["channel"])).clients
    else:
        found = await services.watch.clients()
    return _page(snapshot, found, arguments)


@ENDPOINTS.add("GET", "/topics/:topic", "one topic", ApiTopicDetail, AFTER)
async def _topic(services: Services, _call: Call, arguments: Arguments) -> Any:
    snapshot = await _snapshot(services, arguments)
    name = arguments["topic"]
    topic = snapshot.topics.find(name)
    if topic is None:
        raise HttpError(404, "TOPIC_NOT_FOUND")
    detail = await services.watch.detail(name)
    channels = paging.page(snapshot.channels, topic=name, limit=paging.LIMIT_MAX)
    return {
        **_stamp(snapshot),
        "topic": plain(topic),
        "nodes": [
            {"node": node.address, "state": node.state, "topic": plain(part)}
            for node, part in snapshot.topic_nodes(name)
        ],
        "channels": plain(channels.rows),
        "latency": detail.topic[LATENCY],
        "errors": detail.errors,
    }


@ENDPOINTS.add(
    "GET", "/topics/:topic/:channel", "one channel with its consumers", ApiChannelDetail, AFTER
)
async def _channel(services: Services, _call: Call, arguments: Arguments) -> Any:
    snapshot = await _snapshot(services, arguments)
    names = arguments["topic"], arguments["channel"]
    channel = snapshot.channels.find(*names)
    if channel is None:
        is_known = snapshot.topics.find(names[0]) is not None
        raise HttpError(404, "CHANNEL_NOT_FOUND" if is_known else "TOPIC_NOT_FOUND")
    detail = await services.watch.detail(*names)
    stats = detail.channel or {}
    return {
        **_stamp(snapshot),
        "channel": plain(channel),
        "nodes": [
            {"node": node.address, "state": node.state, "channel": plain(part)}
            for node, part in snapshot.channel_nodes(*names)
        ],
        "clients": plain(detail.clients),
        "delivery": {name: stats.get(name, 0) for name in DELIVERY},
        "latency": stats.get(LATENCY),
        "errors": detail.errors,
    }


@ENDPOINTS.add("GET", "/nodes/:node", "one node", ApiNodeDetail, _sort("name"), *PAGED)
async def _node(services: Services, _call: Call, arguments: Arguments) -> Any:
    snapshot = await _snapshot(services, arguments)
    node = snapshot.node(arguments["node"])
    if node is None:
        raise HttpError(404, "NODE_NOT_FOUND")
    topics, channels = snapshot.at_node(node.address)
    # If only channels have the figure to sort by, topics are sorted by name.
    names = {paging.BY_NAME, *TopicRow.__dataclass_fields__}
    is_of_topics = arguments["sort"].removeprefix("-") in names
    of_topics = arguments if is_of_topics else {**arguments, "sort": paging.BY_NAME}
    return {
        **_stamp(snapshot),
        "node": plain(node),
        "topics": _page(snapshot, topics, of_topics),
        "channels": _page(snapshot, channels, arguments),
    }
