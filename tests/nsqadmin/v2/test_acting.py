"""The drain of a node over the API, held against its document: told, shown, ended, written down."""

from __future__ import annotations

import json
from typing import Any

from tests.nsqadmin.v2.conftest import Api
from tests.support.waiting import until


def path(api: Api, node: int = 0) -> str:
    return f"/nodes/{api.nodes[node]}/drain"


async def shown(api: Api) -> list[bool]:
    """Which nodes drain, as the list of nodes has it."""
    rows = (await api.get("/nodes", sort="address"))["rows"]
    by_address = {row["address"]: row["draining"] for row in rows}
    return [by_address[node] for node in api.nodes]


async def test_a_node_drains_and_does_no_more(api: Api) -> None:
    """Only that one; with what is left there; in the audit log with who, where and what."""
    await api.one.post("/pub?topic=t", b"x")
    found = await api.get(path(api))
    assert (False, "", 1) == (found["draining"], found["since"], found["depth"])

    report = await api.post(path(api), None, exit="true")
    assert ("done", [api.nodes[0]]) == (
        report["result"],
        [o["address"] for o in report["outcomes"]],
    )
    found = await api.get(path(api))
    assert (True, True, False) == (found["draining"], found["exit"], found["empty"])
    assert [{"topic": "t", "channel": "c", "messages": 1, "held_up": "no consumers"}] == found[
        "left"
    ]
    assert not (await api.get(path(api, 1)))["draining"]
    await until(lambda: _is(api, [True, False]))
    notices = (await api.get("/attention"))["notices"]
    assert any(f"draining:{api.nodes[0]}" in notice["key"] for notice in notices)

    assert "done" == (await api._json("DELETE", path(api), 200, None, {}))["result"]
    await until(lambda: _is(api, [False, False]))
    entries = (await api.get("/audit"))["entries"]
    assert [
        ("all", "undrain_node", "done", api.nodes[0], {}),
        ("all", "drain_node", "done", api.nodes[0], {"exit": True}),
    ] == [
        (e["user"], e["action"], e["outcome"], e["node"], e.get("arguments", {})) for e in entries
    ]


async def _is(api: Api, wanted: list[bool]) -> bool:
    return await shown(api) == wanted


async def test_actions_may_drain_as_well(api: Api) -> None:
    """`/actions` takes it with a node; without one nothing is done."""
    body: dict[str, Any] = {"action": "drain_node", "topic": "", "node": api.nodes[1]}
    assert "done" == (await api.post("/actions", body))["result"]
    assert (await api.get(path(api, 1)))["draining"]
    await api.post("/actions", {**body, "node": ""}, 400)


async def test_who_may_not_and_what_is_not_there(api: Api) -> None:
    """Operators see it; nodes that are none are a 404."""
    for token in ("operate", "read"):
        for method in ("POST", "DELETE"):
            status, _, _ = await api.send(method, path(api), token=token)
            assert 403 == status
        for action in ("drain_node", "undrain_node"):
            body = {"action": action, "topic": "", "node": api.nodes[0]}
            assert 403 == (await api.send("POST", "/actions", body, token=token))[0]
        status, answer, _ = await api.send("GET", path(api), token=token)
        assert (200, False) == (status, json.loads(answer)["draining"])
    for method in ("GET", "POST", "DELETE"):
        await api._json(method, "/nodes/nobody:1/drain", 404, None, {})
