"""Tables of channels and topics, stored as columns."""

from __future__ import annotations

from tests.nsqadmin.watch.figures import channel, snapshot, stats, topic


def test_figures_are_summed_over_nodes() -> None:
    """Figures of channels and topics are sums over all nodes that have them."""
    one = stats(topic("t", channel("c", depth=5, in_flight=1, messages=9, clients=2), depth=2))
    two = stats(topic("t", channel("c", depth=7, deferred=3, messages=8, clients=1), messages=4))

    found = snapshot(one, two, stats())

    row = found.channels.find("t", "c")
    assert row is not None
    assert (12, 1, 3, 17, 3, 2) == (
        *(row.depth, row.in_flight, row.deferred, row.messages, row.clients, row.nodes),
    )
    whole = found.topics.find("t")
    assert whole is not None
    assert (2, 14, 4, 1, 2, 3) == (
        *(whole.depth, whole.waiting, whole.messages, whole.channels, whole.nodes, whole.clients),
    )
    assert (3, 3, 1, 1, 14) == (
        *(found.totals.nodes, found.totals.nodes_up, found.totals.topics, found.totals.channels),
        found.totals.waiting,
    )
