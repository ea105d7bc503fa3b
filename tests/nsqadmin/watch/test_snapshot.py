"""Snapshots of the cluster from the answers of its nodes."""

from __future__ import annotations

from tests.nsqadmin.watch.figures import Cluster, channel, row_of, stats, topic


def test_a_gone_node_keeps_its_figures_in_its_own_row() -> None:
    """A gone node's messages are in no sum; its row has the number that waits there."""
    cluster = Cluster()
    cluster.answers("a:4151", stats(topic("t", channel("c", depth=5))))
    cluster.answers("b:4151", stats(topic("t", channel("c", depth=7))))
    cluster.answers("b:4151", None, state="gone", error="connection refused")

    found = cluster.snapshot()

    row, node = row_of(found), found.node("b:4151")
    assert node is not None
    assert (5, 1, 5) == (row.depth, row.nodes, found.totals.waiting)
    assert ("gone", 7, "connection refused") == (node.state, node.waiting, node.error)
    assert {"b:4151": "connection refused"} == found.errors
    assert (2, 1) == (found.totals.nodes, found.totals.nodes_up)


def test_a_node_has_tables_of_its_own() -> None:
    """Figures can be read by node, and the parts of a topic or channel by node."""
    cluster = Cluster()
    for depth in (5, 25):
        cluster.now += 10
        cluster.answers("a:4151", stats(topic("t", channel("c", depth=depth, messages=depth))))
        cluster.answers("b:4151", stats(topic("t", channel("d", depth=7)), topic("u")))
    found = cluster.snapshot()

    at = found.at_node("b:4151")

    assert ["t", "u"] == [row.topic for row in at.topics]
    assert [("d", 7)] == [(row.channel, row.depth) for row in at.channels]
    parts = found.channel_nodes("t", "c")
    assert [("a:4151", 25, 2.0)] == [(node.address, c.depth, c.in_rate) for node, c in parts]
    both = [(node.address, part.waiting, part.channels) for node, part in found.topic_nodes("t")]
    assert [("a:4151", 25, 1), ("b:4151", 7, 1)] == both
    assert [] == found.topic_nodes("nowhere")


def test_a_snapshot_is_not_changed_by_the_next_one() -> None:
    """A page may use a snapshot after newer ones have been made."""
    cluster = Cluster()
    cluster.answers("a:4151", stats(topic("t", channel("c", depth=5))))
    first = cluster.snapshot()
    cluster.answers("a:4151", stats(topic("t", channel("b"), channel("c", depth=6))))
    second = cluster.snapshot()

    old, new = row_of(first), row_of(second)
    assert (5, 6) == (old.depth, new.depth)
    assert first.number < second.number
