"""Actions of the API, validated against its document: effects, refusals, draining."""

from __future__ import annotations

import json
from typing import Any

from tests.nsqadmin.nsqds import fill
from tests.nsqadmin.v2.conftest import Api, snapshot_where

ORDERS: list[tuple[str, Any, int, str]] = [
    ("/actions", [], 400, "INVALID_BODY"),
    ("/actions", {"action": 5, "topic": "t"}, 400, "INVALID_BODY: action"),
    ("/actions", {"action": "explode", "topic": "t"}, 400, "INVALID_ACTION"),
    ("/actions", {"action": "x", "topic": "t", "messages": ["x"]}, 400, "INVALID_BODY"),
    ("/actions", {"action": "x", "topic": "t", "messages": "x"}, 400, "INVALID_BODY"),
    ("/seek", {"topic": "t", "channel": "c", "to": "5"}, 400, "INVALID_ARG_TO"),
    ("/seek", {"topic": "t", "channel": "c"}, 400, "MISSING_ARG_TO"),
    ("/seek", {"topic": "t", "channel": "c", "to": "-1h", "nodes": ["a:2"]}, 404, "NODE_NOT"),
    ("/nodes/a:1/dismiss", {}, 404, "NODE_NOT_FOUND"),
    ("/nodes/a:1/drain", None, 404, "NODE_NOT_FOUND"),
]  # fmt: skip


def path(api: Api, node: int = 0) -> str:
    return f"/nodes/{api.nodes[node]}/drain"


async def test_only_the_chosen_node_drains(api: Api) -> None:
    """Only that node drains; its remaining messages are shown; the audit log has both actions."""
    await api.one.post("/pub?topic=t", b"x")
    found = await api.get(path(api))
    assert (False, "", 1) == (found["draining"], found["since"], found["depth"])

    assert "done" == (await api.post(path(api), None, exit="true"))["result"]
    found = await api.get(path(api))
    assert (True, True, False) == (found["draining"], found["exit"], found["empty"])
    left = {"topic": "t", "channel": "c", "messages": 1, "held_up": "no consumers"}
    assert left.items() <= found["left"][0].items()
    assert not (await api.get(path(api, 1)))["draining"]

    assert "done" == (await api._json("DELETE", path(api), 200, None, {}))["result"]
    entries = (await api.get("/audit"))["entries"]
    assert [
        ("all", "undrain_node", "done", api.nodes[0], {}),
        ("all", "drain_node", "done", api.nodes[0], {"exit": True}),
    ] == [
        (e["user"], e["action"], e["outcome"], e["node"], e.get("arguments", {})) for e in entries
    ]


async def test_the_actions_route_publishes(api: Api) -> None:
    """It publishes text or base64 at the chosen node, with the role publish alone."""
    body = {"action": "publish_message", "topic": "t", "node": api.nodes[1]}
    await api.post("/actions", {**body, "body": "grüße"}, token="publish")
    await api.post("/actions", {**body, "body": "AAH/", "encoding": "base64"})
    _, answer = await api.two.ask("GET", "/topic/messages?topic=t")
    found = [(one["body"], one["encoding"]) for one in json.loads(answer)["messages"]]
    assert [("grüße", "text"), ("AAH/", "base64")] == found
    await api.post("/actions", {**body, "body": "?", "encoding": "base64"}, 400)
    await api.post("/actions", body, 400)
    await api.post("/actions", {**body, "body": "x"}, 403, token="read")
    await api.post("/actions", {"action": "pause_topic", "topic": "t"}, 403, token="publish")


async def test_actions_have_their_effect(api: Api) -> None:
    """Finish, seek, pause and copy return a report, take effect, and are in the audit log."""
    await fill(api)
    messages = (await api.get("/messages", topic="t", channel="c"))["messages"]
    chosen = [f"{each['node']}/{each['id']}" for each in messages[:3]]

    done = await api.post(
        "/actions",
        {"action": "finish_message", "topic": "t", "channel": "c", "messages": chosen},
    )
    assert ("done", 3) == (done["result"], sum(len(o["answer"]["done"]) for o in done["outcomes"]))
    left = await api.get("/messages", topic="t", channel="c")
    assert [each["id"] for each in messages[3:]] == [each["id"] for each in left["messages"]]

    back = {"topic": "t", "channel": "c", "to": "earliest"}
    preview = await api.get("/seek", **back)
    assert (3, 6) == (preview["again"], preview["waiting"])
    assert "done" == (await api.post("/seek", back))["result"]
    assert 6 == (await api.get("/messages", topic="t", channel="c"))["total"]

    paused = await api.post("/actions", {"action": "pause_channel", "topic": "t", "channel": "c"})
    assert "done" == paused["result"]
    assert (await api.one.channel("t", "c"))["paused"]
    copied = {"action": "copy_message", "topic": "t", "messages": chosen[:1], "to": "u"}
    assert "done" == (await api.post("/actions", copied))["result"]

    audit = await api.get("/audit", limit=50)
    actions = [entry["action"] for entry in audit["entries"]]
    assert ["copy_message", "pause_channel", "seek_channel", "finish_message"] == actions[:4]


async def test_invalid_requests_are_refused(api: Api) -> None:
    """Invalid requests are refused with a code."""
    for path, body, status, words in ORDERS:
        result = await api.post(path, body, status)
        assert result["message"].startswith(words), (path, body)


async def test_a_node_that_is_gone_can_be_forgotten(api: Api) -> None:
    """A node that is gone is listed with its waiting messages until it is forgotten."""
    await fill(api)
    await snapshot_where(api, "/overview", lambda result: result["totals"]["waiting"] == 6)
    await api.two.site.stop()
    for listener in api.two.listeners[1:]:
        if listener is not None:
            listener.close()
    nodes = await snapshot_where(
        api, "/nodes", lambda result: "gone" in [row["state"] for row in result["rows"]]
    )
    gone = next(row for row in nodes["rows"] if row["state"] == "gone")
    assert 3 == gone["waiting"]
    notices = (await api.get("/attention"))["notices"]
    assert any("3 messages wait there" in notice["sentence"] for notice in notices)

    assert {"node": api.nodes[1]} == await api.post(f"/nodes/{api.nodes[1]}/dismiss", {})
