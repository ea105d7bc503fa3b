"""Aggregates `/stats` of several nodes, as the JSON documents of NSQ's nsqadmin.

1. Counts are summed; `memory_depth` is `depth` minus `backend_depth`; an aggregate is paused if it
   is paused at any node. Its node is `*`, and the nodes' own entries are in `nodes`. In a topic, a
   channel that one node has is that node's own entry.
2. Latencies: counts are summed, the maximum is that of the maxima, the minimum that of the minima,
   the average is weighted by count.
3. Clients are listed once, in the aggregate; the entries in `nodes` have none.
4. An empty list is null in an aggregate; an empty list that a node reported stays empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from sparq.cluster.figures import (
    DELIVERY,
    ChannelFigures,
    Client,
    LatencyFigures,
    NsqdFigures,
    TopicFigures,
)
from sparq.cluster.fleet import Node
from sparq.options.units import SECOND
from sparq.protocol import go_json

Document: TypeAlias = dict[str, Any]

ALL: Final = "*"
LATENCY: Final = "e2e_processing_latency"
PLACES: Final = ("topology_region", "topology_zone")
# The members of nsqadmin's JSON objects, in NSQ's order.
_NAMES: Final = ("node", "hostname", "topic_name", "channel_name")
_DEPTHS: Final = ("depth", "memory_depth", "backend_depth")
_DELIVERED: Final = ("message_count", "delivery_msg_count", *DELIVERY)
_TOPIC: Final = (*_NAMES, *_DEPTHS, *_DELIVERED, "nodes", "channels", "paused", LATENCY)
_CHANNEL: Final = (
    *(*_NAMES, *_DEPTHS, "in_flight_count", "deferred_count", "requeue_count", "timeout_count"),
    *(*_DELIVERED, "client_count", "nodes", "clients", "paused", LATENCY),
)
_CLIENT: Final = (
    *("node", "remote_address", "version", "client_id", "hostname", "user_agent", "connect_ts"),
    *("connected", "in_flight_count", "ready_count", "finish_count", "requeue_count"),
    *("message_count", "sample_rate", "deflate", "snappy", "authed", "auth_identity"),
    *("auth_identity_url", "node_topology_region", "node_topology_zone", "topology_region"),
    *("topology_zone", "tls", "tls_cipher_suite", "tls_version", "tls_negotiated_protocol"),
    "tls_negotiated_protocol_is_mutual",
)


def topics_at(node: Node, stats: NsqdFigures, now_seconds: float) -> list[Document]:
    """A node's topics with all their channels and clients, sorted by name.

    Args:
        node: the node.
        stats: its figures.
        now_seconds: current time, seconds since 1970, for the clients' `connected`.
    """
    found = []
    for topic in stats.topics:
        own = {"node": node.address, "hostname": node.hostname, "topic_name": topic.topic_name}
        channels = [
            _at_node(
                _CHANNEL,
                channel,
                own,
                channel_name=channel.channel_name,
                clients=_clients_at(node, channel.clients, now_seconds),
            )
            for channel in topic.channels
        ]
        found.append(_at_node(_TOPIC, topic, own, channels=channels))
    return sorted(found, key=lambda topic: str(topic["topic_name"]))


def topic_of(
    name: str, nodes: Iterable[Node], stats: Mapping[str, NsqdFigures], now_seconds: float
) -> Document:
    """One topic aggregated over all nodes; its node is "" if no node has it."""
    parts = _parts(name, nodes, stats, now_seconds)
    by_name: dict[str, list[Document]] = {}
    for channel in (channel for part in parts for channel in part["channels"]):
        by_name.setdefault(channel["channel_name"], []).append(channel)
    channels = [
        some[0] if len(some) == 1 else _aggregate(_CHANNEL, some, name, channel)
        for channel, some in sorted(by_name.items())
    ]
    return _aggregate(_TOPIC, parts, name, channels=channels or None)


def channel_of(
    topic: str,
    channel: str,
    nodes: Iterable[Node],
    stats: Mapping[str, NsqdFigures],
    now_seconds: float,
) -> Document | None:
    """One channel aggregated over all nodes, clients sorted by node and nearness; None: no node."""
    parts = [
        each
        for part in _parts(topic, nodes, stats, now_seconds)
        for each in part["channels"]
        if each["channel_name"] == channel
    ]
    return _aggregate(_CHANNEL, parts, topic, channel) if parts else None


def _parts(
    topic: str, nodes: Iterable[Node], stats: Mapping[str, NsqdFigures], now_seconds: float
) -> list[Document]:
    answered = (node for node in nodes if node.address in stats)
    return [
        part
        for node in answered
        for part in topics_at(node, stats[node.address], now_seconds)
        if part["topic_name"] == topic
    ]


def _at_node(
    order: Sequence[str], stats: TopicFigures | ChannelFigures, own: Document, **more: Any
) -> Document:
    """The entry of a topic or channel at one node."""
    told = {name: getattr(stats, name) for name in order if hasattr(stats, name)}
    latency = latency_of(stats.e2e_processing_latency)
    return _in_order({**told, **own, **more, "nodes": None, LATENCY: latency}, order)


def _aggregate(
    order: Sequence[str], parts: Sequence[Document], topic: str, channel: str = "", **more: Any
) -> Document:
    """Merge the entries of nodes; a channel's clients move from the entries to the result."""
    counts = {
        name: sum(part.get(name, 0) for part in parts)
        for name in order
        if name.endswith(("_count", "depth"))
    }
    found: Document = {
        **counts,
        "node": ALL if parts else "",
        "hostname": "",
        "topic_name": topic,
        "paused": any(part["paused"] for part in parts),
        # As NSQ sorts them, by host name, then by node.
        "nodes": sorted(parts, key=lambda part: (part["hostname"], part["node"])) or None,
        LATENCY: merged_latency([part[LATENCY] for part in parts], topic, channel),
        **more,
    }
    if channel:
        clients = [client for part in parts for client in part["clients"] or ()]
        found |= {"channel_name": channel, "clients": sorted(clients, key=_nearness) or None}
        for part in parts:
            part["clients"] = None
    return _in_order(found, order)


def latency_of(reported: LatencyFigures | None) -> Document:
    """A node's latency of a topic or channel: times from publish to FIN in ns, by quantile."""
    latency = reported or LatencyFigures()
    found = [
        dict.fromkeys(("average", "max", "min", "value"), one.value)
        | {"quantile": one.quantile, "count": float(latency.count)}
        for one in latency.percentiles or ()
    ]
    return _latency(latency.count, found)


def merged_latency(parts: Iterable[Document], topic: str, channel: str = "") -> Document:
    """Merge the latencies of nodes."""
    count, host, by_quantile = 0, "", dict[float, dict[str, float]]()
    for part in parts:
        count, host = count + part["count"], ALL
        for theirs in part["percentiles"] or ():
            names = ("quantile", "max", "min", "average")
            ours = by_quantile.setdefault(
                theirs["quantile"], {name: theirs[name] for name in names} | {"count": 0}
            )
            ours["max"] = max(ours["max"], theirs["max"])
            ours["min"] = min(ours["min"], theirs["min"])
            ours["count"] += theirs["count"]
            share = theirs["count"] / ours["count"] if ours["count"] else 0.0
            ours["average"] += (theirs["average"] - ours["average"]) * share
    return _latency(count, [*by_quantile.values()], topic, channel, host)


def _latency(
    count: int,
    percentiles: list[dict[str, float]],
    topic: str = "",
    channel: str = "",
    host: str = "",
) -> Document:
    # In NSQ a percentile is a map of float64, which Go's encoder sorts.
    shown = [
        {name: go_json.number(float(value)) for name, value in sorted(each.items())}
        for each in percentiles
    ]
    found: Document = {"count": count, "percentiles": shown or None}
    return found | {"topic": topic, "channel": channel, "host": host}


def _clients_at(node: Node, clients: list[Client] | None, now: float) -> list[Document] | None:
    """A channel's clients in NSQ's shape; `connected` is in ns, from whole seconds."""
    if clients is None:
        return None
    found = []
    for client in clients:
        told: Document = {"node": node.address, **msgspec.structs.asdict(client)}
        told["connected"] = (int(now) - client.connect_ts) * SECOND
        told |= {f"node_{name}": getattr(node, name) for name in PLACES}
        unplaced = {key for name in PLACES for key in (name, f"node_{name}") if not told[key]}
        found.append({name: told[name] for name in _CLIENT if name not in unplaced})
    return found


def _nearness(client: Mapping[str, Any]) -> tuple[str, int, str, str]:
    """Sort key: within a node, clients in its zone, then in its region, then the others."""
    region, zone = client.get("topology_region", ""), client.get("topology_zone", "")
    is_near = region == client.get("node_topology_region", "")
    is_nearest = is_near and zone == client.get("node_topology_zone", "")
    return client["node"], 0 if is_nearest else 1 if is_near else 2, region, zone


def _in_order(found: Document, order: Sequence[str]) -> Document:
    """Complete a topic's or channel's document, in NSQ's order."""
    found["memory_depth"] = found["depth"] - found["backend_depth"]
    found["delivery_msg_count"] = sum(found[name] for name in DELIVERY)
    # As in NSQ, counts by nearness are left out if they are 0; their sum only in a channel.
    optional = DELIVERY if order is _TOPIC else (*DELIVERY, "delivery_msg_count")
    left_out = {name for name in optional if not found[name]}
    return {name: found[name] for name in order if name in found and name not in left_out}
