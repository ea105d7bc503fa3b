"""Actions of the pages and the v2 API: roles, typed names, the audit log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from sparq.cluster.actions import Report
from sparq.daemon.http import HttpError
from sparq.nsqadmin import actions
from sparq.nsqadmin.actions import OF_POLICIES, TYPED, ActionRequest
from tests.nsqadmin.cluster import Admin, Cluster, admin, free_address


def request(**headers: str) -> Any:
    """A request from this machine."""

    class Transport:
        def get_extra_info(self, name: str, default: Any = None) -> Any:
            return ("127.0.0.1", 9) if name == "peername" else default

    return make_mocked_request("POST", "/x", headers, transport=Transport())


async def perform(found: Admin, order: ActionRequest, **headers: str) -> Report:
    return await actions.perform(found.daemon.services, request(**headers), order)


async def refused(found: Admin, order: ActionRequest, **headers: str) -> tuple[int, str]:
    with pytest.raises(HttpError) as error:
        await perform(found, order, **headers)
    return error.value.status, error.value.code


@pytest.mark.parametrize("action", sorted(TYPED))
async def test_irreversible_actions_need_a_typed_name(sparq_cluster: Cluster, action: str) -> None:
    """The channel, the topic or `policies` must be typed, otherwise 400 NAME_NOT_TYPED."""
    sparq_cluster.fill("typed")
    channel = "c" if action.endswith("_channel") else ""
    node = sparq_cluster.nsqds[0].http if action.startswith("tombstone") else ""
    word = "policies" if action in OF_POLICIES else channel or "typed"
    body = '{"policies": []}'
    async with admin(**sparq_cluster.modes()["lookupd"]) as found:
        for typed in ("", "Typed", "typed" if word != "typed" else "typed "):
            order = ActionRequest(action, "typed", channel, node, typed, body=body)
            assert (400, "NAME_NOT_TYPED") == await refused(found, order)
        assert [2, 2] == [nsqd.channel("typed", "c")["depth"] for nsqd in sparq_cluster.nsqds]
        order = ActionRequest(action, "typed", channel, node, word, body=body)
        report = await perform(found, order)
        assert "done" == report.result
        assert (action, "done") == (
            found.audited()[-1]["action"],
            found.audited()[-1]["outcome"],
        )


@pytest.mark.parametrize(
    ("order", "status", "code"),
    [
        (ActionRequest("explode_topic", "t"), 400, "INVALID_ACTION"),
        (ActionRequest("pause_topic", ""), 400, "INVALID_TOPIC"),
        (ActionRequest("pause_channel", "t"), 400, "INVALID_CHANNEL"),
        (ActionRequest("create_topic", "a b"), 400, "INVALID_TOPIC"),
        (ActionRequest("create_channel", "t", "a b"), 400, "INVALID_CHANNEL"),
        (ActionRequest("seek_channel", "t", "c"), 400, "INVALID_ARGUMENT"),
        (ActionRequest("requeue_message", "t", "c"), 400, "INVALID_ARGUMENT"),
        (
            ActionRequest("copy_message", "t", "c", messages=[f"n:1/{0:016}"], to="a b"),
            400,
            "INVALID_ARGUMENT",
        ),
        (
            ActionRequest("finish_message", "t", "c", messages=[f"n:1/{0:016}"]),
            404,
            "NODE_NOT_FOUND",
        ),
        (ActionRequest("set_policies", "", typed="policies"), 400, "INVALID_ARGUMENT"),
        (
            ActionRequest("tombstone_topic_producer", "t", node="n:1", typed="t"),
            404,
            "NODE_NOT_FOUND",
        ),
    ],
)
async def test_invalid_actions_are_refused(
    sparq_cluster: Cluster, order: ActionRequest, status: int, code: str
) -> None:
    """An invalid action is refused; one that had been started is in the audit log as failed."""
    async with admin(**sparq_cluster.modes()["lookupd"]) as found:
        assert (status, code) == await refused(found, order)
        is_begun = code in ("INVALID_ARGUMENT", "NODE_NOT_FOUND")
        entries = [(entry["action"], entry["outcome"]) for entry in found.audited()]
        assert ([(order.action, "failed")] if is_begun else []) == entries


def test_messages_are_named_by_node_and_id() -> None:
    """Their ids are grouped by node; another form raises ValueError."""
    named = [f"a:1/{1:016}", f"[::1]:2/{2:016}"]
    order = ActionRequest("finish_message", messages=named)
    assert {"a:1": [f"{1:016}"], "[::1]:2": [f"{2:016}"]} == order.ids
    for wrong in ("no id", "a:1/xyz", "0" * 16, "a:1/"):
        with pytest.raises(ValueError, match=r"hexadecimal|node"):
            ActionRequest("finish_message", messages=[wrong])


async def test_a_seek_affects_only_the_given_nodes(sparq_cluster: Cluster) -> None:
    """A seek affects only the given nodes; its arguments are in the audit log."""
    sparq_cluster.fill("sought")
    async with admin(**sparq_cluster.modes()["lookupd"]) as found:
        arguments: dict[str, Any] = {"to": "latest", "nodes": [sparq_cluster.nsqds[0].http]}
        order = ActionRequest("seek_channel", "sought", "c", **arguments)
        report = await perform(found, order)
        assert "done" == report.result
        assert arguments == found.audited()[-1]["arguments"]
    assert [0, 2] == [nsqd.channel("sought", "c")["depth"] for nsqd in sparq_cluster.nsqds]


async def test_operators_may_pause_but_not_empty(sparq_cluster: Cluster) -> None:
    """An operator may pause but not empty: the role of the action counts, not of the route."""
    sparq_cluster.fill("roles")
    options = {"roles": ("op=operate",), "local_role": "none"}
    async with admin(**sparq_cluster.modes()["lookupd"], **options) as found:
        mine = {"X-Forwarded-User": "op"}
        order = ActionRequest("empty_channel", "roles", "c", typed="c")
        assert (403, "FORBIDDEN") == await refused(found, order, **mine)
        assert (403, "FORBIDDEN") == await refused(found, ActionRequest("pause_topic", "roles"))
        report = await perform(found, ActionRequest("pause_topic", "roles"), **mine)
        assert "done" == report.result
        body = {"action": "empty"}
        assert 403 == (await found.ask("POST", "/api/topics/roles/c", body, mine))[0]
    assert [2, 2] == [nsqd.channel("roles", "c")["depth"] for nsqd in sparq_cluster.nsqds]


async def test_changes_are_refused_while_the_audit_log_fails(
    sparq_cluster: Cluster, tmp_path: Path
) -> None:
    """While the audit log cannot be written, changes get 503 AUDIT_UNAVAILABLE."""
    sparq_cluster.fill("kept")
    log = tmp_path / "audit" / "log"
    log.parent.mkdir()
    async with admin(**sparq_cluster.modes()["lookupd"], audit_log=str(log)) as found:
        await found.done("POST", "/api/topics/kept", {"action": "pause"})
        assert b"pause_topic" in log.read_bytes()
        found.daemon.services.audit._why_not = "a full disk"
        moved = log.parent.rename(tmp_path / "elsewhere")
        unavailable = (503, {"message": "AUDIT_UNAVAILABLE"})
        body = {"action": "unpause"}
        assert unavailable == await found.ask("POST", "/api/topics/kept", body)
        assert unavailable == await found.ask("PUT", "/config/log_level", b"info")
        moved.rename(log.parent)
        await found.done("POST", "/api/topics/kept", body)


async def test_audit_entries_are_published_to_the_topic(sparq_cluster: Cluster) -> None:
    """With --audit-topic each entry is published, at one node."""
    from tests.support.waiting import until_seen

    async with admin(**sparq_cluster.modes()["lookupd"], audit_topic="audited") as found:
        await found.done("POST", "/api/topics", {"topic": "any"})

        def count() -> int:
            stats = [n.get_json("/stats?format=json&topic=audited") for n in sparq_cluster.nsqds]
            return sum(t["message_count"] for s in stats for t in s["topics"] or ())

        await until_seen(lambda: count() == 1)


async def test_actions_are_in_the_audit_log(sparq_cluster: Cluster) -> None:
    """An entry has the action, topic, channel, client address, user agent and outcome."""
    sparq_cluster.fill("written")
    async with admin(**sparq_cluster.modes()["lookupd"]) as found:
        await found.done("POST", "/api/topics/written/c", {"action": "pause"})
        await found.ask("DELETE", "/api/topics/nobody", headers={"User-Agent": "me/1"})
        await found.ask("DELETE", f"/api/nodes/{free_address()}", {"topic": "written"})
        paused, deleted, stone = found.audited()

    assert ("pause_channel", "written", "c", "done", "local") == (
        paused["action"],
        paused["topic"],
        paused["channel"],
        paused["outcome"],
        paused["via"],
    )
    assert paused["remote"].startswith("127.0.0.1:")
    assert ("delete_topic", "failed", "me/1") == (
        deleted["action"],
        deleted["outcome"],
        deleted["user_agent"],
    )
    assert "TOPIC_NOT_FOUND" in deleted["detail"]
    assert ("tombstone_topic_producer", "failed") == (stone["action"], stone["outcome"])
