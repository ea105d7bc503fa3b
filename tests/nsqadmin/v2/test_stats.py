"""The figures of the API, validated against its OpenAPI document."""

from __future__ import annotations

import asyncio

from sparq.protocol.commands import rdy, sub
from tests.nsqadmin.nsqds import fill
from tests.nsqadmin.v2.conftest import Api, snapshot_where
from tests.nsqd.daemon import Consumer


async def test_every_figure_route_answers_as_documented(api: Api) -> None:
    """The overview, lists, details, history and clients match the document and the cluster."""
    await fill(api)
    consumer = await Consumer.identified(api.one, sub("t", "c"))
    consumer.send(rdy(1))
    await consumer.frame()

    overview = await snapshot_where(
        api, "/overview", lambda answer: answer["totals"]["messages"] == 6
    )

    assert (2, 1, 1) == tuple(
        overview["totals"][name] for name in ("nodes_up", "topics", "channels")
    )
    assert not overview["has_go"]
    topics = await api.get("/topics", sort="-waiting", filter="T")
    assert (1, "t", 5) == (
        topics["total"],
        topics["rows"][0]["topic"],
        topics["rows"][0]["waiting"],
    )
    topic = await api.get("/topics/t")
    assert sorted(api.nodes) == sorted(part["node"] for part in topic["nodes"])
    assert ["c"] == [each["channel"] for each in topic["channels"]]
    channel = await api.get("/topics/t/c")
    assert (5, 1) == (channel["channel"]["depth"], channel["channel"]["in_flight"])
    assert [("h", 1)] == [(each["hostname"], each["connections"]) for each in channel["clients"]]
    channels = await api.get("/channels", topic="t", state="ok", limit=1)
    assert 1 == channels["total"]
    nodes = await api.get("/nodes", sort="-waiting")
    assert sorted(api.nodes) == sorted(row["address"] for row in nodes["rows"])
    node = await api.get(f"/nodes/{api.nodes[0]}", sort="-depth")
    assert ("up", 1, 1) == (
        node["node"]["state"],
        node["topics"]["total"],
        node["channels"]["total"],
    )
    assert [] == [n for n in (await api.get("/attention"))["notices"] if n["level"] == "bad"]
    for query in ({}, {"topic": "t"}, {"topic": "t", "channel": "c"}, {"node": api.nodes[0]}):
        history = await api.get("/history", **query)
        assert len(history["time"]) == len(history["depth"]) > 0
    assert 1 == (await api.get("/clients"))["total"]
    assert 1 == (await api.get("/clients", topic="t", channel="c", filter="TEST/1"))["total"]
    await consumer.close()


async def test_a_client_waits_for_the_next_snapshot(api: Api) -> None:
    """A request with `after` waits for a newer snapshot."""
    first = await api.get("/overview")
    waiting = asyncio.create_task(api.get("/overview", after=first["number"]))
    await fill(api, 2)

    assert (await waiting)["number"] > first["number"]
