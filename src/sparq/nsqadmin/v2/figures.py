"""Figures over the API: the cluster, its topics, channels, nodes and clients, the last hour.

1. All comes from the picture that is there for all viewers (`watch`); a request asks no node, but
   for latencies and clients, which are fetched once for all.
2. Lists are filtered, sorted and paged here. `after` waits for the next picture: a client that
   passes the `number` that it has gets each picture once, without polling.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from sparq.cluster import figures
from sparq.daemon.http import Call, HttpError
from sparq.nsqadmin.desk import Desk
from sparq.nsqadmin.v2.schemas import plain
from sparq.nsqadmin.v2.table import Arguments, Endpoint, Parameter
from sparq.nsqadmin.watch import paging
from sparq.nsqadmin.watch.history import Subject
from sparq.nsqadmin.watch.merge import STATES
from sparq.nsqadmin.watch.picture import Picture
from sparq.nsqadmin.watch.rows import Channel
from sparq.nsqadmin.watch.table import Table

WAIT_SECONDS: Final = 25.0
"""For how long `after` waits; then the picture that there is is sent, which has the same number."""

SHOWN: Final = 10
NUMBER_MAX: Final = 1 << 53

AFTER: Final = Parameter(
    "after",
    "wait for a picture with a larger number, for 25 seconds at most",
    "integer",
    default=None,
    maximum=NUMBER_MAX,
)
OFFSET: Final = Parameter("offset", "rows to leave out", "integer", default=0, maximum=NUMBER_MAX)
LIMIT: Final = Parameter(
    "limit", "rows", "integer", default=paging.LIMIT, minimum=1, maximum=paging.LIMIT_MAX
)
FILTER: Final = Parameter("filter", "only names with this text, in any case")
STATE: Final = Parameter("state", "only channels in this state", choices=("", *STATES))
PAGED: Final = (FILTER, OFFSET, LIMIT, AFTER)


def sort(default: str) -> Parameter:
    """The parameter that says by what rows are sorted."""
    words = "a figure of the rows, or `name`; with `-` before it the largest first"
    return Parameter("sort", words, default=default)


@dataclass(frozen=True, slots=True)
class Figures:
    """The handlers."""

    desk: Desk

    def endpoints(self) -> list[Endpoint]:
        """The routes."""
        return [*self._whole(), *self._lists(), *self._single()]

    def _whole(self) -> list[Endpoint]:
        words = "the cluster in one answer: totals, notices, what is largest"
        of = (
            Parameter("topic", "of a topic, or with `channel` of a channel"),
            Parameter("channel", "of this channel"),
            Parameter("node", "of this node; without all of them: of the cluster"),
        )
        notices = "what needs attention, in words"
        return [
            Endpoint("GET", "/overview", words, "Overview", self.overview, (AFTER,)),
            Endpoint("GET", "/attention", notices, "Attention", self.attention, (AFTER,)),
            Endpoint("GET", "/history", "the last hour of something", "History", self.history, of),
        ]

    def _lists(self) -> list[Endpoint]:
        of_topic = Parameter("topic", "only channels of this topic")
        paged = (sort("name"), *PAGED)
        hosts = (sort("hostname"), *PAGED)
        folded = (
            Parameter("topic", "only consumers of this topic"),
            Parameter("channel", "only consumers of this channel; `topic` has to be given"),
            sort("-connections"),
            *PAGED,
        )
        words = "consumers, folded by host and user agent"
        asked = (of_topic, STATE, *paged)
        return [
            Endpoint("GET", "/topics", "topics", "TopicPage", self.topics, paged),
            Endpoint("GET", "/channels", "channels", "ChannelPage", self.channels, asked),
            Endpoint("GET", "/nodes", "nodes", "NodePage", self.nodes, hosts),
            Endpoint("GET", "/clients", words, "ClientPage", self.clients, folded),
        ]

    def _single(self) -> list[Endpoint]:
        path, words = "/topics/:topic/:channel", "one channel with its consumers"
        paged = (sort("name"), *PAGED)
        return [
            Endpoint("GET", "/topics/:topic", "one topic", "TopicDetail", self.topic, (AFTER,)),
            Endpoint("GET", path, words, "ChannelDetail", self.channel, (AFTER,)),
            Endpoint("GET", "/nodes/:node", "one node", "NodeDetail", self.node, paged),
        ]

    async def picture(self, asked: Arguments) -> Picture:
        """The picture now, or the next one after the one that the client has."""
        after = asked.get("after")
        watch = self.desk.watch
        if after is None:
            return await watch.look()
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                return await watch.changed(after)
        except TimeoutError:
            return await watch.look()

    async def overview(self, _call: Call, asked: Arguments) -> Any:
        """`GET /overview`."""
        picture = await self.picture(asked)
        deepest = paging.page(picture.channels, sort="-depth", limit=SHOWN)
        slowest = paging.page(picture.channels, sort="-lag_seconds", limit=SHOWN)
        busiest = paging.page(picture.topics, sort="-in_rate", limit=SHOWN)
        return {
            **_stamp(picture),
            "totals": plain(picture.totals),
            "notices": plain(picture.notices),
            "lookupds": plain(picture.lookupds),
            "errors": picture.errors,
            "deepest": plain(deepest.rows),
            "slowest": plain(slowest.rows),
            "busiest": plain(busiest.rows),
            "has_go": picture.has_go,
        }

    async def topics(self, _call: Call, asked: Arguments) -> Any:
        """`GET /topics`."""
        picture = await self.picture(asked)
        return _shown(picture, _page(picture.topics, asked))

    async def channels(self, _call: Call, asked: Arguments) -> Any:
        """`GET /channels`."""
        picture = await self.picture(asked)
        page = _page(picture.channels, asked, topic=asked["topic"], state=asked["state"])
        return _shown(picture, page)

    async def topic(self, _call: Call, asked: Arguments) -> Any:
        """`GET /topics/:topic`."""
        picture = await self.picture(asked)
        topic = picture.topic(asked["topic"])
        if topic is None:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        detail = await self.desk.watch.detail(topic.topic)
        return {
            **_stamp(picture),
            "topic": plain(topic),
            "nodes": [
                {"node": node.address, "state": node.state, "topic": plain(part)}
                for node, part in picture.topic_nodes(topic.topic)
            ],
            "channels": plain(_all(picture.channels, topic.topic)),
            "latency": detail.topic.latency.document(),
            "errors": detail.errors,
        }

    async def channel(self, _call: Call, asked: Arguments) -> Any:
        """`GET /topics/:topic/:channel`."""
        picture = await self.picture(asked)
        channel = picture.channel(asked["topic"], asked["channel"])
        if channel is None:
            is_known = picture.topic(asked["topic"]) is not None
            raise HttpError(404, "CHANNEL_NOT_FOUND" if is_known else "TOPIC_NOT_FOUND")
        detail = await self.desk.watch.detail(channel.topic, channel.channel)
        counts = {} if detail.channel is None else detail.channel.counts
        return {
            **_stamp(picture),
            "channel": plain(channel),
            "nodes": [
                {"node": node.address, "state": node.state, "channel": plain(part)}
                for node, part in picture.channel_nodes(channel.topic, channel.channel)
            ],
            "clients": plain(detail.clients),
            "delivery": {name: counts.get(name, 0) for name in figures.DELIVERY},
            "latency": None if detail.channel is None else detail.channel.latency.document(),
            "errors": detail.errors,
        }

    async def nodes(self, _call: Call, asked: Arguments) -> Any:
        """`GET /nodes`."""
        picture = await self.picture(asked)
        try:
            page = paging.page_of_nodes(picture.nodes, **_paged(asked))
        except ValueError as error:
            raise HttpError(400, f"INVALID_ARG_SORT: {error}") from None
        return _shown(picture, page)

    async def node(self, _call: Call, asked: Arguments) -> Any:
        """`GET /nodes/:node`."""
        picture = await self.picture(asked)
        node = picture.node(asked["node"])
        if node is None:
            raise HttpError(404, "NODE_NOT_FOUND")
        topics, channels = picture.at_node(node.address)
        by_name = {**asked, "sort": "name"}  # a figure may be one of channels only
        return {
            **_stamp(picture),
            "node": plain(node),
            "topics": _shown(
                picture, _page(topics, asked if _has(topics, asked["sort"]) else by_name)
            ),
            "channels": _shown(picture, _page(channels, asked)),
        }

    async def attention(self, _call: Call, asked: Arguments) -> Any:
        """`GET /attention`."""
        picture = await self.picture(asked)
        return {**_stamp(picture), "notices": plain(picture.notices)}

    async def history(self, _call: Call, asked: Arguments) -> Any:
        """`GET /history`."""
        of: Subject = "cluster"
        if asked["topic"] and asked["channel"]:
            of = ("channel", asked["topic"], asked["channel"])
        elif asked["topic"]:
            of = ("topic", asked["topic"])
        elif asked["node"]:
            of = ("node", asked["node"])
        return self.desk.watch.history.series(of).document()

    async def clients(self, _call: Call, asked: Arguments) -> Any:
        """`GET /clients`."""
        picture = await self.picture(asked)
        watch = self.desk.watch
        if asked["topic"]:
            found = (await watch.detail(asked["topic"], asked["channel"])).clients
        else:
            found = (await watch.clients()).clients
        try:
            return _shown(picture, paging.page_of_clients(found, **_paged(asked)))
        except ValueError as error:
            raise HttpError(400, f"INVALID_ARG_SORT: {error}") from None


def _stamp(picture: Picture) -> dict[str, Any]:
    return {"number": picture.number, "time": picture.time}


def _paged(asked: Arguments) -> dict[str, Any]:
    return {name: asked[name] for name in ("sort", "filter", "offset", "limit")}


def _page(
    table: Table[Any], asked: Arguments, topic: str = "", state: str = ""
) -> paging.Page[Any]:
    try:
        return paging.page(table, **_paged(asked), topic=topic, state=state)
    except ValueError as error:
        raise HttpError(400, f"INVALID_ARG_SORT: {error}") from None


def _has(table: Table[Any], sort: str) -> bool:
    return sort.removeprefix("-") in (paging.BY_NAME, *table.columns)


def _shown(picture: Picture, page: paging.Page[Any]) -> dict[str, Any]:
    return {
        "rows": plain(page.rows),
        "total": page.total,
        "offset": page.offset,
        "limit": page.limit,
        **_stamp(picture),
    }


def _all(table: Table[Channel], topic: str) -> list[Channel]:
    """A topic's channels, as far as a page may have them."""
    return list(paging.page(table, topic=topic, limit=paging.LIMIT_MAX).rows)
