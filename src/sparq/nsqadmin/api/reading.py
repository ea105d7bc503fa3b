"""NSQ's API, what it shows: topics, channels, nodes, the counter, rates of graphite.

Shapes are NSQ's: an empty list is null, a failure of some daemons is a warning in `message`. Other
than there, an unknown channel is 404 CHANNEL_NOT_FOUND, and a client stands in one list, not two.
"""

from __future__ import annotations

import time
from typing import Any

from aiohttp import web

from sparq.cluster import figures
from sparq.cluster.fleet import Fleet
from sparq.daemon.http import Call, HttpError, Route
from sparq.nsqadmin.api.answers import needed, warning
from sparq.nsqadmin.desk import Desk
from sparq.nsqadmin.graphite import Graphite
from sparq.protocol.durations import SECOND


class Reading:
    """The handlers."""

    def __init__(self, desk: Desk) -> None:
        self._fleet: Fleet = desk.fleet
        options = desk.options
        self._interval_seconds = options.statsd_interval_ns // SECOND
        self._is_proxy = options.proxy_graphite
        connect = options.http_client_connect_timeout_ns / SECOND
        self._graphite = Graphite(options.graphite_url, connect) if options.graphite_url else None

    def routes(self) -> list[Route]:
        """The table of endpoints."""
        table = [
            Route("GET", "/api/topics", self.topics),
            Route("GET", "/api/topics/:topic", self.topic),
            Route("GET", "/api/topics/:topic/:channel", self.channel),
            Route("GET", "/api/nodes", self.nodes),
            Route("GET", "/api/nodes/:node", self.node),
            Route("GET", "/api/counter", self.counter),
            Route("GET", "/api/graphite", self.graphite),
        ]
        if self._is_proxy and self._graphite is not None:
            table.append(Route("GET", "/render", self.render))
        return table

    async def topics(self, call: Call) -> dict[str, Any]:
        """The names; with `inactive=true` those that no node has, with their channels."""
        if call.query.get("inactive") == "true":
            idle = await self._fleet.without_producers()
            said = needed(idle)
            named = {topic: channels or None for topic, channels in idle.value.items()}
            return {"topics": named, "message": warning([said])}
        names = await self._fleet.topics()
        said = needed(names)
        return {"topics": names.value or None, "message": warning([said])}

    async def topic(self, call: Call) -> dict[str, Any]:
        """A topic over all its nodes."""
        topic = call.parameters["topic"]
        producers = await self._fleet.producers(topic)
        said = [needed(producers)]
        stats = await self._fleet.stats(topic, nodes=producers.value)
        said.append(needed(stats))
        found = figures.topic_of(topic, producers.value, stats.value, time.time())
        return {**found.document(), "message": warning(said)}

    async def channel(self, call: Call) -> dict[str, Any]:
        """A channel over all its nodes, with its clients."""
        topic, channel = call.parameters["topic"], call.parameters["channel"]
        producers = await self._fleet.producers(topic)
        said = [needed(producers)]
        stats = await self._fleet.stats(topic, channel, clients=True, nodes=producers.value)
        said.append(needed(stats))
        found = figures.channel_of(topic, channel, producers.value, stats.value, time.time())
        if found is None:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        return {**found.document(), "message": warning(said)}

    async def nodes(self, _call: Call) -> dict[str, Any]:
        """All nodes."""
        found = await self._fleet.nodes()
        said = needed(found)
        listed = [node.document() for node in found.value]
        return {"nodes": listed or None, "message": warning([said])}

    async def node(self, call: Call) -> dict[str, Any]:
        """All that a node has."""
        address = call.parameters["node"]
        found = await self._fleet.nodes()
        said = needed(found)
        nodes = [node for node in found.value if node.address == address]
        if not nodes:
            raise HttpError(404, "NODE_NOT_FOUND")
        stats = await self._fleet.stats(clients=True, nodes=nodes)
        needed(stats)
        topics = figures.topics_at(nodes[0], stats.value[address], time.time())
        channels = [channel for topic in topics for channel in topic.channels]
        return {
            "node": address,
            "topics": [topic.document() for topic in topics] or None,
            "total_messages": sum(topic.counts["message_count"] for topic in topics),
            "total_clients": sum(len(channel.clients or ()) for channel in channels),
            "message": warning([said]),
        }

    async def counter(self, _call: Call) -> dict[str, Any]:
        """How many messages came to each channel at each node."""
        nodes = await self._fleet.nodes()
        said = [needed(nodes)]
        stats = await self._fleet.stats(nodes=nodes.value)
        said.append(needed(stats))
        counted = {}
        for address, document in stats.value.items():
            for topic in document["topics"]:
                for channel in topic["channels"]:
                    names = topic["topic_name"], channel["channel_name"]
                    counted[":".join((*names, address))] = {
                        "node": address,
                        "topic_name": names[0],
                        "channel_name": names[1],
                        "message_count": figures.number(channel, "message_count"),
                    }
        return {"stats": counted, "message": warning(said)}

    async def graphite(self, call: Call) -> dict[str, str]:
        """A rate that graphite knows."""
        if call.query.get("metric") != "rate":
            raise HttpError(400, "INVALID_ARG_METRIC")
        target = call.query.get("target")
        if target is None:
            raise HttpError(400, "INVALID_ARG_TARGET")
        if self._graphite is None:
            raise HttpError(500, "INTERNAL_ERROR")
        return {"rate": await self._graphite.rate(target, self._interval_seconds)}

    async def render(self, call: Call) -> web.Response:
        """An image of graphite's."""
        assert self._graphite is not None
        return await self._graphite.render(call.raw_query)
