"""nsqadmin's audit log has each change before its response; without it, changes are refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.nsqadmin.access.cluster import Cluster, cluster
from tests.support.waiting import until

PROXY = {
    "X-Forwarded-User": "alice",
    "X-Forwarded-For": "127.0.0.9, 192.0.2.7",
    "User-Agent": "curl/8",
    "Content-Type": "application/json",
}


def lines(folder: Path) -> list[dict[str, Any]]:
    """The entries that are on disk now."""
    return [json.loads(line) for line in (folder / "audit").read_text().splitlines()]


async def order(
    running: Cluster, method: str, path: str, headers: Mapping[str, str] = PROXY, **fields: str
) -> int:
    return await running.ask(method, path, headers, json.dumps(fields).encode())


async def test_each_change_is_in_the_log_before_its_answer(tmp_path: Path) -> None:
    """Each change is logged before its response, with user, address, action and outcome.

    Refused and failed requests are logged, too.
    """
    log = str(tmp_path / "audit")
    async with cluster(tmp_path, admin_users=("alice",), audit_log=log) as running:
        assert 200 == await order(running, "POST", "/api/topics/t/c", action="pause")
        (paused,) = lines(tmp_path)
        assert 200 == await order(running, "DELETE", "/api/topics/t")
        bob = {**PROXY, "X-Forwarded-User": "bob"}
        assert 403 == await order(running, "POST", "/api/topics/t", bob, action="empty")
        evil = {**PROXY, "Host": "evil.example"}
        assert 403 == await order(running, "POST", "/api/topics/t", evil, action="empty")
        assert 404 == await order(running, "DELETE", "/api/nodes/nowhere:1", topic="t")
        await running.admin.services.audit.close()

    assert {
        "user": "alice",
        "via": "header",
        "remote": "192.0.2.7",
        "action": "pause_channel",
        "topic": "t",
        "channel": "c",
        "outcome": "done",
        "user_agent": "curl/8",
    }.items() <= paused.items()
    found = sorted((one["user"], one["action"], one["outcome"]) for one in lines(tmp_path))
    assert [
        ("alice", "POST /api/topics/t", "refused"),
        ("alice", "delete_topic", "done"),
        ("alice", "pause_channel", "done"),
        ("alice", "tombstone_topic_producer", "failed"),
        ("bob", "POST /api/topics/t", "refused"),
    ] == found


async def test_changes_are_refused_while_the_audit_log_cannot_be_written(tmp_path: Path) -> None:
    """If the audit log cannot be written, changes get 503; the first one still succeeds."""
    path = tmp_path / "audit"
    async with cluster(tmp_path, admin_users=("alice",), audit_log=str(path)) as running:
        path.unlink()
        path.mkdir()
        assert 200 == await order(running, "POST", "/api/topics/t/c", action="pause")
        before = running.state()
        assert 503 == await order(running, "POST", "/api/topics/t/c", action="unpause")
        assert 503 == await order(running, "DELETE", "/api/topics/t")
        assert before == running.state()
        path.rmdir()
        assert 200 == await order(running, "DELETE", "/api/topics/t")


async def test_audit_entries_can_be_published_to_a_topic(tmp_path: Path) -> None:
    """Audit entries can be published to a topic; its creation is not logged."""
    async with cluster(tmp_path, admin_users=("alice",), audit_topic="audit") as running:
        topics = running.nsqd.nsqd.broker.topics
        assert 200 == await order(running, "POST", "/api/topics/t/c", action="pause")
        assert 200 == await order(running, "POST", "/api/topics/t/c", action="unpause")
        await until(lambda: "audit" in topics and topics["audit"].counts.message_count == 2)
