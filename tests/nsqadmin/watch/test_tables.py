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


def test_a_channel_says_that_its_topic_is_paused() -> None:
    """`topic_paused` is set for the channels of a paused topic only, also at a node."""
    found = snapshot(
        stats(topic("a", channel("c"), paused=True), topic("b", channel("c"))),
        stats(topic("b", channel("d"))),
    )
    rows = {(row.topic, row.channel): row.topic_paused for row in found.channels}
    assert {("a", "c"): True, ("b", "c"): False, ("b", "d"): False} == rows
    ((_, row),) = found.channel_nodes("a", "c")
    assert row.topic_paused


def test_a_channel_without_waiting_messages_is_clear() -> None:
    """Messages in flight do not wait: an emptied channel, or one that keeps up, is clear now."""
    found = snapshot(stats(topic("t", channel("c", in_flight=3, clients=1))))
    row = found.channels.find("t", "c")
    assert row is not None
    assert 0.0 == row.clear_seconds
