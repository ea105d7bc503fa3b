"""NSQ's API, what it does: every POST and DELETE route, with what is to be seen at the nodes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.peers import peer
from tests.nsqadmin.api.house import Admin, House, admin, free_address


def names(house: House, topic: str) -> list[bool]:
    """Whether each node has the topic."""
    found = [nsqd.get_json(f"/stats?format=json&topic={topic}") for nsqd in house.nsqds]
    return [bool(stats["topics"]) for stats in found]


def topics_paused(house: House, topic: str) -> list[bool]:
    found = [nsqd.get_json(f"/stats?format=json&topic={topic}") for nsqd in house.nsqds]
    return [stats["topics"][0]["paused"] for stats in found]


async def test_create(by_lookupd: Admin, house: House) -> None:
    """A topic, then a channel of it: known to both nsqlookupds, the channel at the node."""
    await by_lookupd.done("POST", "/api/topics", {"topic": "new"})
    for lookupd in house.lookupds:
        assert "new" in lookupd.get_json("/topics")["topics"]
    house.fill("new", "other", messages=0)
    await by_lookupd.done("POST", "/api/topics", {"topic": "new", "channel": "c"})

    assert all(nsqd.channel("new", "c") for nsqd in house.nsqds)
    for lookupd in house.lookupds:
        assert "c" in lookupd.get_json("/channels?topic=new")["channels"]


async def test_create_at_nodes_that_were_given(direct: Admin, house: House) -> None:
    """At the nodes themselves (NSQ does nothing then, and says that all is well)."""
    await direct.done("POST", "/api/topics", {"topic": "direct", "channel": "c"})

    assert all(nsqd.channel("direct", "c") for nsqd in house.nsqds)


@pytest.mark.parametrize("path", ["/api/topics/acts", "/api/topics/acts/c"])
async def test_pause_unpause_empty(either: Admin, house: House, path: str) -> None:
    """A topic's or a channel's, at both nodes."""
    house.fill("acts")
    is_channel = path.endswith("/c")

    def paused() -> list[bool]:
        if is_channel:
            return [nsqd.channel("acts", "c")["paused"] for nsqd in house.nsqds]
        return topics_paused(house, "acts")

    await either.done("POST", path, {"action": "pause"})
    assert [True, True] == paused()
    assert (await either.done("GET", path))["paused"] is True
    await either.done("POST", path, {"action": "unpause"})
    assert [False, False] == paused()
    await either.done("POST", path, {"action": "empty"})
    depths = [nsqd.channel("acts", "c")["depth"] for nsqd in house.nsqds]
    assert ([0, 0] if is_channel else [2, 2]) == depths


async def test_delete(either: Admin, house: House) -> None:
    """A channel, then its topic: gone at the nodes and, where there are any, at nsqlookupds."""
    house.fill("gone")
    await either.done("DELETE", "/api/topics/gone/c")
    assert [{}, {}] == [nsqd.channel("gone", "c") for nsqd in house.nsqds]
    assert [True, True] == names(house, "gone")
    await either.done("DELETE", "/api/topics/gone")
    assert [False, False] == names(house, "gone")


async def test_a_tombstone(by_lookupd: Admin, house: House) -> None:
    """One node is hidden, and loses the topic; the other one keeps it."""
    house.fill("stone")
    first, second = house.nsqds
    await by_lookupd.done("DELETE", f"/api/nodes/{first.http}", {"topic": "stone"})

    assert [False, True] == names(house, "stone")
    for lookupd in house.lookupds:
        listed = lookupd.get_json("/lookup?topic=stone")["producers"]
        assert [second.http_port] == [producer["http_port"] for producer in listed]


async def test_a_tombstone_for_a_stranger_is_refused(either: Admin, house: House) -> None:
    """Who is no node is not called, and nothing is told to nsqlookupds (S-2)."""
    house.fill("stranger")
    async with peer({}) as stranger:
        for node in (stranger.address, "169.254.169.254:80", "localhost:22"):
            status, said = await either.ask("DELETE", f"/api/nodes/{node}", {"topic": "stranger"})
            assert (404, {"message": "NODE_NOT_FOUND"}) == (status, said)
        assert 0 == stranger.connections
    assert [True, True] == names(house, "stranger")
    assert 2 == len(house.lookupds[0].get_json("/lookup?topic=stranger")["producers"])


TOPIC, CHANNEL, NODE = "/api/topics/bad", "/api/topics/bad/c", "/api/nodes/x:1"


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        ("POST", "/api/topics", b"", "EOF"),
        ("POST", "/api/topics", b"{", "invalid JSON"),
        ("POST", "/api/topics", b"[]", "invalid JSON: the body must be an object"),
        ("POST", "/api/topics", b'{"topic":3}', "invalid JSON: topic must be a string"),
        ("POST", "/api/topics", b"[" * 100_000, "invalid JSON"),
        ("POST", "/api/topics", b"null", "INVALID_TOPIC"),
        ("POST", "/api/topics", {"topic": "a b"}, "INVALID_TOPIC"),
        ("POST", "/api/topics", {"topic": "../x"}, "INVALID_TOPIC"),
        ("POST", "/api/topics", {"topic": "t" * 65}, "INVALID_TOPIC"),
        ("POST", "/api/topics", {"channel": "c"}, "INVALID_TOPIC"),
        ("POST", "/api/topics", {"topic": "bad", "channel": "c?"}, "INVALID_CHANNEL"),
        ("POST", TOPIC, b"", "EOF"),
        ("POST", TOPIC, b"}", "invalid JSON"),
        ("POST", TOPIC, {}, "INVALID_ACTION"),
        ("POST", TOPIC, {"action": "delete"}, "INVALID_ACTION"),
        ("POST", CHANNEL, {"action": "Pause"}, "INVALID_ACTION"),
        ("DELETE", NODE, b"", "INVALID_BODY"),
        ("DELETE", NODE, b"[]", "INVALID_BODY"),
        ("DELETE", NODE, {"topic": ""}, "INVALID_TOPIC"),
        ("DELETE", NODE, {"topic": "a/b"}, "INVALID_TOPIC"),
    ],
)
async def test_what_is_wrong_is_told(
    by_lookupd: Admin, method: str, path: str, body: Any, message: str
) -> None:
    """400 with NSQ's codes, and nobody is called for it."""
    before = by_lookupd.daemon.services.upstream.calls

    assert (400, {"message": message}) == await by_lookupd.ask(method, path, body)
    services = by_lookupd.daemon.services
    assert services.upstream.calls == before or services.watch.rounds > 0


async def test_what_go_reads_is_read(by_lookupd: Admin, house: House) -> None:
    """The first JSON value of a body, keys in any case, other keys passed over."""
    body = b' {"Topic": "read_as_go", "more": [1]} trailing'
    await by_lookupd.done("POST", "/api/topics", body)

    assert "read_as_go" in house.lookupds[0].get_json("/topics")["topics"]


async def test_a_body_without_its_type_is_taken(by_lookupd: Admin, house: House) -> None:
    """As scripts send it with curl, which says that it is a form."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    status, said = await by_lookupd.ask("POST", "/api/topics", {"topic": "curl"}, form)

    assert (200, {"message": ""}) == (status, said)
    assert "curl" in house.lookupds[0].get_json("/topics")["topics"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("DELETE", "/api/topics/nobody", None),
        ("DELETE", "/api/topics/nobody/c", None),
        ("POST", "/api/topics/nobody", {"action": "pause"}),
        ("POST", "/api/topics/nobody/c", {"action": "empty"}),
    ],
)
async def test_an_unknown_topic(either: Admin, method: str, path: str, body: Any) -> None:
    """502 by nsqlookupd, which does not know it; nothing was done."""
    status, said = await either.ask(method, path, body)
    if either.daemon.services.fleet.lookupds:
        assert 502 == status
        assert said["message"].startswith("UPSTREAM_ERROR: failed to query any nsqlookupd: ")
        assert "failed" == either.audited()[-1]["outcome"]
    else:
        assert (200, {"message": ""}) == (status, said)


ACTING = [
    ("POST", "/api/topics", {"topic": "acl", "channel": "c"}),
    ("POST", "/api/topics/acl", {"action": "pause"}),
    ("POST", "/api/topics/acl/c", {"action": "empty"}),
    ("POST", "/api/topics/acl", b"nonsense"),
    ("DELETE", "/api/topics/acl/c", None),
    ("DELETE", "/api/topics/acl", None),
    ("DELETE", "/api/nodes/127.0.0.1:1", {"topic": "acl"}),
]


@pytest.mark.parametrize(("method", "path", "body"), ACTING)
async def test_who_is_no_admin_changes_nothing(
    ours: House, method: str, path: str, body: Any
) -> None:
    """403 before the body is read, without the header or with another user."""
    ours.fill("acl")
    options = {"admin_users": ("alice", "bob"), **ours.modes()["lookupd"]}
    async with admin(**options) as found:
        for headers in ({}, {"X-Forwarded-User": "eve"}, {"X-Forwarded-User": ""}):
            said = await found.ask(method, path, body, headers)
            assert (403, {"message": "FORBIDDEN"}) == said
        status, _ = await found.ask("GET", "/api/topics", headers={"X-Forwarded-User": "eve"})
        assert 200 == status
    assert [2, 2] == [nsqd.channel("acl", "c")["depth"] for nsqd in ours.nsqds]
    assert [False, False] == topics_paused(ours, "acl")


async def test_an_admin_may(ours: House) -> None:
    """By the header that is named."""
    ours.fill("may")
    options = {"admin_users": ("alice",), "acl_http_header": "X-User", **ours.modes()["lookupd"]}
    async with admin(**options) as found:
        body, mine = {"action": "empty"}, {"X-User": "alice"}
        assert 403 == (await found.ask("POST", "/api/topics/may/c", body))[0]
        assert 200 == (await found.ask("POST", "/api/topics/may/c", body, mine))[0]
        assert "alice" == found.audited()[-1]["user"]
    assert [0, 0] == [nsqd.channel("may", "c")["depth"] for nsqd in ours.nsqds]


async def test_everything_done_is_written_down(ours: House) -> None:
    """Who, what, where, from where, with what result."""
    ours.fill("written")
    async with admin(**ours.modes()["lookupd"]) as found:
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
