"""cluster.cluster_stats: statistics of several nodes, merged as in NSQ's nsqadmin."""

from __future__ import annotations

import json
from typing import Any

from sparq.cluster.cluster_stats import channel_of, latency_of, merged_latency, topic_of
from sparq.cluster.figures import LatencyFigures, NsqdFigures, Percentile, read
from sparq.cluster.fleet import Node

NOW = 1000.9


def node(name: str, **more: Any) -> Node:
    return Node(f"{name}:4151", f"{name}:4151", name, f"host-{name}", 4151, 4150, "1.3.0", **more)


def stats(*topics: dict[str, Any]) -> NsqdFigures:
    return read(json.dumps({"version": "1.3.0", "topics": [*topics]}).encode())


def topic(depth: int, backend: int, *channels: dict[str, Any], **more: Any) -> dict[str, Any]:
    figures = {"depth": depth, "backend_depth": backend, "message_count": 10 * depth}
    return {"topic_name": "t", **figures, "channels": [*channels], "paused": False, **more}


def channel(depth: int, *clients: dict[str, Any], **more: Any) -> dict[str, Any]:
    figures = {
        "depth": depth,
        "backend_depth": 1,
        "in_flight_count": 2,
        "client_count": len(clients),
    }
    return {"channel_name": "c", **figures, "clients": [*clients] or None, **more}


def test_a_topics_figures_are_summed() -> None:
    """Figures are summed over the nodes; memory_depth is the depth without backend_depth."""
    a, b = node("a"), node("b")
    documents = {b.address: stats(topic(5, 2, paused=True)), a.address: stats(topic(3, 3))}
    found = topic_of("t", [b, a], documents, NOW)

    assert ("*", 8, 5, 3, 80, True) == (
        found["node"],
        found["depth"],
        found["backend_depth"],
        found["memory_depth"],
        found["message_count"],
        found["paused"],
    )
    assert ["a:4151", "b:4151"] == [part["node"] for part in found["nodes"]]
    assert [0, 3] == [part["memory_depth"] for part in found["nodes"]]
    assert (None, []) == (found["channels"], found["nodes"][0]["channels"])


def test_a_topic_without_nodes_is_empty() -> None:
    """A topic without nodes has NSQ's empty document; a channel without nodes is None."""
    found = topic_of("t", [node("a")], {"a:4151": stats()}, NOW)

    assert ("", None, None, 0) == (found["node"], found["nodes"], found["channels"], found["depth"])
    assert channel_of("t", "c", [node("a")], {"a:4151": stats()}, NOW) is None


def test_a_channels_figures_are_summed_and_each_client_is_listed_once() -> None:
    """Clients are sorted by node and nearness; the parts have none (NSQ lists them twice)."""
    a = node("a", topology_zone="z", topology_region="r")
    b = node("b")
    far = {"client_id": "far", "topology_zone": "y", "topology_region": "q", "connect_ts": 900}
    near = {"client_id": "near", "topology_zone": "x", "topology_region": "r"}
    same = {"client_id": "same", "topology_zone": "z", "topology_region": "r"}
    documents = {
        a.address: stats(topic(0, 0, channel(4, far, near, same, zone_local_msg_count=7))),
        b.address: stats(topic(0, 0, channel(6, {"client_id": "other"}))),
    }
    found = channel_of("t", "c", [b, a], documents, NOW)
    assert found is not None

    assert (10, 2, 8, 4, 4) == (
        found["depth"],
        found["backend_depth"],
        found["memory_depth"],
        found["in_flight_count"],
        found["client_count"],
    )
    assert (7, 7) == (found["zone_local_msg_count"], found["delivery_msg_count"])
    assert "global_msg_count" not in found
    ids = [client["client_id"] for client in found["clients"]]
    assert ["same", "near", "far", "other"] == ids
    assert [None, None] == [part["clients"] for part in found["nodes"]]
    assert 100_000_000_000 == found["clients"][2]["connected"]
    far_client = found["clients"][2]
    assert ("z", "r") == (far_client["node_topology_zone"], far_client["node_topology_region"])
    assert ("y", "q") == (far_client["topology_zone"], far_client["topology_region"])
    assert "node_topology_zone" not in found["clients"][3]


def test_latencies_are_merged() -> None:
    """Merged latencies have the largest max, the smallest min and a weighted average."""
    parts = [
        latency_of(LatencyFigures(count, [Percentile(0.99, float(value))]))
        for count, value in ((1, 100), (3, 500), (0, 50))
    ]
    together = merged_latency(parts, "t")
    (found,) = together["percentiles"]

    assert {"quantile": 0.99, "max": 500, "min": 50, "average": 400, "count": 4} == found
    assert (4, "*", "t") == (together["count"], together["host"], together["topic"])


def test_a_nodes_latency_has_its_own_value() -> None:
    """A single node's value is also its max, min and average, as in NSQ."""
    (found,) = latency_of(LatencyFigures(2, [Percentile(0.99, 7.0)]))["percentiles"]

    expected = {"quantile": 0.99, "value": 7, "max": 7, "min": 7, "average": 7, "count": 2}
    assert expected == found


def test_a_channel_of_one_node_is_that_nodes_entry() -> None:
    """As in NSQ: a topic's channel has the address of its only node, and `*` for several."""
    a, b = node("a"), node("b")
    for there, expected in (([a], "a:4151"), ([a, b], "*")):
        documents = {each.address: stats(topic(1, 0, channel(4))) for each in there}
        (found,) = topic_of("t", there, documents, NOW)["channels"]
        assert (expected, 4 * len(there)) == (found["node"], found["depth"])
