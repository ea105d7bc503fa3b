"""nsqadmin's API with dead daemons: a warning if some are dead, 502 if all are, in both modes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.peers import answer, listed, peer
from tests.nsqadmin.cluster import Cluster, admin, free_address

READ = ["/api/topics", "/api/topics?inactive=true", "/api/topics/part", "/api/topics/part/c"]
READ_ALL = [*READ, "/api/nodes", "/api/counter"]
ACT = [
    ("POST", "/api/topics", {"topic": "part", "channel": "c"}),
    ("POST", "/api/topics/part", {"action": "pause"}),
    ("POST", "/api/topics/part/c", {"action": "empty"}),
    ("DELETE", "/api/topics/part/c", None),
    ("DELETE", "/api/topics/part", None),
]


def with_a_dead_daemon(cluster: Cluster, mode: str, gone: str) -> dict[str, Any]:
    """Options with one more daemon, which is dead."""
    return {name: (*there, gone) for name, there in cluster.modes()[mode].items()}


@pytest.mark.parametrize("mode", ["lookupd", "nsqd"])
async def test_a_dead_daemon_is_a_warning(cluster: Cluster, mode: str) -> None:
    """Every GET answers 200 with the other daemons' data and a warning that names the dead one."""
    cluster.fill("part")
    gone = free_address()
    async with admin(**with_a_dead_daemon(cluster, mode, gone)) as found:
        for path in (*READ_ALL, f"/api/nodes/{cluster.nsqds[0].http}"):
            status, said = await found.ask("GET", path)
            is_idle = path.endswith("inactive=true") and mode == "nsqd"
            warning = "" if is_idle else f"WARNING: connection refused ({gone})"
            assert (200, True) == (status, said["message"].startswith(warning)), (path, said)
        _, topic = await found.ask("GET", "/api/topics/part")
        assert 4 == topic["message_count"]


@pytest.mark.parametrize("mode", ["lookupd", "nsqd"])
@pytest.mark.parametrize(("method", "path", "body"), ACT)
async def test_an_action_is_done_at_all_live_daemons(
    cluster: Cluster, mode: str, method: str, path: str, body: Any
) -> None:
    """An action is done at all live daemons: 200 with a warning, `partly` in the audit log."""
    cluster.fill("part")
    gone = free_address()
    async with admin(**with_a_dead_daemon(cluster, mode, gone)) as found:
        status, said = await found.ask(method, path, body)
        assert (200, True) == (status, said["message"].startswith("WARNING: ")), said
        assert f"connection refused ({gone})" in said["message"]
        assert "partly" == found.audited()[-1]["outcome"]
    state = [nsqd.get_json("/stats?format=json&topic=part")["topics"] for nsqd in cluster.nsqds]
    for topics in state:
        if method == "DELETE":
            assert topics is None or not topics[0]["channels"]
        elif body and body.get("action") == "pause":
            assert topics[0]["paused"]
        elif body and body.get("action") == "empty":
            assert 0 == topics[0]["channels"][0]["depth"]
        else:
            assert ["c"] == [channel["channel_name"] for channel in topics[0]["channels"]]


@pytest.mark.parametrize(("mode", "kind"), [("lookupd", "nsqlookupd"), ("nsqd", "nsqd")])
async def test_all_daemons_dead_is_an_error(mode: str, kind: str) -> None:
    """If all daemons are dead, the answer is 502 with NSQ's message and all errors in order."""
    gone = (free_address(), free_address())
    name = "lookupd_http_addresses" if mode == "lookupd" else "nsqd_http_addresses"
    errors = "\n".join(f"connection refused ({address})" for address in gone)
    expected = {"message": f"UPSTREAM_ERROR: failed to query any {kind}: {errors}"}
    async with admin(**{name: gone}) as found:
        for path in (*READ_ALL, f"/api/nodes/{gone[0]}"):
            if path.endswith("inactive=true") and mode == "nsqd":
                assert (200, {"topics": {}, "message": ""}) == await found.ask("GET", path)
            else:
                assert (502, expected) == await found.ask("GET", path), path
        for method, path, body in ACT:
            status, said = await found.ask(method, path, body)
            assert (502, expected) == (status, said), path
            assert "failed" == found.audited()[-1]["outcome"]


async def test_a_dead_node_is_tombstoned(cluster: Cluster) -> None:
    """A dead node is tombstoned; a warning reports that its topic was not deleted (NSQ: 502)."""
    dead = free_address()
    host, _, port = dead.partition(":")
    nodes = answer(listed((host, int(port))))
    async with (
        peer({"/nodes": nodes, "/topic/tombstone": answer(b"")}) as lookupd,
        admin(lookupd_http_addresses=(lookupd.address,)) as found,
    ):
        status, said = await found.ask("DELETE", f"/api/nodes/{dead}", {"topic": "t"})
    assert (200, f"WARNING: connection refused ({dead})") == (status, said["message"])
    assert f"POST /topic/tombstone?topic=t&node={dead}" in lookupd.asked
