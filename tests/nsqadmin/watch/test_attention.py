"""Notices: sentences about what needs attention."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sparq.nsqadmin.watch.rows import Lookupd, Notice
from sparq.nsqadmin.watch.snapshot import ClusterSnapshot
from tests.nsqadmin.watch.figures import Cluster, channel, snapshot, stats, topic


def levels_and_texts(notices: Sequence[Notice]) -> list[tuple[str, str]]:
    """Level and sentence of each notice."""
    return [(notice.level, notice.sentence) for notice in notices]


def only_notice(found: ClusterSnapshot) -> Notice:
    """The only notice."""
    (notice,) = found.notices
    return notice


def test_a_healthy_cluster_has_no_notices() -> None:
    """A healthy cluster has no notices."""
    fine = stats(topic("t", channel("c", clients=3, depth=1, oldest=0.1)))

    assert () == snapshot(fine, fine).notices


def test_consumers_that_finish_nothing_are_reported() -> None:
    """The sentence has channel, duration and messages; the key stays when figures change."""
    cluster = Cluster()
    keys = set()
    for depth in (100, 200):
        for _ in range(2):
            figures = channel("c", depth=depth, in_flight=6, clients=3, finished=5, messages=500)
            cluster.answers("a:4151", stats(topic("orders#ephemeral", figures)))
            found = cluster.snapshot()
            cluster.now += 65
        keys.add(only_notice(found).key)

    notice = only_notice(found)
    assert len(keys) == 1
    assert "bad" == notice.level
    assert notice.sentence == (
        "orders#ephemeral/c is stuck: 3 consumers have finished nothing for 3 min; "
        "200 messages wait, 6 in flight."
    )
    assert "/topics/orders%23ephemeral/c" == notice.link


def test_messages_without_consumers_are_a_warning() -> None:
    """Messages without consumers are a warning, and `bad` while their number grows."""
    cluster = Cluster()
    cluster.answers("a:4151", stats(topic("t", channel("c", depth=1))))
    assert [("warn", "t/c has no consumers; 1 message waits.")] == levels_and_texts(
        cluster.snapshot().notices
    )

    cluster.now += 30
    cluster.answers("a:4151", stats(topic("t", channel("c", depth=301))))

    sentence = "t/c has no consumers; 301 messages wait, 10 more per second."
    assert [("bad", sentence)] == levels_and_texts(cluster.snapshot().notices)


def test_a_growing_lag_is_a_warning() -> None:
    """A channel that grows is a warning, even before it is behind."""
    cluster = Cluster()
    for at in range(4):
        figures = channel("c", depth=at * 300, messages=at * 500, finished=at * 200, clients=1)
        cluster.answers("a:4151", stats(topic("t", figures)))
        found = cluster.snapshot()
        cluster.now += 10

    sentence = (
        "t/c grows by 30 messages per second; 900 messages wait."
        " Its consumers finish 20 per second."
    )
    assert [("warn", sentence)] == levels_and_texts(found.notices)


def test_a_shrinking_lag_is_a_note() -> None:
    """A lag that shrinks is only a note, with the time until it is gone."""
    cluster = Cluster()
    for at in range(4):
        depth = 1000 - at * 100
        figures = channel("c", depth=depth, finished=at * 100, clients=1, oldest=7300.0)
        cluster.answers("a:4151", stats(topic("t", figures)))
        found = cluster.snapshot()
        cluster.now += 10

    sentence = (
        "t/c is behind by 2 h 1 min, 700 messages wait; at this rate it will catch up in 70 s."
    )
    assert [("note", sentence)] == levels_and_texts(found.notices)


def test_a_gone_node_is_reported() -> None:
    """The sentence has the reason, the duration and the number of messages waiting there."""
    cluster = Cluster()
    cluster.answers("a:4151", stats(topic("t", channel("c", depth=1200, in_flight=34, clients=1))))
    cluster.now += 7
    cluster.answers(
        "a:4151", None, state="gone", error="connection refused", since_at=cluster.now - 5
    )

    notice = only_notice(cluster.snapshot())

    sentence = "a:4151 has been gone for 5 s (connection refused); 1,234 messages wait there."
    assert ("bad", sentence, "/nodes/a:4151") == (notice.level, notice.sentence, notice.link)


def test_silent_and_unregistered_nodes_are_warnings() -> None:
    """Silent nodes and unregistered ones, which are neither up nor gone, are warnings."""
    cluster = Cluster()
    for name in "ab":
        answer = stats(topic("t", channel("c", depth=2, clients=1, oldest=0.0)))
        cluster.answers(f"{name}:4151", answer)
    cluster.answers("a:4151", None, state="silent", since_at=cluster.now - 3)
    cluster.answers("b:4151", None, state="unregistered", since_at=cluster.now - 60)

    silent = "a:4151 has not answered for 3 s; the figures of its 2 messages are out of date."
    lost = "b:4151 runs, but no nsqlookupd has listed it for 60 s: consumers do not find it."
    assert [("warn", silent), ("warn", lost)] == levels_and_texts(cluster.snapshot().notices)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            'got response 401 Unauthorized "x"',
            "requires a token: set --upstream-token to a token that is valid there"
            ' (got response 401 Unauthorized "x")',
        ),
        (
            'got response 403 Forbidden "x"',
            "does not allow the token of --upstream-token to read all topics"
            ' (got response 403 Forbidden "x")',
        ),
        ('got response 500 "x"', 'answered with an error: got response 500 "x"'),
        ("unreadable statistics: x", "is faulty: it sends unreadable statistics: x"),
    ],
    ids=["no token", "no role", "refused", "no figures"],
)
def test_missing_figures_have_a_reason(error: str, sentence: str) -> None:
    """For nodes and nsqlookupds; if a token is required, the sentence has --upstream-token."""
    cluster = Cluster()
    cluster.answers("a:4151", None, state="silent", since_at=cluster.now - 3, error=error)

    end = ", for 3 s; the figures of its 0 messages are out of date."
    found = cluster.snapshot(Lookupd("l1:4161", ""), Lookupd("l2:4161", error))
    sentences = {notice.sentence for notice in found.notices}
    assert {f"a:4151 {sentence}{end}", f"nsqlookupd l2:4161 {sentence}."} <= sentences


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"health": "NOK - input/output error"},
            "a:4151 has a disk error: NOK - input/output error.",
        ),
        (
            {"health": "NOK - full", "reserve": {"is_short": True}},
            "a:4151 refuses publishes: its disk is full.",
        ),
    ],
    ids=["health", "short"],
)
def test_disk_errors_and_full_disks_are_bad(changes: dict[str, object], sentence: str) -> None:
    """A disk error and a full disk are `bad`, with nsqd's text for the error."""
    assert [("bad", sentence)] == levels_and_texts(snapshot(stats(**changes)).notices)


def test_different_versions_are_a_warning() -> None:
    """Different versions are a warning, with sparq's version after NSQ's."""
    found = snapshot(stats(), stats(), stats(is_go=True, version="1.2.0"))

    sentence = "Nodes have different versions: 1.2.0 on 1 and 1.3.0 (sparq 0.1.0) on 2."
    assert [("warn", sentence)] == levels_and_texts(found.notices)


def test_nsqlookupds_that_disagree_or_fail_are_reported() -> None:
    """A disagreement is a warning: consumers would find different nodes; all failing is `bad`."""
    cluster = Cluster()
    cluster.answers("a:4151", stats())
    lookupds = [
        Lookupd("l1:4161", "", ("a:4151", "b:4151")),
        Lookupd("l2:4161", "", ("a:4151",)),
        Lookupd("l3:4161", "connection refused"),
    ]

    found = cluster.snapshot(*lookupds, refused={"c:22": "may not be called"})

    assert [
        ("warn", "nsqlookupd l3:4161 does not answer: connection refused."),
        ("warn", "nsqlookupd l2:4161 does not list b:4151, but another does."),
        ("warn", "c:22: may not be called."),
    ] == levels_and_texts(found.notices)
    alone = cluster.snapshot(Lookupd("l3:4161", "connection refused"))
    assert ["bad"] == [notice.level for notice in alone.notices]


def test_topics_without_a_channel_and_paused_ones_are_grouped() -> None:
    """Topics without a channel and paused ones have one sentence each for all of a kind."""
    found = snapshot(
        stats(
            topic("a", depth=4),
            topic("b"),
            topic("p", channel("c", paused=True, depth=1), paused=True),
        )
    )

    assert [
        ("warn", "2 topics have no channel: a and b; 4 messages wait for a first channel."),
        ("note", "p/c is paused; 1 message waits."),
        ("note", "1 topic is paused: p."),
    ] == levels_and_texts(found.notices)


def test_the_number_of_notices_is_bounded() -> None:
    """The largest cases are named, the rest is counted; the most severe notices are first."""
    cluster = Cluster()
    for name in "abcdefgh":
        channels = [channel(f"c{number}", depth=number) for number in range(200)]
        answer = stats(topic("t", *channels, channel("p", paused=True)), topic("u", depth=1))
        cluster.answers(f"{name}:4151", answer)
    for name in "bcdefgh":
        cluster.answers(f"{name}:4151", None, state="gone")

    notices = cluster.snapshot().notices

    assert len(notices) < 15
    levels = [notice.level for notice in notices]
    assert levels == sorted(levels, key=["bad", "warn", "note"].index)
    assert len({notice.key for notice in notices}) == len(notices)
    sentences = [notice.sentence for notice in notices]
    assert "4 more nodes are gone." in sentences
    assert "t/c199 has no consumers; 199 messages wait." in sentences
    assert "196 more channels with messages have no consumers." in sentences


def test_a_drained_node_that_has_left_is_no_alarm() -> None:
    """A node that left after its drain, with nothing left, is a note; with messages it is gone."""
    cluster = Cluster()
    cluster.answers("a:4151", stats(topic("t", channel("c"))))
    for name, depth in (("b", 0), ("c", 2)):
        answer = stats(topic("t", channel("c", depth=depth, clients=1, oldest=0.0)), draining=True)
        cluster.answers(f"{name}:4151", answer)
        cluster.answers(f"{name}:4151", None, state="gone", since_at=cluster.now - 60)

    found = cluster.snapshot()
    left = "b:4151 was drained and has left, 60 s ago; no messages are there."
    lost = "c:4151 has been gone for 60 s; 2 messages wait there."
    assert {("note", left), ("bad", lost)} <= set(levels_and_texts(found.notices))
    assert 1 == sum(notice.level == "bad" for notice in found.notices)
