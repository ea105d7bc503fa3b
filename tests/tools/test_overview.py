"""Rates, sums, lag and states from the statistics of Go's and sparq's nsqds, and their history."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from sparq.cluster.figures import read
from sparq.cluster.rows import NodeStats
from sparq.tools import overview as module
from sparq.tools.overview import OverviewRow, SampleHistory
from tests.nsqadmin.watch.figures import channel as made_channel
from tests.nsqadmin.watch.figures import stats, topic


def sample(*topics: dict[str, Any], at: float = 5.0, **changes: Any) -> NodeStats:
    """Return the figures of a Go nsqd at a time."""
    return NodeStats(read(json.dumps(stats(*topics, is_go=True, **changes)).encode()), at)


channel = partial(made_channel, is_go=True)


def test_a_topic_with_messages_in_no_channel_has_a_row() -> None:
    """A topic has its own row without a channel, or with messages that are in no channel."""
    now = sample(
        topic("bare"), topic("paused", channel("c"), depth=8), topic("plain", channel("c"))
    )

    rows = SampleHistory().add({"a:1": now}, 5.0).rows

    assert [("bare", ""), ("paused", ""), ("paused", "c"), ("plain", "c")] == [
        (row.topic, row.channel) for row in rows
    ]
    assert [0, 8, 0, 0] == [row.depth for row in rows]
    assert rows[0].out_rate is None


def test_an_nsqd_that_is_gone_is_named_with_its_last_figures() -> None:
    """They are in no sum: its messages cannot be delivered now."""
    last = sample(topic("t", channel("c", depth=7, in_flight=2, oldest=5.0)), at=100.0)
    alive = sample(topic("t", channel("c", depth=1, clients=1)), at=100.0)
    past = SampleHistory()
    past.add({"a:1": alive, "b:1": last}, 100.0)

    both = past.add({"a:1": alive}, 130.0)
    nobody = past.add({}, 131.0)

    (row,) = both.rows
    assert (1, 0, 1, ("b:1",)) == (row.depth, row.in_flight, row.clients, row.gone)
    assert "nsqd gone" == row.state
    assert {"b:1": {"seconds": 30.0, "depth": 7, "in_flight": 2, "deferred": 0}} == both.gone
    assert (0, "nsqd gone", 0) == (nobody.rows[0].nodes, nobody.rows[0].state, nobody.nsqds)


def test_an_nsqd_that_was_drained_is_no_alarm() -> None:
    """It was drained, has nothing left and is gone, as intended; with messages it is an alarm."""
    past = SampleHistory()
    drained = sample(topic("t", channel("c")), draining=True)
    full = sample(topic("t", channel("c", depth=1)), draining=True)
    past.add({"a:1": drained, "b:1": full}, 5.0)
    seen = past.add({}, 7.0)

    assert ({"b:1"}, {"a:1"}) == (seen.gone.keys(), seen.drained)
    assert [("b:1",)] == [row.gone for row in seen.rows if row.channel]


def test_a_channel_of_a_paused_topic_says_so() -> None:
    """So does a full disk of a node, instead of being up."""
    paused = topic("t", channel("c", clients=1), paused=True)
    full = sample(paused, health="NOK\x1b[2J", reserve={"is_short": True})
    seen = SampleHistory().add({"a:1": full}, 5.0)

    (row,) = seen.rows
    assert ("topic paused", True, False) == (row.state, row.topic_paused, row.paused)
    assert {"a:1": "disk full: NOK [2J"} == seen.ill


def one_channel_sample(at: float, finished: int = 0, depth: int = 5) -> NodeStats:
    """Return a sample of one channel with a consumer."""
    figures = {"finished": finished, "depth": depth, "clients": 1, "oldest": 0.0}
    return sample(topic("t", channel("c", **figures)), at=at)


def test_idle_time_counts_from_the_last_finished_message() -> None:
    """A channel is idle only while messages are unfinished; the next finished one ends that."""
    past = SampleHistory()
    idle = []
    for at, finished, depth in (
        (0, 0, 5),
        (30, 0, 5),
        (60, 0, 5),
        (61, 1, 4),
        (65, 1, 4),
        (66, 1, 0),
    ):
        (row,) = past.add({"a:1": one_channel_sample(at, finished, depth)}, float(at)).rows
        idle.append((row.unfinished_seconds, row.state))

    expected = [
        (0.0, "ok"),
        (30.0, "ok"),
        (60.0, "stuck"),
        (0.0, "ok"),
        (4.0, "ok"),
        (0.0, "ok"),
    ]
    assert expected == idle


def test_an_nsqd_that_is_gone_is_kept_until_it_is_back_or_forgotten() -> None:
    """The last figures stay, with the time since; on return the rate covers all that time."""
    past = SampleHistory()
    past.add({"a:1": one_channel_sample(0.0), "b:1": one_channel_sample(0.0, 10)}, 0.0)
    gone = past.add({"a:1": one_channel_sample(2.0)}, 2.0)
    still = past.add({"a:1": one_channel_sample(4.0)}, 4.0)

    assert (2.0, 4.0) == (gone.gone["b:1"]["seconds"], still.gone["b:1"]["seconds"])
    assert (5, ("b:1",)) == (still.rows[0].depth, still.rows[0].gone)
    assert [("a:1", False), ("b:1", True)] == [
        (part.address, part.is_gone) for part in past.parts(("t", "c"))
    ]
    back = past.add({"a:1": one_channel_sample(8.0), "b:1": one_channel_sample(8.0, 26)}, 8.0)
    assert ({}, 2.0) == (back.gone, back.rows[0].out_rate)
    past.add({"a:1": one_channel_sample(9.0)}, 9.0)
    past.dismiss_gone()
    assert {} == past.add({"a:1": one_channel_sample(10.0)}, 10.0).gone
    assert [] == past.parts(("t", "other"))


def test_an_nsqd_that_is_gone_is_no_progress() -> None:
    """The sum of finished messages falls with it; a channel that is stuck stays so."""
    past = SampleHistory()
    both = ("a:1", "b:1")
    past.add({at: one_channel_sample(0.0, 10) for at in both}, 0.0)
    past.add({"a:1": one_channel_sample(30.0, 10)}, 30.0)
    (row,) = past.add({"a:1": one_channel_sample(61.0, 10)}, 61.0).rows

    assert (61.0, "stuck, nsqd gone") == (row.unfinished_seconds, row.state)


def test_the_number_of_gone_nsqds_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """An nsqlookupd that lists new addresses in each answer does not fill the memory."""
    monkeypatch.setattr(module, "GONE_MAX", 20)
    past = SampleHistory()
    for number in range(30):
        now = past.add({f"{number}:1": one_channel_sample(float(number))}, float(number))

    assert {f"{number}:1" for number in range(9, 29)} == now.gone.keys()


def test_each_topic_has_a_state() -> None:
    """A topic without a channel keeps its messages for the first one."""
    full, paused = topic("full", channel("c"), depth=8), topic("paused", depth=1, paused=True)
    rows = SampleHistory().add({"a": sample(topic("bare", depth=1), full, paused)}, 5.0).rows
    states = {row.topic: row.state for row in rows if not row.channel}
    assert {"bare": "no channel", "full": "ok", "paused": "paused"} == states
    assert "paused, nsqd gone" == OverviewRow("t", base="paused", nodes=1, gone=("a:1",)).state


def test_the_worst_state_comes_first() -> None:
    """Rows are sorted by their state; an nsqd that is gone makes each state worse."""
    stuck = OverviewRow("t", "a", base="stuck", nodes=1)
    gone, partly = OverviewRow("t", "b"), OverviewRow("t", "c", gone=("a:1",), nodes=1)
    alone = OverviewRow("t", "e", base="no consumers", nodes=1)
    rows = [OverviewRow("t", "d", nodes=1), partly, alone, gone, stuck]

    ordered = sorted(rows, key=lambda row: row.severity, reverse=True)
    assert ["b", "a", "e", "c", "d"] == [row.channel for row in ordered]
