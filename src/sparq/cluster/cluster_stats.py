"""Aggregates `/stats` of several nodes, in the JSON shapes of NSQ's nsqadmin.

1. Counts are summed; `memory_depth` is `depth` minus `backend_depth`; an aggregate is paused if it
   is paused at any node. Its node is `*`, and the nodes' own entries are in `nodes`.
2. Latencies: counts are summed, the maximum is that of the maxima, the minimum that of the minima,
   the average is weighted by count.
3. Clients are listed once, in the aggregate; the entries in `nodes` have none.
4. A count that a node omits, or that is not a number, counts as 0.
5. An empty list is null in an aggregate; an empty list that a node reported stays empty.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeGuard

from sparq.cluster.nodes import Node
from sparq.protocol import go_json

ALL: Final = "*"
INT64_SPAN: Final = 1 << 63
NANOSECONDS: Final = 1_000_000_000
AGE_SECONDS_MAX: Final = 253_402_300_799
"""The last second that has a four-digit year, since 1970: no message can be older."""

DELIVERY: Final = ("zone_local_msg_count", "region_local_msg_count", "global_msg_count")
TOPIC_SUMS: Final = ("depth", "backend_depth", "message_count", *DELIVERY)
CHANNEL_SUMS: Final = (
    *TOPIC_SUMS,
    *("in_flight_count", "deferred_count", "requeue_count", "timeout_count", "client_count"),
)
CLIENT_NUMBERS: Final = (
    *("connect_ts", "in_flight_count", "ready_count", "finish_count", "requeue_count"),
    *("message_count", "sample_rate"),
)
CLIENT_TEXTS: Final = (
    *("remote_address", "version", "client_id", "hostname", "user_agent", "auth_identity"),
    *("auth_identity_url", "tls_cipher_suite", "tls_version", "tls_negotiated_protocol"),
)
CLIENT_SWITCHES: Final = (
    *("deflate", "snappy", "authed", "tls", "tls_negotiated_protocol_is_mutual"),
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


def topics_at(node: Node, stats: Mapping[str, Any], now_seconds: float) -> list[TopicSummary]:
    """A node's topics with all their channels and clients, sorted by name.

    Args:
        node: the node.
        stats: its `/stats`, as returned by `Fleet.stats`.
        now_seconds: current time, seconds since 1970, for the clients' `connected`.
    """
    found = []
    for topic in stats["topics"]:
        name = topic["topic_name"]
        part = TopicSummary(
            node.address,
            node.hostname,
            name,
            _numbers(topic, TOPIC_SUMS),
            topic.get("paused") is True,
            latency_in(topic),
            channels=[_channel_at(node, name, one, now_seconds) for one in topic["channels"]],
        )
        found.append(part)
    return sorted(found, key=lambda part: part.topic_name)


def topic_of(
    name: str, nodes: Iterable[Node], stats: Mapping[str, Mapping[str, Any]], now_seconds: float
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
    stats: Mapping[str, Mapping[str, Any]],
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


def latency_in(stats: Mapping[str, Any]) -> E2eLatency:
    """The latency in an nsqd's JSON object of a topic or channel."""
    latency = stats.get("e2e_processing_latency")
    latency = latency if isinstance(latency, dict) else {}
    found = E2eLatency(number(latency, "count"))
    listed = latency.get("percentiles")
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, dict):
            value = _real(one.get("value"))
            figures = dict.fromkeys(("max", "min", "average", "value"), value)
            figures |= {"quantile": _real(one.get("quantile")), "count": float(found.count)}
            found.percentiles.append(figures)
    return found


def number(of: Mapping[str, Any], key: str) -> int:
    """An integer field of a JSON object; 0 if it is missing, or no int64 as all of NSQ's are."""
    value = of.get(key)
    return value if is_int64(value) else 0


def is_int64(value: Any) -> TypeGuard[int]:
    """Whether a figure is an integer of 64 bits, as all of NSQ's are; JSON has larger ones."""
    # Not `isinstance`: in Python, JSON's true is an int as well.
    return type(value) is int and -INT64_SPAN <= value < INT64_SPAN


def age_seconds(of: Mapping[str, Any], key: str) -> float | None:
    """An age that sparq's nsqd reports; None if it is missing, as in Go's, or negative.

    Raises:
        TypeError: it is no number, or more than `AGE_SECONDS_MAX`.
    """
    value = of.get(key)
    if value is None:
        return None
    if type(value) not in (int, float) or not value <= AGE_SECONDS_MAX:
        raise TypeError(f"{key} is not a possible number of seconds")
    return float(value) if value >= 0 else None


def _parts(
    topic: str, nodes: Iterable[Node], stats: Mapping[str, Mapping[str, Any]], now_seconds: float
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


def _channel_at(node: Node, topic: str, stats: Mapping[str, Any], now: float) -> ChannelSummary:
    listed = stats.get("clients")
    clients = None
    if isinstance(listed, list):
        clients = [client_at(node, one, now) for one in listed if isinstance(one, dict)]
    return ChannelSummary(
        node.address,
        node.hostname,
        topic,
        _numbers(stats, CHANNEL_SUMS),
        stats.get("paused") is True,
        latency_in(stats),
        channel_name=stats["channel_name"],
        clients=clients,
    )


def client_at(node: Node, client: Mapping[str, Any], now_seconds: float) -> dict[str, Any]:
    """A channel's client in NSQ's shape; `connected` is in ns, from whole seconds."""
    found: dict[str, Any] = {"node": node.address}
    found |= {name: _text(client, name) for name in CLIENT_TEXTS}
    found |= {name: number(client, name) for name in CLIENT_NUMBERS}
    found |= {name: client.get(name) is True for name in CLIENT_SWITCHES}
    found["connected"] = (int(now_seconds) - found["connect_ts"]) * NANOSECONDS
    for name in PLACES:
        if place := getattr(node, name):
            found[f"node_{name}"] = place
        if place := _text(client, name):
            found[name] = place
    return _in_order(found, _CLIENT_ORDER)


def _nearness(client: Mapping[str, Any]) -> tuple[str, int, str, str]:
    """Sort key: within a node, clients in its zone, then in its region, then the others."""
    region, zone = client.get("topology_region", ""), client.get("topology_zone", "")
    is_near = region == client.get("node_topology_region", "")
    is_nearest = is_near and zone == client.get("node_topology_zone", "")
    return client["node"], 0 if is_nearest else 1 if is_near else 2, region, zone


def _in_order(found: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: found[name] for name in names if name in found}


def _numbers(stats: Mapping[str, Any], names: Iterable[str]) -> dict[str, int]:
    return {name: number(stats, name) for name in names}


def _text(stats: Mapping[str, Any], key: str) -> str:
    value = stats.get(key)
    return value if isinstance(value, str) else ""


def _real(value: Any) -> float:
    """The number, if JSON can express it again; otherwise 0: `1e999` is read as infinite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if abs(value) <= sys.float_info.max else 0.0
