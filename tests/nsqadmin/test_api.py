"""NSQ's API: each route's answer, effect and errors, with and without nsqlookupds."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.nsqadmin.cluster import Admin, Cluster, admin, consumer, free_address

TOPIC, CHANNEL, NODE = "/api/topics/bad", "/api/topics/bad/c", "/api/nodes/x:1"

LOOKUPDS = "nsqlookupd_http_addresses"

TOPIC_KEYS = {
    *("node", "hostname", "topic_name", "depth", "memory_depth", "backend_depth", "message_count"),
    *("delivery_msg_count", "nodes", "channels", "paused", "e2e_processing_latency"),
}
CHANNEL_KEYS = {
    *("node", "hostname", "topic_name", "channel_name", "depth", "memory_depth", "backend_depth"),
    *("in_flight_count", "deferred_count", "requeue_count", "timeout_count", "message_count"),
    *("client_count", "nodes", "clients", "paused", "e2e_processing_latency"),
}
CLIENT_KEYS = {
    *("node", "remote_address", "version", "client_id", "hostname", "user_agent", "connect_ts"),
    *("connected", "in_flight_count", "ready_count", "finish_count", "requeue_count"),
    *("message_count", "sample_rate", "deflate", "snappy", "authed", "auth_identity"),
    *("auth_identity_url", "tls", "tls_cipher_suite", "tls_version", "tls_negotiated_protocol"),
    "tls_negotiated_protocol_is_mutual",
}
NODE_KEYS = {
    *("remote_addresses", "remote_address", "hostname", "broadcast_address", "tcp_port"),
    *("http_port", "version", "topics", "out_of_date"),
}
LATENCY_KEYS = {"count", "percentiles", "topic", "channel", "host"}


async def test_inactive_topics_are_listed(
    by_lookupd: Admin, direct: Admin, cluster: Cluster
) -> None:
    """`inactive=true` lists topics without nodes, and their channels; none if nsqds are given."""
    cluster.fill("had", messages=0)
    for lookupd in cluster.lookupds:
        lookupd.post("/topic/create?topic=idle0")
        lookupd.post("/channel/create?topic=idle1&channel=c")
    found = (await by_lookupd.done("GET", "/api/topics?inactive=true"))["topics"]

    assert (None, ["c"]) == (found["idle0"], found["idle1"])
    assert "had" not in found
    assert {} == (await direct.done("GET", "/api/topics?inactive=true"))["topics"]


async def test_a_topic_has_sums_nodes_and_channels(either: Admin, cluster: Cluster) -> None:
    """Figures of a topic are sums, with the parts by node and the channels, but no clients."""
    cluster.fill("whole", messages=3)
    found = await either.done("GET", "/api/topics/whole")

    assert TOPIC_KEYS | {"message"} == found.keys()
    assert ("*", "", "whole", 6, False) == (
        found["node"],
        found["hostname"],
        found["topic_name"],
        found["message_count"],
        found["paused"],
    )
    assert sorted(nsqd.http for nsqd in cluster.nsqds) == sorted(n["node"] for n in found["nodes"])
    (channel,) = found["channels"]
    assert CHANNEL_KEYS == channel.keys()
    assert (6, None) == (channel["depth"], channel["clients"])
    for part in found["nodes"]:
        assert TOPIC_KEYS == part.keys()
        assert (3, None) == (part["message_count"], part["nodes"])
        assert [3] == [one["depth"] for one in part["channels"]]
    assert LATENCY_KEYS == found["e2e_processing_latency"].keys()
    assert ("whole", "*") == (
        found["e2e_processing_latency"]["topic"],
        found["e2e_processing_latency"]["host"],
    )


async def test_a_topic_without_channels_has_none(either: Admin, cluster: Cluster) -> None:
    """Its merged `channels` is null, that of each node an empty list."""
    cluster.create_without_channel("bare")
    found = await either.done("GET", "/api/topics/bare")

    assert found["channels"] is None
    assert [[], []] == [part["channels"] for part in found["nodes"]]
    node = await either.done("GET", f"/api/nodes/{cluster.nsqds[0].http}")
    assert [] in [topic["channels"] for topic in node["topics"]]


async def test_a_channel_has_sums_and_clients(either: Admin, cluster: Cluster) -> None:
    """Figures of a channel are sums, with each client once and the depth on disk."""
    cluster.fill("deep", messages=3)
    async with consumer(cluster.nsqds[0], "deep", "c"), consumer(cluster.nsqds[1], "deep", "c"):
        found = await either.done("GET", "/api/topics/deep/c")

    assert CHANNEL_KEYS | {"message"} == found.keys()
    assert (6, 6, 2) == (found["depth"], found["message_count"], found["client_count"])
    assert found["memory_depth"] == found["depth"] - found["backend_depth"]
    assert cluster.is_sparqs is (found["backend_depth"] > 0)
    assert [None, None] == [part["clients"] for part in found["nodes"]]
    assert sorted(nsqd.http for nsqd in cluster.nsqds) == [c["node"] for c in found["clients"]]
    for client in found["clients"]:
        assert CLIENT_KEYS == client.keys()
        assert ("me", "here", "test/1", "V2") == (
            client["client_id"],
            client["hostname"],
            client["user_agent"],
            client["version"],
        )
        assert 0 <= client["connected"] < 60_000_000_000
        assert client["connected"] % 1_000_000_000 == 0


async def test_nodes_have_their_nsqlookupds(by_lookupd: Admin, cluster: Cluster) -> None:
    """Each node has its nsqlookupds, its topics and their tombstones."""
    cluster.fill("listed", messages=0)
    for lookupd in cluster.lookupds:
        lookupd.post(f"/topic/tombstone?topic=listed&node={cluster.nsqds[0].http}")
    nodes = (await by_lookupd.done("GET", "/api/nodes"))["nodes"]

    assert {nsqd.http_port for nsqd in cluster.nsqds} == {node["http_port"] for node in nodes}
    for node in nodes:
        assert NODE_KEYS == node.keys()
        assert ("127.0.0.1", False) == (node["broadcast_address"], node["out_of_date"])
        listed = [text.partition("/") for text in node["remote_addresses"]]
        assert [lookupd.http for lookupd in cluster.lookupds] == [at for at, _, _ in listed]
        assert node["remote_address"] in [peer for _, _, peer in listed]
        is_first = node["http_port"] == cluster.nsqds[0].http_port
        assert {"topic": "listed", "tombstoned": is_first} in node["topics"]


async def test_a_node_has_topics_clients_and_totals(either: Admin, cluster: Cluster) -> None:
    """A node has its topics, channels and clients, and the totals of messages and clients."""
    cluster.fill("at_node")
    nsqd = cluster.nsqds[1]
    async with consumer(nsqd, "at_node", "c"):
        found = await either.done("GET", f"/api/nodes/{nsqd.http}")

    assert {"node", "topics", "total_messages", "total_clients", "message"} == found.keys()
    assert (nsqd.http, 1) == (found["node"], found["total_clients"])
    assert found["total_messages"] == sum(topic["message_count"] for topic in found["topics"])
    (topic,) = [topic for topic in found["topics"] if topic["topic_name"] == "at_node"]
    assert (nsqd.http, None) == (topic["node"], topic["nodes"])
    assert [CLIENT_KEYS] == [client.keys() for client in topic["channels"][0]["clients"]]


async def test_the_counter_has_each_channels_count_by_node(either: Admin, cluster: Cluster) -> None:
    """The counter has the message count of each channel at each node."""
    cluster.fill("counted", messages=4)
    stats = (await either.done("GET", "/api/counter"))["stats"]

    for nsqd in cluster.nsqds:
        expected = {
            "node": nsqd.http,
            "topic_name": "counted",
            "channel_name": "c",
            "message_count": 4,
        }
        assert expected == stats[f"counted:c:{nsqd.http}"]


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/api/nodes/127.0.0.1:1", 404, "NODE_NOT_FOUND"),
        ("/api/nodes/x", 404, "NODE_NOT_FOUND"),
        ("/api/topics/wrong/nope", 404, "CHANNEL_NOT_FOUND"),
        ("/api/topics?inactive=%zz", 400, "INVALID_REQUEST"),
        ("/api/nope", 404, "NOT_FOUND"),
        ("/api/topics/a/b/c", 404, "NOT_FOUND"),
        ("/api/graphite", 400, "INVALID_ARG_METRIC"),
        ("/api/graphite?metric=depth&target=x", 400, "INVALID_ARG_METRIC"),
        ("/api/graphite?metric=rate", 400, "INVALID_ARG_TARGET"),
        ("/render?target=x", 404, "NOT_FOUND"),
    ],
)
async def test_errors_have_nsqs_codes(
    either: Admin, cluster: Cluster, path: str, status: int, message: str
) -> None:
    """Errors have NSQ's codes, except for an unknown channel: 404 (a bug in NSQ)."""
    cluster.fill("wrong", messages=0)

    assert (status, {"message": message}) == await either.ask("GET", path)


async def test_unknown_topics_get_502(by_lookupd: Admin, direct: Admin, cluster: Cluster) -> None:
    """A topic that no node has gets 502 with NSQ's text, even if nsqlookupds know it."""
    _, by_name = await by_lookupd.ask("GET", "/api/topics/nobody")
    prefix = "UPSTREAM_ERROR: failed to query any nsqlookupd: got response 404 Not Found "
    assert by_name["message"].startswith(prefix + r'"{\"message\":\"TOPIC_NOT_FOUND\"}" (')
    for lookupd in cluster.lookupds:
        lookupd.post("/topic/create?topic=unproduced")
    for found, path in (
        (by_lookupd, "/api/topics/unproduced"),
        (by_lookupd, "/api/topics/unproduced/c"),
        (direct, "/api/topics/nobody"),
        (direct, "/api/topics/nobody/c"),
    ):
        answer = {"message": "UPSTREAM_ERROR: failed to query any nsqd: "}
        assert (502, answer) == await found.ask("GET", path)


@pytest.fixture(autouse=True)
def _level() -> Iterator[None]:
    """Restore the log levels after the test."""
    loggers = [logging.getLogger(name) for name in ("", "asyncio")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


async def test_nsqlookupds_can_be_changed(by_lookupd: Admin, cluster: Cluster) -> None:
    """New addresses set by PUT /config are used and recorded in the audit log."""
    gone = free_address()
    assert (200, [gone]) == await by_lookupd.ask("PUT", f"/config/{LOOKUPDS}", [gone])
    assert (200, [gone]) == await by_lookupd.ask("GET", f"/config/{LOOKUPDS}")
    assert 502 == (await by_lookupd.ask("GET", "/api/nodes"))[0]
    # Go's answers: null and [] both empty the list.
    assert (200, None) == await by_lookupd.ask("PUT", f"/config/{LOOKUPDS}", b"null")
    assert (200, []) == await by_lookupd.ask("PUT", f"/config/{LOOKUPDS}", b"[]")
    back = [lookupd.http for lookupd in cluster.lookupds]
    assert 200 == (await by_lookupd.ask("PUT", f"/config/{LOOKUPDS}", back))[0]
    assert await by_lookupd.done("GET", "/api/nodes")
    entry = by_lookupd.audited()[-1]
    assert (f"config_{LOOKUPDS}", {"value": back}) == (entry["action"], entry["arguments"])


async def test_the_log_level_can_be_changed() -> None:
    """PUT takes a level's name; the answer is NSQ's number for it."""
    async with admin(lookupd_http_addresses=(free_address(),)) as found:
        assert (200, 4) == await found.ask("PUT", "/config/log_level", b"ERROR")
        assert logging.ERROR == logging.getLogger().level
        assert (200, 4) == await found.ask("GET", "/config/log_level")


@pytest.mark.parametrize(
    ("option", "body", "status", "message"),
    [
        (LOOKUPDS, b"", 413, "INVALID_VALUE"),
        (LOOKUPDS, b"x" * ((1 << 20) + 1), 413, "INVALID_VALUE"),
        (LOOKUPDS, b"{", 400, "INVALID_VALUE"),
        (LOOKUPDS, b'["nonsense"]', 400, "INVALID_VALUE"),
        (LOOKUPDS, b"[3]", 400, "INVALID_VALUE"),
        (LOOKUPDS, b'"127.0.0.1:1"', 400, "INVALID_VALUE"),
        ("log_level", b"loud", 400, "INVALID_VALUE"),
        ("log_level", b"\xff", 400, "INVALID_VALUE"),
        ("http_address", b"x", 400, "INVALID_OPTION"),
        ("nope", b"x", 400, "INVALID_OPTION"),
    ],
)
async def test_invalid_settings_fail(option: str, body: bytes, status: int, message: str) -> None:
    """Invalid values and options get NSQ's codes and change nothing."""
    given = (free_address(),)
    async with admin(lookupd_http_addresses=given) as found:
        assert (status, {"message": message}) == await found.ask("PUT", f"/config/{option}", body)
        assert given == found.daemon.services.options.lookupd_http_addresses
        assert given == found.daemon.services.fleet.lookupds


async def test_create_makes_topic_and_channel_known(by_lookupd: Admin, cluster: Cluster) -> None:
    """A new topic is known to both nsqlookupds; a new channel is also created at both nodes."""
    await by_lookupd.done("POST", "/api/topics", {"topic": "new"})
    for lookupd in cluster.lookupds:
        assert "new" in lookupd.get_json("/topics")["topics"]
    cluster.fill("new", "other", messages=0)
    await by_lookupd.done("POST", "/api/topics", {"topic": "new", "channel": "c"})

    assert all(nsqd.channel("new", "c") for nsqd in cluster.nsqds)
    for lookupd in cluster.lookupds:
        assert "c" in lookupd.get_json("/channels?topic=new")["channels"]


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
async def test_invalid_bodies_are_refused_without_upstream_requests(
    admin_without_watch: Admin, method: str, path: str, body: Any, message: str
) -> None:
    """Invalid bodies get 400 with NSQ's codes, without a request to any daemon."""
    assert (400, {"message": message}) == await admin_without_watch.ask(method, path, body)
    assert 0 == admin_without_watch.daemon.services.fleet.upstream.calls


async def test_json_is_read_as_in_go(by_lookupd: Admin, cluster: Cluster) -> None:
    """As in Go: only the first JSON value counts, keys in any case, others are ignored."""
    body = b' {"Topic": "read_as_go", "more": [1]} trailing'
    await by_lookupd.done("POST", "/api/topics", body)

    assert "read_as_go" in cluster.lookupds[0].get_json("/topics")["topics"]


async def test_a_json_body_needs_no_content_type(by_lookupd: Admin, cluster: Cluster) -> None:
    """A JSON body with a form's content type is accepted, since curl sends that by default."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    status, answer = await by_lookupd.ask("POST", "/api/topics", {"topic": "curl"}, form)

    assert (200, {"message": ""}) == (status, answer)
    assert "curl" in cluster.lookupds[0].get_json("/topics")["topics"]
