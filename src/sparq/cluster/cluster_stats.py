"""Aggregates `/stats` of several nodes, in the JSON shapes of NSQ's nsqadmin.

1. Counts are summed; `memory_depth` is `depth` minus `backend_depth`; an aggregate is paused if it
   is paused at any node. Its node is `*`, and the nodes' own entries are in `nodes`.
2. Latencies: counts are summed, the maximum is that of the maxima, the minimum that of the minima,
   the average is weighted by count.
3. Clients are listed once, in the aggregate; the entries in `nodes` have none.
4. An empty list is null in an aggregate; an empty list that a node reported stays empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import msgspec

from sparq.cluster.figures import (
    DELIVERY,
    ChannelFigures,
    Client,
    LatencyFigures,
    NsqdFigures,
    TopicFigures,
)
from sparq.cluster.nodes import Node
from sparq.protocol import go_json

ALL: Final = "*"
INT64_SPAN: Final = 1 << 63
NANOSECONDS: Final = 1_000_000_000
TOPIC_SUMS: Final = ("depth", "backend_depth", "message_count", *DELIVERY)
CHANNEL_SUMS: Final = (
    *TOPIC_SUMS,
    *("in_flight_count", "deferred_count", "requeue_count", "timeout_count", "client_count"),
)
PLACES: Final = ("topology_region", "topology_zone")
# The members of nsqadmin's JSON objects, in NSQ's order.
_COUNTS: Final = (
    *("node", "hostname", "topic_name", "channel_name", "depth", "memory_depth", "backend_depth"),
)
_TOPIC_ORDER: Final = (
    *(*_COUNTS, "message_count", "delivery_msg_count", *DELIVERY),
    *("nodes", "channels", "paused", "e2e_processing_latency"),
)
_CHANNEL_ORDER: Final = (
    *(*_COUNTS, "in_flight_count", "deferred_count", "requeue_count", "timeout_count"),
    *("message_count", "delivery_msg_count", *DELIVERY, "client_count"),
    *("nodes", "clients", "paused", "e2e_processing_latency"),
)
_CLIENT_ORDER: Final = (
    *("node", "remote_address", "version", "client_id", "hostname", "user_agent", "connect_ts"),
    *("connected", "in_flight_count", "ready_count", "finish_count", "requeue_count"),
    *("message_count", "sample_rate", "deflate", "snappy", "authed", "auth_identity"),
    *("auth_identity_url", "node_topology_region", "node_topology_zone", "topology_region"),
    *("topology_zone", "tls", "tls_cipher_suite", "tls_version", "tls_negotiated_protocol"),
    "tls_negotiated_protocol_is_mutual",
)


@dataclass(slots=True)
class E2eLatency:
    """Time from publish to FIN, in ns, by quantile."""

    count: int = 0
    percentiles: list[dict[str, float]] = field(default_factory=list)
    topic: str = ""
    channel: str = ""
    host: str = ""

    def add(self, other: E2eLatency) -> None:
        """Merge another node's latency."""
        self.host = ALL
        self.count += other.count
        by_quantile = {one["quantile"]: one for one in self.percentiles}
        for theirs in other.percentiles:
            ours = by_quantile.get(theirs["quantile"])
            if ours is None:
                names = ("quantile", "max", "min", "average", "count")
                ours = {name: theirs[name] for name in names}
                by_quantile[theirs["quantile"]] = ours
                self.percentiles.append(ours)
                continue
            ours["max"] = max(ours["max"], theirs["max"])
            ours["min"] = min(ours["min"], theirs["min"])
            ours["count"] += theirs["count"]
            share = theirs["count"] / ours["count"] if ours["count"] else 0.0
            ours["average"] += (theirs["average"] - ours["average"]) * share

    def document(self) -> dict[str, Any]:
        """The JSON object in NSQ's shape."""
        # In NSQ a percentile is a map of float64, which Go's encoder sorts.
        sorted_ones = [
            {name: go_json.number(one[name]) for name in sorted(one)} for one in self.percentiles
        ]
        return {**asdict(self), "percentiles": sorted_ones or None}


@dataclass(slots=True)
class _Stats:
    """Common base of topic and channel statistics, at one node or aggregated."""

    node: str
    hostname: str
    topic_name: str
    counts: dict[str, int]
    is_paused: bool = False
    latency: E2eLatency = field(default_factory=E2eLatency)
    nodes: list[Any] = field(default_factory=list)

    def _add(self, part: _Stats) -> None:
        """Add one node's statistics."""
        for name, count in part.counts.items():
            self.counts[name] += count
        self.is_paused |= part.is_paused
        self.latency.add(part.latency)
        self.nodes.append(part)

    def _document(self) -> dict[str, Any]:
        counts = self.counts
        return {
            "node": self.node,
            "hostname": self.hostname,
            "topic_name": self.topic_name,
            # As in NSQ, counts by nearness are left out if they are 0.
            **{name: count for name, count in counts.items() if count or name not in DELIVERY},
            "memory_depth": counts["depth"] - counts["backend_depth"],
            "delivery_msg_count": sum(counts[name] for name in DELIVERY),
            "nodes": [part.document() for part in by_host(self.nodes)] or None,
            "paused": self.is_paused,
            "e2e_processing_latency": self.latency.document(),
        }


@dataclass(slots=True)
class ChannelSummary(_Stats):
    """Statistics of a channel, at one node or aggregated."""

    channel_name: str = ""
    clients: list[dict[str, Any]] | None = None

    def add(self, part: ChannelSummary) -> None:
        """Add one node's statistics; its clients move here."""
        self._add(part)
        self.clients = [*(self.clients or ()), *(part.clients or ())]
        part.clients = None

    def document(self) -> dict[str, Any]:
        """The JSON object in NSQ's shape."""
        clients = (self.clients or None) if self.node == ALL else self.clients
        found = {**self._document(), "channel_name": self.channel_name, "clients": clients}
        # NSQ leaves a sum of 0 out here, but not in a topic.
        if not found["delivery_msg_count"]:
            del found["delivery_msg_count"]
        return _in_order(found, _CHANNEL_ORDER)


@dataclass(slots=True)
class TopicSummary(_Stats):
    """Statistics of a topic, at one node or aggregated."""

    channels: list[ChannelSummary] = field(default_factory=list)

    def add(self, part: TopicSummary) -> None:
        """Add one node's statistics, except its channels."""
        self.node = ALL
        self._add(part)

    def document(self) -> dict[str, Any]:
        """The JSON object in NSQ's shape."""
        channels = [channel.document() for channel in self.channels]
        is_whole = self.node in ("", ALL)
        listed = (channels or None) if is_whole else channels
        return _in_order({**self._document(), "channels": listed}, _TOPIC_ORDER)


def topics_at(node: Node, stats: NsqdFigures, now_seconds: float) -> list[TopicSummary]:
    """A node's topics with all their channels and clients, sorted by name.

    Args:
        node: the node.
        stats: its figures.
        now_seconds: current time, seconds since 1970, for the clients' `connected`.
    """
    found = [
        TopicSummary(
            node.address,
            node.hostname,
            topic.topic_name,
            _counts(topic, TOPIC_SUMS),
            topic.paused,
            latency_of(topic.e2e_processing_latency),
            channels=[
                _channel_at(node, topic.topic_name, one, now_seconds) for one in topic.channels
            ],
        )
        for topic in stats.topics
    ]
    return sorted(found, key=lambda part: part.topic_name)


def topic_of(
    name: str, nodes: Iterable[Node], stats: Mapping[str, NsqdFigures], now_seconds: float
) -> TopicSummary:
    """One topic aggregated over all nodes; its node is "" if no node has it."""
    counts = dict.fromkeys(TOPIC_SUMS, 0)
    together = TopicSummary("", "", name, counts, latency=E2eLatency(topic=name))
    channels: dict[str, ChannelSummary] = {}
    for part in _parts(name, nodes, stats, now_seconds):
        together.add(part)
        for channel in part.channels:
            _add_to_aggregate(channels, channel)
    together.channels = [channels[each] for each in sorted(channels)]
    return together


def channel_of(
    topic: str,
    channel: str,
    nodes: Iterable[Node],
    stats: Mapping[str, NsqdFigures],
    now_seconds: float,
) -> ChannelSummary | None:
    """One channel aggregated over all nodes, clients sorted by node and nearness; None: no node."""
    found: dict[str, ChannelSummary] = {}
    for part in _parts(topic, nodes, stats, now_seconds):
        for one in part.channels:
            if one.channel_name == channel:
                _add_to_aggregate(found, one)
    together = found.get(channel)
    if together is not None and together.clients:
        together.clients.sort(key=_nearness)
    return together


def by_host(parts: Sequence[Any]) -> list[Any]:
    """Sort nodes' entries as NSQ does, by host name, then by node."""
    return sorted(parts, key=lambda part: (part.hostname, part.node))


def latency_of(reported: LatencyFigures | None) -> E2eLatency:
    """A node's latency of a topic or channel."""
    latency = reported or LatencyFigures()
    found = E2eLatency(latency.count)
    for one in latency.percentiles or ():
        figures = dict.fromkeys(("max", "min", "average", "value"), one.value)
        found.percentiles.append(
            figures | {"quantile": one.quantile, "count": float(latency.count)}
        )
    return found


def number(of: Mapping[str, Any], key: str) -> int:
    """An integer field of a JSON object; 0 if it is missing, or no int64 as all of NSQ's are."""
    value = of.get(key)
    # Not `isinstance`: in Python, JSON's true is an int as well.
    return value if type(value) is int and -INT64_SPAN <= value < INT64_SPAN else 0


def _parts(
    topic: str, nodes: Iterable[Node], stats: Mapping[str, NsqdFigures], now_seconds: float
) -> Iterable[TopicSummary]:
    for node in nodes:
        if node.address in stats:
            for part in topics_at(node, stats[node.address], now_seconds):
                if part.topic_name == topic:
                    yield part


def _add_to_aggregate(found: dict[str, ChannelSummary], part: ChannelSummary) -> None:
    """Add a node's channel to its aggregate; the node's entry stays in the node's topic."""
    topic, name = part.topic_name, part.channel_name
    together = found.get(name)
    if together is None:
        latency, counts = E2eLatency(topic=topic, channel=name), dict.fromkeys(CHANNEL_SUMS, 0)
        together = ChannelSummary(ALL, "", topic, counts, latency=latency, channel_name=name)
        found[name] = together
    together.add(part)


def _channel_at(node: Node, topic: str, channel: ChannelFigures, now: float) -> ChannelSummary:
    clients = channel.clients
    return ChannelSummary(
        node.address,
        node.hostname,
        topic,
        _counts(channel, CHANNEL_SUMS),
        channel.paused,
        latency_of(channel.e2e_processing_latency),
        channel_name=channel.channel_name,
        clients=None if clients is None else [client_at(node, one, now) for one in clients],
    )


def client_at(node: Node, client: Client, now_seconds: float) -> dict[str, Any]:
    """A channel's client in NSQ's shape; `connected` is in ns, from whole seconds."""
    found: dict[str, Any] = {"node": node.address, **msgspec.structs.asdict(client)}
    found["connected"] = (int(now_seconds) - client.connect_ts) * NANOSECONDS
    for name in PLACES:
        found[f"node_{name}"] = getattr(node, name)
        for key in (name, f"node_{name}"):
            if not found[key]:
                del found[key]
    return _in_order(found, _CLIENT_ORDER)


def _nearness(client: Mapping[str, Any]) -> tuple[str, int, str, str]:
    """Sort key: within a node, clients in its zone, then in its region, then the others."""
    region, zone = client.get("topology_region", ""), client.get("topology_zone", "")
    is_near = region == client.get("node_topology_region", "")
    is_nearest = is_near and zone == client.get("node_topology_zone", "")
    return client["node"], 0 if is_nearest else 1 if is_near else 2, region, zone


def _in_order(found: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: found[name] for name in names if name in found}


def _counts(stats: TopicFigures | ChannelFigures, names: Iterable[str]) -> dict[str, int]:
    return {name: getattr(stats, name) for name in names}
