"""Lists are filtered, sorted and paged on the server."""

from __future__ import annotations

import json

import pytest

from sparq.cluster.figures import Client, read
from sparq.cluster.rows import page_of as page
from sparq.nsqadmin.watch.detail import ClientGroups
from tests.nsqadmin.watch.figures import Cluster, channel, snapshot, stats, topic

SNAPSHOT = snapshot(
    stats(
        topic("Orders", channel("b", depth=5, clients=1), channel("a", depth=5), depth=1),
        topic("clicks", channel("x", depth=9, oldest=70.0, clients=1), channel("y", is_go=True)),
    )
)


def names(**asked: object) -> list[str]:
    """The names of the channels on a page."""
    found = page(SNAPSHOT.channels, **asked)  # type: ignore[arg-type]  # also invalid values
    return [f"{row.topic}/{row.channel}" for row in found.rows]


def test_rows_are_sorted_by_any_figure() -> None:
    """Rows are sorted by any figure, in both orders; equal ones by name."""
    assert ["Orders/a", "Orders/b", "clicks/x", "clicks/y"] == names()
    assert ["clicks/y", "clicks/x", "Orders/b", "Orders/a"] == names(sort="-name")
    assert ["clicks/x", "Orders/a", "Orders/b", "clicks/y"] == names(sort="-depth")
    assert ["clicks/y", "Orders/a", "Orders/b", "clicks/x"] == names(sort="depth")
    assert ["Orders/a", "clicks/y", "clicks/x", "Orders/b"] == names(sort="-state")


def test_unknown_figures_are_sorted_last() -> None:
    """Rows with unknown figures are last in both orders."""
    cluster = Cluster()
    cluster.answers("a:4151", stats(topic("t", channel("a"), channel("b"))))
    cluster.now += 10
    answer = stats(topic("t", channel("a", messages=5), channel("b", messages=9), channel("c")))
    cluster.answers("a:4151", answer)
    table = cluster.snapshot().channels

    for sort, expected in (("in_rate", "abc"), ("-in_rate", "bac")):
        assert [*expected] == [row.channel for row in page(table, sort=sort).rows]


def test_rows_are_filtered_by_name_topic_and_state() -> None:
    """Filters are a part of the name in any case, the topic and the state."""
    assert ["Orders/a", "Orders/b"] == names(filter="RDERS")
    assert ["clicks/x"] == names(filter="s/x")
    assert ["clicks/x", "clicks/y"] == names(topic="clicks")
    assert [] == names(topic="click")
    assert ["clicks/x"] == names(state="behind")
    assert ["Orders/a", "clicks/y"] == names(state="no consumers")
    assert ["Orders/a"] == names(state="no consumers", topic="Orders", filter="a")


def test_a_page_has_total_offset_and_limit() -> None:
    """A page has the total number of rows, its offset and its limit."""
    found = page(SNAPSHOT.channels, offset=1, limit=2)

    assert (4, 1, 2) == (found.total, found.offset, found.limit)
    assert ["b", "x"] == [row.channel for row in found.rows]
    assert () == page(SNAPSHOT.channels, offset=10).rows
    assert 2 == page(SNAPSHOT.topics, sort="-waiting").total
    assert ["Orders", "clicks"] == [
        row.topic for row in page(SNAPSHOT.topics, sort="-waiting").rows
    ]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"sort": "colour"}, "sort must be one of name, backend_depth"),
        ({"state": "sad"}, "state must be one of ok"),
    ],
    ids=str,
)
def test_invalid_parameters_are_refused(asked: dict[str, object], words: str) -> None:
    """Invalid parameters raise ValueError with the allowed values."""
    with pytest.raises(ValueError, match=words):
        names(**asked)


def client(number: int, host: str = "h", **changes: object) -> dict[str, object]:
    """A client in `/stats`."""
    return {"client_id": f"id{number}", "hostname": host, "user_agent": "go-nsq/1", **changes}


def test_equal_clients_are_one_row() -> None:
    """500 connections with the same properties are one row."""
    folder = ClientGroups()
    for node in ("a:1", "b:1"):
        answer = stats(
            topic("t", {**channel("c"), "clients": [client(n, ready_count=2) for n in range(250)]})
        )
        folder.add(node, read(json.dumps(answer).encode()).clients())
    other = Client(hostname="h2", user_agent="other\n", tls=True, sample_rate=5)
    folder.add("b:1", [("t", "c", other)])

    big, small = folder.groups()

    assert (500, 2, 1000, 20) == (big.connections, big.nodes, big.ready, len(big.client_ids))
    assert (("TLS", "Sampled 5%"), "other ") == (small.attributes, small.user_agent)
    found = page(folder.groups(), sort="-connections", filter="OTHER")
    assert (1, "h2") == (found.total, found.rows[0].hostname)
