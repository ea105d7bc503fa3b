"""Policies in the API, with real nsqds: show, try, set and drop; validated answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.nsqadmin.fake import FakeNode
from tests.nsqadmin.v2.conftest import Api
from tests.nsqd.daemon import Daemon

LIMITED = {"topic": "t*", "max_channels": 3}
SLOW = {"topic": "*", "channel": "c", "max_channel_lag_time": "1h0m0s"}
BOTH = {"policies": [LIMITED, SLOW]}


async def run_time_policies(nsqd: Daemon) -> list[dict[str, Any]]:
    """The run-time policies of an nsqd."""
    status, answer = await nsqd.ask("GET", "/policies")
    assert 200 == status
    return list(json.loads(answer)["policies"])


async def send(api: Api, method: str, body: Any, status: int = 200, **query: Any) -> Any:
    """Send a request to `/policies`; return its validated answer."""
    return await api._json(method, "/policies", status, body, query)


async def test_policies_are_tried_set_shown_and_dropped(api: Api) -> None:
    """A dry run changes nothing; a change reaches all nsqds and the audit log."""
    nodes = sorted(api.nodes)
    tried = await send(api, "PUT", BOTH, dry_run="true")
    assert ("done", 4) == (
        tried["result"],
        sum(one["answer"]["changed"] for one in tried["outcomes"]),
    )
    assert [] == await run_time_policies(api.one) == await run_time_policies(api.two)

    report = await send(api, "PUT", BOTH, typed="policies")
    assert ("done", nodes) == (report["result"], sorted(o["address"] for o in report["outcomes"]))
    assert BOTH["policies"] == await run_time_policies(api.one) == await run_time_policies(api.two)
    shown = await api.get("/policies")
    assert (nodes, False) == (sorted(shown["nodes"]), shown["differ"])
    assert BOTH["policies"] == shown["nodes"][nodes[0]]["policies"]
    assert 0 == shown["nodes"][nodes[0]]["flags"]["max_channels"]
    holding = await api.get("/policies", topic="t", channel="c")
    lag = {"value": "1h0m0s", "source": "policies", "number": 2}
    assert [lag, lag] == [holding["nodes"][node]["max_channel_lag_time"] for node in nodes]

    assert 4 == sum(
        one["answer"]["changed"] for one in (await send(api, "DELETE", None, dry_run=1))["outcomes"]
    )
    assert BOTH["policies"] == await run_time_policies(api.one)
    assert "done" == (await send(api, "DELETE", None, typed="policies"))["result"]
    assert [] == await run_time_policies(api.one) == await run_time_policies(api.two)
    entries = (await api.get("/audit"))["entries"]
    assert [
        ("all", "drop_policies", "done", {"policies": 0, "changes": 4}),
        ("all", "set_policies", "done", {"policies": 2, "changes": 4}),
    ] == [(e["user"], e["action"], e["outcome"], e["arguments"]) for e in entries]


async def test_a_document_that_one_nsqd_refuses_is_set_nowhere(api: Api) -> None:
    """An invalid document gets 400 with the nsqd's error; the audit log has it as failed."""
    wrong = {"policies": [LIMITED, {"topic": "a", "max_chanels": 1}]}
    for query in ({"dry_run": "true"}, {"typed": "policies"}):
        refusal = await send(api, "PUT", wrong, 400, **query)
        assert refusal["message"].startswith("INVALID_POLICIES: 127.0.0.1:")
        assert "policy 2: unknown setting max_chanels: did you mean max_channels?" in str(refusal)
    assert [] == await run_time_policies(api.one) == await run_time_policies(api.two)
    (entry,) = (await api.get("/audit"))["entries"]
    assert ("set_policies", "failed") == (entry["action"], entry["outcome"])
    assert "policy 2" in entry["detail"]


@pytest.mark.parametrize(
    ("method", "body", "query", "words"),
    [
        ("PUT", BOTH, {}, "NAME_NOT_TYPED"),
        ("DELETE", None, {}, "NAME_NOT_TYPED"),
        (
            "PUT",
            {},
            {"typed": "policies"},
            "INVALID_BODY: Object missing required field `policies`",
        ),
        ("GET", None, {"channel": "c"}, "INVALID_ARG_TOPIC"),
        ("GET", None, {"topic": "t", "channel": "?"}, "INVALID_ARG_CHANNEL"),
        ("PUT", BOTH, {"dry_run": "true", "token": "operate"}, "FORBIDDEN"),
        ("DELETE", None, {"typed": "policies", "token": "read"}, "FORBIDDEN"),
    ],
)
async def test_refused_requests_change_nothing(
    api: Api, method: str, body: Any, query: dict[str, str], words: str
) -> None:
    """Invalid requests get 400, other roles 403; the policies stay as they are."""
    before = json.dumps({"policies": [SLOW]}).encode()
    assert 200 == (await api.one.ask("PUT", "/policies", before))[0]

    status = 403 if words == "FORBIDDEN" else 400
    assert (await send(api, method, body, status, **query))["message"].startswith(words)
    assert [SLOW] == await run_time_policies(api.one)
    assert [] == await run_time_policies(api.two)


async def test_gos_nsqd_is_listed_as_unable(api: Api) -> None:
    """Go's nsqd is listed in `unable`, and in reports; if it is the only one, GET gets 501."""
    async with FakeNode() as fake:
        fake.missing = {"/policies"}
        fleet = api.admin.services.fleet
        fleet.nsqds = (*fleet.nsqds, fake.http)
        fleet.set_lookupds(())
        shown = await api.get("/policies")
        assert ([fake.http], {}) == (shown["unable"], shown["errors"])
        report = await send(api, "PUT", BOTH, typed="policies")
        assert "partly" == report["result"]
        errors = {one["address"]: one["error"] for one in report["outcomes"]}
        assert {
            **dict.fromkeys(api.nodes, ""),
            fake.http: "this is NSQ's Go nsqd, which does not support this action",
        } == errors
        assert BOTH["policies"] == await run_time_policies(api.two)

        fleet.nsqds = (fake.http,)
        fleet.set_lookupds(())
        assert "NOT_SUPPORTED" in (await api.get("/policies", 501))["message"]
        assert "failed" == (await send(api, "DELETE", None, 502, typed="policies"))["result"]
    refusal = await api.get("/policies", 502, topic="t")
    assert refusal["message"].startswith("UPSTREAM_ERROR")
