"""cluster.figures: `/stats` within bounds, and what lag and the states of a channel mean."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from sparq.cluster import figures
from sparq.cluster.figures import STATES, Client, NsqdFigures, channel_state, lag_of, read, state_of

HUGE = 10**400
CLIENT = {"client_id": "a", "hostname": "h", "more": [1]}


def document(**changes: Any) -> dict[str, Any]:
    """A `/stats` document with a topic, a channel and a client; the changes are of the channel."""
    channel = {"channel_name": "c", "depth": 5, "in_flight_count": 1, "clients": [CLIENT]}
    topic = {"topic_name": "t", "depth": 2, "channels": [{**channel, **changes}]}
    return {"version": "1.3.0", "health": "OK", "start_time": 7, "topics": [topic]}


def parsed(**changes: Any) -> NsqdFigures:
    return read(json.dumps(document(**changes)).encode())


def test_figures_are_read() -> None:
    """Fields that a node omits are 0, empty or unknown; fields that nobody knows are ignored."""
    stats = parsed(message_count=20, deferred_count=4)

    (topic,) = stats.topics
    (channel,) = topic.channels
    assert (7, 2, 10, "up") == (topic.waiting, topic.left, channel.left, stats.state)
    assert (10, None) == (channel.finished, channel.oldest_waiting_seconds)
    assert [("t", "c", Client(client_id="a", hostname="h"))] == [*stats.clients()]
    assert (topic, channel) == (stats.topic("t"), stats.channel("t", "c"))
    assert (None, None) == (stats.topic("x"), stats.channel("t", "x"))
    assert [] == read(b'{"version":"0.3","topics":null}').topics
    old = {"status_code": 200, "data": document()}
    assert 7 == read(json.dumps(old).encode()).topics[0].waiting


def test_names_that_nsq_does_not_allow_are_left_out() -> None:
    """So is what belongs to them."""
    other = document(channel_name="a/b")
    other["topics"].append({**other["topics"][0], "topic_name": "<script>"})

    stats = read(json.dumps(other).encode())
    assert (["t"], []) == ([topic.topic_name for topic in stats.topics], [*stats.clients()])


def test_sparqs_nsqd_reports_no_age_if_no_message_waits() -> None:
    """Its lag is then 0; Go's nsqd reports no age at all, and one before 0 does not exist."""
    ages = []
    for age, version in ((None, "0.1"), (3.5, "0.1"), (-1, "0.1"), (None, None)):
        sent = {**document(oldest_waiting_seconds=age), "sparq_version": version}
        channel = read(json.dumps(sent).encode()).channel("t", "c")
        assert channel is not None
        ages.append(channel.oldest_waiting_seconds)

    assert [0.0, 3.5, 0.0, None] == ages


HOSTILE: dict[str, Any] = {
    "no JSON": b"text",
    "NaN": b'{"version":"1","start_time":NaN}',
    "not an object": b"[]",
    "no version": b"{}",
    "deep": b'{"x":' + b"[" * 100_000,
    "a list of numbers": {"version": "1", "topics": [5]},
    "a topic without a name": {"version": "1", "topics": [{}]},
    "a huge start": {**document(), "start_time": HUGE},
    "a start in the year 10000": {**document(), "start_time": 253_402_300_800},
    "a start before 1970": {**document(), "start_time": -1},
    "a number as health": {**document(), "health": 5},
    "a huge depth": document(depth=HUGE),
    "a depth beyond 64 bits": document(depth=1 << 63),
    "a text as depth": document(depth="5"),
    "true as depth": document(depth=True),
    "half a message": document(depth=0.5),
    "a number as name": document(channel_name=5),
    "a number as pause": document(paused=1),
    "a huge age": document(oldest_waiting_seconds=1e300),
    "an infinite age": b'{"version":"1","topics":[{"topic_name":"t","channels":[{"channel_name":'
    b'"c","oldest_waiting_seconds":1e999}]}]}',
    "a text as client": document(clients=["x"]),
    "a huge figure of a client": document(clients=[{"ready_count": HUGE}]),
    "a huge latency": document(e2e_processing_latency={"count": HUGE}),
    "a list as commit": document(range_commit_seconds=[]),
}
"""What a faulty or hostile node may send as its `/stats`."""


@pytest.mark.parametrize("kind", HOSTILE)
def test_an_answer_that_no_nsqd_sends_is_unreadable(kind: str) -> None:
    """There is one error for all of them, in one line."""
    sent = HOSTILE[kind]
    body = sent if isinstance(sent, bytes) else json.dumps(sent).encode()

    with pytest.raises(ValueError, match=r"^unreadable statistics: [ -~]+$"):
        read(body)


@pytest.mark.parametrize(
    ("finish_count", "expected"), [(-1, 0), (3, 3), (1 << 62, 1 << 62)], ids=str
)
def test_no_figure_leaves_64_bits(finish_count: int, expected: int) -> None:
    """Also those that are computed from a node's extreme figures."""
    low, high = -(1 << 63), (1 << 63) - 1
    for sent in ({"message_count": low, "depth": high}, {"message_count": 0, "depth": low}):
        channel = parsed(**sent, finish_count=finish_count).channel("t", "c")
        assert channel is not None
        assert expected == channel.finished


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        ("ok", {"clients": 1}),
        ("ok", {"clients": 1, "unfinished": 5, "lag_seconds": 60.0, "idle_seconds": 59.9}),
        ("no consumers", {"unfinished": 5, "lag_seconds": 99.0, "idle_seconds": 99.0}),
        ("stuck", {"clients": 1, "unfinished": 5, "lag_seconds": 99.0, "idle_seconds": 60.0}),
        ("behind", {"clients": 1, "unfinished": 5, "lag_seconds": 60.1}),
        ("ok", {"clients": 1, "unfinished": 0, "lag_seconds": 60.1}),
        ("ok", {"has_reader": True, "unfinished": 5, "idle_seconds": 119.0}),
        ("stuck", {"has_reader": True, "unfinished": 5, "idle_seconds": 120.0}),
        ("paused", {"paused": True, "unfinished": 5, "idle_seconds": 99.0}),
    ],
)
def test_each_channel_has_a_state(words: str, facts: dict[str, Any]) -> None:
    """The first rule that applies counts."""
    none = {"paused": False, "clients": 0, "has_reader": False, "unfinished": 0}
    none |= {"idle_seconds": 0.0}

    assert words == channel_state(**{**none, "lag_seconds": math.nan, **facts})
    assert words in STATES


def test_a_paused_topic_and_a_gone_node_follow_the_state() -> None:
    """They replace `ok`, since a channel that gets no messages is not simply ok."""
    assert "topic paused" == state_of("ok", topic_paused=True)
    assert "nsqd gone" == state_of("ok", gone=True)
    words = state_of("paused", topic_paused=True, gone=True)
    assert "paused, topic paused, nsqd gone" == words


def test_lag_is_the_age_of_the_oldest_waiting_message() -> None:
    """It is estimated if a node does not report it, and unknown while none is finished."""
    assert 12.0 == lag_of(12.0, 7, None)
    assert 5.0 == lag_of(None, 50, 10.0)
    assert 0.0 == lag_of(None, 0, None)
    assert [True, True] == [math.isnan(lag_of(None, 5, rate)) for rate in (None, 0.0)]
    assert figures.STUCK_SECONDS == figures.BEHIND_SECONDS
