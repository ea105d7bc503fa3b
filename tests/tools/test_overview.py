"""Rates, sums, lag and states from the statistics of Go's and sparq's nsqds, and their history."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sparq.tools import overview as module
from sparq.tools.overview import (
    Counts,
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


def stats(*topics: dict[str, Any], start_time: int = 7, health: str = "OK") -> dict[str, Any]:
    return {"topics": list(topics), "start_time": start_time, "health": health}


def between(before: dict[str, Any], now: dict[str, Any], seconds: float = 2.0) -> Overview:
    """Return the overview of one nsqd between two samples."""
    return overview({"a:1": sample_of(before, 100.0)}, {"a:1": sample_of(now, 100.0 + seconds)})


def test_rates_are_growth_per_second() -> None:
    """Published, finished and returned messages per second.

    Go's nsqd has no counter of finished messages: their rate follows from the other counters.
    """
    before = stats(topic("t", 100, channel("c", 100, 40, in_flight_count=10)))
    facts = {"requeue_count": 4, "timeout_count": 2, "deferred_count": 1}
    now = stats(topic("t", 300, channel("c", 300, 89, in_flight_count=10, **facts)))

    seen = between(before, now)

    assert [OverviewRow("t", "c", 100.0, 75.0, 89, 10, 1, 2.0, 1.0, 1)] == seen.rows
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
    seen = overview({}, {"a:1": sample_of(stats(topic("t", 9, channel("c", 9, 3))), 5.0)})

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


def test_lag_is_depth_divided_by_the_finish_rate() -> None:
    """Lag is 0 without messages, and infinite if none is finished."""
    assert 5.0 == OverviewRow("t", "c", out_rate=10.0, depth=40, in_flight=10).lag_seconds
    assert 0.0 == OverviewRow("t", "c").lag_seconds
    assert math.inf == OverviewRow("t", "c", out_rate=0.0, depth=1).lag_seconds
    assert OverviewRow("t", "", depth=1).lag_seconds is None
    stranded = OverviewRow("t", "c", out_rate=10.0, depth=40, in_flight=10, stranded=30)
    assert 2.0 == stranded.lag_seconds


def test_the_oldest_message_of_all_nsqds_counts() -> None:
    """The highest reported age counts; Go's nsqd reports none, and negative ages are ignored."""
    ages: list[Any] = [3.5, 12, None, -1]
    samples = {
        f"{number}:1": sample_of(
            stats(topic("t", 1, channel("c", 1, 1, oldest_waiting_seconds=age))), 0
        )
        for number, age in enumerate(ages)
    }

    assert 12.0 == overview({}, samples).rows[0].oldest_seconds
    assert between(stats(), stats(topic("t", 1, channel("c", 1, 1)))).rows[0].oldest_seconds is None


def test_an_nsqd_that_is_gone_keeps_its_last_figures() -> None:
    """The messages that wait there are counted and marked; it adds no rate and no clients."""
    facts = {"in_flight_count": 2, "oldest_waiting_seconds": 5.0}
    last = sample_of(stats(topic("t", 9, channel("c", 9, 7, **facts))), 100.0)
    alive = sample_of(stats(topic("t", 1, channel("c", 1, 1))), 130.0)

    both = overview({}, {"a:1": alive}, {"b:1": last}, 130.0)
    alone = overview({}, {}, {"b:1": last}, 130.0)

    (row,) = both.rows
    assert (8, 2, 1, ("b:1",), 9) == (
        *(row.depth, row.in_flight, row.clients),
        *(row.gone, row.stranded),
    )
    assert 35.0 == row.oldest_seconds
    assert "nsqd gone" == row.state.words
    assert {"b:1": GoneNsqd(30.0, 7, 2, 0)} == both.gone
    assert (7, "nsqd gone", 0) == (
        *(alone.rows[0].depth, alone.rows[0].state.words),
        alone.nsqds,
    )


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"topics": 1, "start_time": 1, "health": "OK"},
        {"topics": [{}], "start_time": 1, "health": "OK"},
        {"topics": ["t"], "start_time": 1, "health": "OK"},
        {"topics": None, "start_time": "1", "health": "OK"},
        stats(topic("t", True)),
        stats(topic("t", 1, {"channel_name": "c"})),
    ],
)
def test_figures_of_another_form_are_refused(broken: dict[str, Any]) -> None:
    """Every error in the statistics raises the same exception."""
    with pytest.raises(ValueError, match="unreadable statistics"):
        sample_of(broken, 0.0)


def test_control_characters_are_removed() -> None:
    """Invalid names are left out, and health texts lose their control characters."""
    seen = between(
        stats(), stats(topic("t\x1b[2J", 1), topic("t", 1, channel("c\n", 1, 1)), health="NO\x1b]")
    )

    assert ["t"] == [row.topic for row in seen.rows]
    assert {"a:1": "NO ]"} == seen.ill


def one_channel_sample(
    at: float, finished: int = 0, depth: int = 5, *, start_time: int = 7
) -> NsqdSample:
    """Return a sample of one channel with a consumer."""
    return NsqdSample(at, start_time, {("t", "c"): Counts(9, depth, finished, clients=1)})


def test_idle_time_counts_from_the_last_finished_message() -> None:
    """A channel is idle only while messages wait; the next finished message ends that."""
    past = SampleHistory()
    idle = []
    for at, finished, depth in (
        (0, 0, 5),
        (6, 0, 5),
        (12, 0, 5),
        (14, 1, 4),
        (15, 1, 4),
        (16, 1, 0),
    ):
        (row,) = past.add({"a:1": one_channel_sample(at, finished, depth)}, float(at)).rows
        idle.append((row.idle_seconds, row.state.words))

    expected = [(None, "ok"), (6.0, "ok"), (12.0, "stuck"), (None, "ok"), (1.0, "ok"), (None, "ok")]
    assert expected == idle


def test_with_patience_0_one_interval_is_enough() -> None:
    """With patience 0 a channel is stuck if it finished nothing in one interval."""
    past = SampleHistory(patience_seconds=0.0)
    past.add({"a:1": one_channel_sample(0.0)}, 0.0)
    assert "stuck" == past.add({"a:1": one_channel_sample(1.0)}, 1.0).rows[0].state.words
    assert "ok" == past.add({"a:1": one_channel_sample(2.0, 1)}, 2.0).rows[0].state.words


def test_an_nsqd_that_is_gone_is_kept_until_it_is_back_or_forgotten() -> None:
    """The last figures stay, with the time since; on return the rate covers all that time."""
    past = SampleHistory()
    past.add({"a:1": one_channel_sample(0.0), "b:1": one_channel_sample(0.0, 10)}, 0.0)
    gone = past.add({"a:1": one_channel_sample(2.0)}, 2.0)
    still = past.add({"a:1": one_channel_sample(4.0)}, 4.0)

    assert (2.0, 4.0) == (gone.gone["b:1"].seconds, still.gone["b:1"].seconds)
    assert (10, ("b:1",)) == (still.rows[0].depth, still.rows[0].gone)
    assert [("a:1", False), ("b:1", True)] == [
        (part.address, part.is_gone) for part in past.parts(("t", "c"))
    ]
    back = past.add({"a:1": one_channel_sample(8.0), "b:1": one_channel_sample(8.0, 26)}, 8.0)
    assert ({}, 2.0) == (back.gone, back.rows[0].out_rate)
    past.add({"a:1": one_channel_sample(9.0)}, 9.0)
    past.forget_gone()
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


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        ("ok", {"clients": 1}),
        ("ok", {"clients": 1, "depth": 5, "out_rate": 1.0}),
        ("ok", {"clients": 1, "depth": 5, "out_rate": 0.0, "idle_seconds": 9.9}),
        ("ok", {"clients": 1, "deferred": 5, "out_rate": 0.0, "idle_seconds": 99.0}),
        ("no consumers", {}),
        ("no consumers", {"depth": 5, "out_rate": 0.0, "idle_seconds": 99.0}),
        ("stuck", {"clients": 1, "depth": 5, "out_rate": 0.0, "idle_seconds": 10.0}),
        ("stuck", {"clients": 1, "in_flight": 5, "out_rate": 0.0, "idle_seconds": 10.0}),
        ("stuck", {"clients": 1, "depth": 5, "idle_seconds": 0.1, "patience_seconds": 0.0}),
        ("behind", {"clients": 1, "depth": 600, "out_rate": 10.0}),
        ("ok", {"clients": 1, "depth": 599, "out_rate": 10.0}),
        ("behind", {"clients": 1, "depth": 1, "out_rate": 10.0, "oldest_seconds": 60.0}),
        ("ok", {"readers": 1, "depth": 5, "out_rate": 0.0, "idle_seconds": 119.0}),
        ("stuck", {"readers": 1, "depth": 5, "out_rate": 0.0, "idle_seconds": 120.0}),
        ("paused", {"is_paused": True, "depth": 5, "idle_seconds": 99.0}),
        ("nsqd gone", {"nsqds": 0, "is_paused": True}),
        ("nsqd gone", {"gone": ("a:1",), "clients": 1}),
        ("no consumers, nsqd gone", {"gone": ("a:1",), "depth": 9, "stranded": 9}),
    ],
)
def test_each_channel_has_a_state(words: str, facts: dict[str, Any]) -> None:
    """The words are those of the table in the module."""
    assert words == OverviewRow("t", "c", **facts).state.words


def test_each_topic_has_a_state() -> None:
    """A topic without a channel keeps its messages for the first one."""
    assert "no channel" == OverviewRow("t").state.words
    assert "ok" == OverviewRow("t", has_channels=True).state.words
    assert "paused" == OverviewRow("t", is_paused=True).state.words


def test_the_worst_state_comes_first() -> None:
    """Rows are sorted by their state; an nsqd that is gone makes each state worse."""
    stuck = OverviewRow("t", "a", clients=1, depth=1, idle_seconds=60.0)
    gone, partly = OverviewRow("t", "b", nsqds=0), OverviewRow("t", "c", clients=1, gone=("a:1",))
    rows = [OverviewRow("t", "d", clients=1), partly, OverviewRow("t", "e"), gone, stuck]

    ordered = sorted(rows, key=lambda row: row.state, reverse=True)
    assert ["b", "a", "e", "c", "d"] == [row.channel for row in ordered]


HUGE = 10**400


@pytest.mark.parametrize(
    "figures",
    [
        {"oldest_waiting_seconds": HUGE},
        {"oldest_waiting_seconds": math.inf},
        {"oldest_waiting_seconds": "old"},
        {"depth": HUGE},
        {"message_count": -HUGE},
        {"channel_name": 5},
        {"channel_name": ["c"]},
    ],
)
def test_impossible_figures_are_a_faulty_node(figures: dict[str, Any]) -> None:
    """What an nsqd says is data: figures beyond 64 bits or of another type are one ValueError."""
    with pytest.raises(ValueError, match="unreadable statistics"):
        sample_of(stats(topic("t", 1, {**channel("c", 1, 1), **figures})), 1.0)


@pytest.mark.parametrize(
    "answer",
    [
        stats(start_time=HUGE),
        {"topics": 5, "start_time": 1, "health": "OK"},
        {"topics": ["t"], "start_time": 1, "health": "OK"},
        {"topics": [{**topic("t", 1), "channels": ["c"]}], "start_time": 1, "health": "OK"},
    ],
)
def test_answers_of_another_form_are_a_faulty_node(answer: dict[str, Any]) -> None:
    """A huge start time, and lists of other things than objects, are one ValueError."""
    with pytest.raises(ValueError, match="unreadable statistics"):
        sample_of(answer, 1.0)
