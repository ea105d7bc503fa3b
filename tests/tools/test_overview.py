"""Rates, sums, lag and states from the statistics of Go's and sparq's nsqds, and their history."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparq.cluster.figures import NsqdFigures, read
from sparq.tools import overview as module
from sparq.tools.overview import (
    GoneNsqd,
    NsqdSample,
    Overview,
    OverviewRow,
    SampleHistory,
    overview,
    sample_of,
)


def channel(name: str, messages: int, depth: int, **facts: Any) -> dict[str, Any]:
    """Return a channel's statistics as in Go's nsqd."""
    return {
        **{"channel_name": name, "message_count": messages, "depth": depth, "paused": False},
        **{"in_flight_count": 0, "deferred_count": 0, "requeue_count": 0, "timeout_count": 0},
        "client_count": 1,
        **facts,
    }


def topic(name: str, messages: int, *channels: dict[str, Any], depth: int = 0) -> dict[str, Any]:
    return {
        **{"topic_name": name, "message_count": messages, "depth": depth, "paused": False},
        "channels": list(channels),
    }


def stats(*topics: dict[str, Any], start_time: int = 7, **changes: Any) -> NsqdFigures:
    document = {"version": "1.3.0", "health": "OK", "start_time": start_time, **changes}
    return read(json.dumps({**document, "topics": topics}).encode())


def between(before: NsqdFigures, now: NsqdFigures, seconds: float = 2.0) -> Overview:
    """Return the overview of one nsqd between two samples."""
    return overview(
        {"a:1": sample_of(before, 100.0)}, {"a:1": sample_of(now, 100.0 + seconds)}, {}, 102.0
    )


def test_rates_are_growth_per_second() -> None:
    """Published, finished and returned messages per second.

    Go's nsqd has no counter of finished messages: their rate follows from the other counters.
    """
    before = stats(topic("t", 100, channel("c", 100, 40, in_flight_count=10)))
    facts = {"requeue_count": 4, "timeout_count": 2, "deferred_count": 1}
    now = stats(topic("t", 300, channel("c", 300, 89, in_flight_count=10, **facts)))

    seen = between(before, now)

    (row,) = seen.rows
    assert (100.0, 75.0, 2.0, 1.0) == (
        *(row.in_rate, row.out_rate),
        *(row.requeue_rate, row.timeout_rate),
    )
    assert (89, 10, 1, 1) == (row.depth, row.in_flight, row.deferred, row.clients)
    assert (1, 1, 100.0) == (seen.nsqds, seen.topics, seen.in_rate)


def test_sparqs_counter_of_finished_messages_is_used() -> None:
    """An emptied channel has finished nothing: sparq's own counter is used."""
    before = stats(topic("t", 100, channel("c", 100, 100, finish_count=0)))
    now = stats(topic("t", 100, channel("c", 100, 0, finish_count=0)))

    assert 0.0 == between(before, now).rows[0].out_rate


def test_figures_of_all_nsqds_are_summed() -> None:
    """An nsqd that is new or restarted adds its figures but no rate."""
    before = stats(topic("t", 10, channel("c", 10, 10)))
    grown = stats(topic("t", 30, channel("c", 30, 10)))
    anew = stats(topic("t", 500, channel("c", 500, 5, paused=True)), start_time=8)
    samples = {"a:1": sample_of(before, 0.0), "b:1": sample_of(before, 0.0)}

    seen = overview(
        samples,
        {
            "a:1": sample_of(grown, 10.0),
            "b:1": sample_of(anew, 10.0),
            "c:1": sample_of(grown, 10.0),
        },
        {},
        10.0,
    )

    (row,) = seen.rows
    assert (25, 2.0, 2.0, 3, True) == (
        *(row.depth, row.in_rate, row.out_rate),
        *(row.clients, row.is_paused),
    )
    assert (3, 25) == (seen.nsqds, seen.total("depth"))


def test_a_counter_that_restarts_adds_nothing() -> None:
    """The counters of a topic that was deleted and created again restart at 0."""
    before = stats(topic("t", 100, channel("c", 100, 0)))
    now = stats(topic("t", 3, channel("c", 3, 3)))

    (row,) = between(before, now).rows
    assert (0.0, 0.0, 3) == (row.in_rate, row.out_rate, row.depth)


def test_the_first_sample_has_no_rates() -> None:
    """The first sample has no rates."""
    seen = overview({}, {"a:1": sample_of(stats(topic("t", 9, channel("c", 9, 3))), 5.0)}, {}, 5.0)

    (row,) = seen.rows
    assert (None, None, None) == (row.in_rate, row.out_rate, row.lag_seconds)
    assert (None, None) == (seen.in_rate, seen.total("out_rate"))


def test_a_topic_with_messages_in_no_channel_has_a_row() -> None:
    """A topic has its own row without a channel, or with messages that are in no channel."""
    now = stats(
        topic("bare", 4),
        topic("paused", 8, channel("c", 0, 0), depth=8),
        topic("plain", 2, channel("c", 2, 0)),
    )

    rows = between(stats(), now).rows

    assert [("bare", ""), ("paused", ""), ("paused", "c"), ("plain", "c")] == [
        (row.topic, row.channel) for row in rows
    ]
    assert [0, 8, 0, 0] == [row.depth for row in rows]
    assert rows[0].out_rate is None


def test_lag_is_the_age_of_the_oldest_message_of_all_nsqds() -> None:
    """If an nsqd reports none, as Go's, it is estimated; a topic's own row has none."""
    ages = [3.5, 12, None]
    samples = {
        f"{number}:1": sample_of(
            stats(topic("t", 1, channel("c", 1, 1, oldest_waiting_seconds=age))), 0
        )
        for number, age in enumerate(ages)
    }

    assert overview({}, samples, {}, 0).rows[0].lag_seconds is None
    del samples["2:1"]
    assert 12.0 == overview({}, samples, {}, 0).rows[0].lag_seconds
    facts = {"out_rate": 10.0, "depth": 40, "in_flight": 10}
    assert 5.0 == OverviewRow("t", "c", ages=(99.0, None), **facts).lag_seconds
    assert OverviewRow("t", depth=1).lag_seconds is None


def test_an_nsqd_that_is_gone_is_named_with_its_last_figures() -> None:
    """They are in no sum: its messages cannot be delivered now."""
    facts = {"in_flight_count": 2, "oldest_waiting_seconds": 5.0}
    last = sample_of(stats(topic("t", 9, channel("c", 9, 7, **facts))), 100.0)
    alive = sample_of(stats(topic("t", 1, channel("c", 1, 1))), 130.0)

    both = overview({}, {"a:1": alive}, {"b:1": last}, 130.0)
    alone = overview({}, {}, {"b:1": last}, 130.0)

    (row,) = both.rows
    assert (1, 0, 1, ("b:1",)) == (row.depth, row.in_flight, row.clients, row.gone)
    assert "nsqd gone" == row.state.words
    assert {"b:1": GoneNsqd(30.0, 7, 2, 0)} == both.gone
    assert (0, "nsqd gone", 0) == (
        *(alone.rows[0].nsqds, alone.rows[0].state.words),
        alone.nsqds,
    )


def test_an_nsqd_that_was_drained_is_no_alarm() -> None:
    """It was drained, has nothing left and is gone, as intended; with messages it is an alarm."""
    past = SampleHistory()
    drained = stats(topic("t", 9, channel("c", 9, 0)), draining=True)
    full = stats(topic("t", 9, channel("c", 9, 1)), draining=True)
    past.add({"a:1": sample_of(drained, 0.0), "b:1": sample_of(full, 0.0)}, 0.0)
    seen = past.add({}, 2.0)

    assert ({"b:1"}, {"a:1"}) == (seen.gone.keys(), seen.drained)
    assert [("b:1",)] == [row.gone for row in seen.rows if row.channel]


def test_a_channel_of_a_paused_topic_says_so() -> None:
    """So does a full disk of a node, instead of being up."""
    paused = {**topic("t", 1, channel("c", 1, 0)), "paused": True}
    seen = between(stats(), stats(paused, health="NOK\x1b[2J", reserve={"is_short": True}))

    (row,) = seen.rows
    assert ("topic paused", True, False) == (row.state.words, row.topic_paused, row.is_paused)
    assert {"a:1": "disk full: NOK [2J"} == seen.ill


def one_channel_sample(
    at: float, finished: int = 0, depth: int = 5, *, start_time: int = 7
) -> NsqdSample:
    """Return a sample of one channel with a consumer."""
    facts = {"finish_count": finished, "oldest_waiting_seconds": 0.0}
    return sample_of(
        stats(topic("t", 9, channel("c", 9, depth, **facts)), start_time=start_time), at
    )


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
        idle.append((row.idle_seconds, row.state.words))

    expected = [
        (None, "ok"),
        (30.0, "ok"),
        (60.0, "stuck"),
        (None, "ok"),
        (4.0, "ok"),
        (None, "ok"),
    ]
    assert expected == idle


def test_an_nsqd_that_is_gone_is_kept_until_it_is_back_or_forgotten() -> None:
    """The last figures stay, with the time since; on return the rate covers all that time."""
    past = SampleHistory()
    past.add({"a:1": one_channel_sample(0.0), "b:1": one_channel_sample(0.0, 10)}, 0.0)
    gone = past.add({"a:1": one_channel_sample(2.0)}, 2.0)
    still = past.add({"a:1": one_channel_sample(4.0)}, 4.0)

    assert (2.0, 4.0) == (gone.gone["b:1"].seconds, still.gone["b:1"].seconds)
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


def test_an_nsqd_that_was_restarted_has_no_rate_at_first() -> None:
    """A restarted nsqd's counters begin at 0."""
    past = SampleHistory()
    past.add({"a:1": one_channel_sample(0.0, 50)}, 0.0)
    assert past.add({"a:1": one_channel_sample(2.0, 1, start_time=8)}, 2.0).rows[0].out_rate is None


def test_the_number_of_gone_nsqds_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """An nsqlookupd that lists new addresses in each answer does not fill the memory."""
    monkeypatch.setattr(module, "GONE_MAX", 20)
    past = SampleHistory()
    for number in range(30):
        now = past.add({f"{number}:1": one_channel_sample(float(number))}, float(number))

    assert {f"{number}:1" for number in range(9, 29)} == now.gone.keys()


def test_each_topic_has_a_state() -> None:
    """A topic without a channel keeps its messages for the first one."""
    assert "no channel" == OverviewRow("t").state.words
    assert "ok" == OverviewRow("t", has_channels=True).state.words
    assert "paused" == OverviewRow("t", is_paused=True).state.words


def test_the_worst_state_comes_first() -> None:
    """Rows are sorted by their state; an nsqd that is gone makes each state worse."""
    stuck = OverviewRow("t", "a", clients=1, depth=1, ages=(0.0,), idle_seconds=60.0)
    gone, partly = OverviewRow("t", "b", nsqds=0), OverviewRow("t", "c", clients=1, gone=("a:1",))
    rows = [OverviewRow("t", "d", clients=1), partly, OverviewRow("t", "e"), gone, stuck]

    ordered = sorted(rows, key=lambda row: row.state, reverse=True)
    assert ["b", "a", "e", "c", "d"] == [row.channel for row in ordered]
