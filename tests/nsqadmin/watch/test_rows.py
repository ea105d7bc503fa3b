"""The figures of all nodes give the rates, lags and states of channels."""

from __future__ import annotations

import math

import pytest

from sparq.cluster import rows
from tests.nsqadmin.watch.figures import (
    Cluster,
    after_two_answers,
    channel,
    row_of,
    snapshot,
    stats,
    topic,
)


def test_rates_are_growth_by_time() -> None:
    """A counter that grew by 20 in 10 seconds is a rate of 2."""
    before = stats(topic("t", channel("c", messages=100, finished=50, requeued=1), bytes=1000))
    after = stats(
        topic("t", channel("c", messages=120, finished=80, requeued=6), messages=20, bytes=1500)
    )

    row = row_of(after_two_answers(before, after))
    whole = after_two_answers(before, after).topics.find("t")

    assert whole is not None
    assert (2.0, 3.0, 0.5, 0.0) == (row.in_rate, row.out_rate, row.requeue_rate, row.timeout_rate)
    assert (2.0, 50.0, 3.0) == (whole.in_rate, whole.byte_rate, whole.out_rate)


def test_a_restart_gives_no_rate() -> None:
    """Counters restart at 0 with the node, so the rate is unknown."""
    before = stats(topic("t", channel("c", messages=100)))
    after = stats(topic("t", channel("c", messages=150)), start_time=200)

    row = row_of(after_two_answers(before, after))

    assert row.in_rate is None


def test_a_channel_new_at_a_node_adds_nothing_to_the_rate() -> None:
    """A channel that is new at one of two nodes has the other node's rate."""
    cluster = Cluster()
    cluster.answers("a:4151", stats(topic("t", channel("c", messages=10))))
    cluster.answers("b:4151", stats(topic("t"), topic("u", channel("c"))))
    cluster.now += 10
    cluster.answers("a:4151", stats(topic("t", channel("c", messages=30), channel("d"))))
    cluster.answers("b:4151", stats(topic("t", channel("c", messages=500))))

    found = cluster.snapshot()

    row, other = row_of(found), row_of(found, "t", "d")
    assert (2.0, None) == (row.in_rate, other.in_rate)
    assert found.topics.find("u") is None


def test_lag_of_go_is_estimated() -> None:
    """Go's nsqd reports no age: the lag is the waiting messages divided by the finish rate."""
    before = stats(topic("t", channel("c", is_go=True, messages=100, depth=50)), is_go=True)
    after = stats(topic("t", channel("c", is_go=True, messages=110, depth=40)), is_go=True)

    found = after_two_answers(before, after)

    row = row_of(found)
    assert (2.0, 20.0, False, None) == (
        *(row.out_rate, row.lag_seconds, row.lag_is_exact, row.ready),
    )
    assert found.has_go
    assert not found.nodes[0].is_sparq


@pytest.mark.parametrize(
    ("finished", "expected"), [(60, 10.0), (20, math.inf), (0, math.inf)], ids=str
)
def test_time_to_clear(finished: int, expected: float) -> None:
    """Waiting messages divided by (finish rate - publish rate); infinite if that is not > 0."""
    before = stats(topic("t", channel("c", messages=100, depth=80)))
    after = stats(topic("t", channel("c", messages=120, depth=40, finished=finished)))

    row = row_of(after_two_answers(before, after))

    assert row.clear_seconds == expected


def test_consumers_that_finish_nothing_are_stuck() -> None:
    """Stuck: messages wait and consumers exist, but none has been finished for a minute."""
    cluster = Cluster()
    answer = stats(topic("t", channel("c", depth=5, clients=2, finished=7)))
    states = []
    for _ in range(5):
        cluster.answers("a:4151", answer)
        row = row_of(cluster.snapshot())
        states.append((row.state, row.unfinished_seconds))
        cluster.now += 20

    assert [("ok", 0), ("ok", 20), ("ok", 40), ("stuck", 60), ("stuck", 80)] == states


def test_figures_are_summed_over_nodes() -> None:
    """Figures of channels and topics are sums over all nodes that have them."""
    one = stats(topic("t", channel("c", depth=5, in_flight=1, messages=9, clients=2), depth=2))
    two = stats(topic("t", channel("c", depth=7, deferred=3, messages=8, clients=1), messages=4))

    found = snapshot(one, two, stats())

    row = row_of(found)
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


def test_names_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names beyond the limit are left out, and a notice says how many."""
    monkeypatch.setattr(rows, "NAMES_MAX", 2)
    found = snapshot(stats(topic("a", channel("c")), topic("b", channel("c"))))

    assert (2, 0) == (len(found.topics), len(found.channels))
    assert any(each.sentence.startswith("2 topics and channels") for each in found.notices)


def test_figures_that_no_nsqd_has_are_limited() -> None:
    """Invalid names are left out, of duplicates the last counts, negative sums are 0."""
    found = snapshot(
        stats(
            topic("<b>", channel("c")),
            topic("t", channel("c", depth=9), channel("c", depth=-5), channel("a b")),
            topic("t", depth=3),
            health="NOK\n\x1b[31m",
        )
    )

    assert [("t", "c", 0)] == [(row.topic, row.channel, row.depth) for row in found.channels]
    assert [("t", 3)] == [(row.topic, row.depth) for row in found.topics]
    assert "NOK  [31m" == found.nodes[0].health
